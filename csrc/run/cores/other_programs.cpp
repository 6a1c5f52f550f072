// csrc/run/cores/other_programs.cpp: the kernel's times of all cores, less those of this process.
#include "csrc/run/cores/other_programs.h"

#include <time.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace lazyeng::run {
namespace {

/// The kernel counts in hundredths of a second: in less time it tells nothing.
constexpr std::chrono::milliseconds kLeast{200};
/// What was before that is no news: a program that ran then may have ended.
constexpr std::chrono::milliseconds kMost{400};

/// This process has paused if it was not at work for longer than this.
constexpr std::chrono::milliseconds kPause{80};

/// Fields of a line of a core: user, nice, system, idle, iowait, irq, softirq, steal, and guests,
/// which user has already.
constexpr int kIdle = 3, kIoWait = 4, kSteal = 7;

/// The number that the text begins with, which it loses; nothing at the end of a line.
std::optional<uint64_t> take_number(std::string_view& text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

uint64_t busy_ticks(std::string_view fields) {
  uint64_t sum = 0;
  for (int i = 0; i < kSteal; ++i) {
    const std::optional<uint64_t> ticks = take_number(fields);
    if (ticks && i != kIdle && i != kIoWait) sum += *ticks;
  }
  return sum;
}

uint64_t own_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

uint64_t busy_nanoseconds(std::string_view proc_stat, const cpu_set_t& mask,
                          long ticks_per_second) {
  uint64_t ticks = 0;
  while (!proc_stat.empty()) {
    std::string_view line = proc_stat.substr(0, proc_stat.find('\n'));
    proc_stat.remove_prefix(std::min(line.size() + 1, proc_stat.size()));
    if (line.substr(0, 3) != "cpu") continue;
    line.remove_prefix(3);
    if (line.empty() || line.front() == ' ') continue;  // (the sum of all cores)
    const std::optional<uint64_t> core = take_number(line);
    if (core && *core < CPU_SETSIZE && CPU_ISSET(*core, &mask)) ticks += busy_ticks(line);
  }
  return ticks * (1'000'000'000 / static_cast<uint64_t>(ticks_per_second));
}

std::optional<OtherPrograms::Sample> OtherPrograms::sample(Clock::time_point now) {
  cpu_set_t mask;
  std::ifstream file("/proc/stat");
  if (!file || sched_getaffinity(0, sizeof(mask), &mask) != 0) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return Sample{now, busy_nanoseconds(text, mask, sysconf(_SC_CLK_TCK)), own_nanoseconds()};
}

void OtherPrograms::is_at_work(Clock::time_point now) {
  const Clock::time_point last = std::exchange(at_work_, now);
  if (last == Clock::time_point::min() || now - last > kPause) before_.reset();
}

std::optional<double> OtherPrograms::cores(Clock::time_point now) {
  if (before_ && now - before_->when < kLeast) return std::nullopt;
  const std::optional<Sample> last = before_;
  before_ = sample(now);
  if (!before_ || !last || now - last->when > kMost) return std::nullopt;
  const double others = static_cast<double>(before_->busy - last->busy) -
                        static_cast<double>(before_->own - last->own);
  const std::chrono::nanoseconds passed = now - last->when;
  return others / static_cast<double>(passed.count());
}

}  // namespace lazyeng::run
