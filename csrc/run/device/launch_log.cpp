// csrc/run/device/launch_log.cpp: launches that may have failed, and the failure made of them.
//
// Invariants, kept under a log's mutex:
//   L1  An op stands in the log from before its first kernel is launched.
//   L2  It leaves the log only when the device is known to have done it: a mark (an event on each
//       stream in use, recorded when the ops before it were all launched) was reached, or somebody
//       has waited for the device, or for the op's stream.
// So when a call tells that the device is lost, the op that failed stands in the log: of the first
// kernel that fails nothing can be known to be done. (Older launches than kMost are forgotten, and
// counted: no GPU runs that far behind.)
#include "csrc/run/device/launch_log.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "csrc/run/device/launch_order.h"
#include "csrc/run/failures/failure_log.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/node.h"

namespace lazyeng::run {
namespace {

using std::string_view;

constexpr size_t kMarkEvery = 32;  // launches; an event costs about as much as a launch
constexpr size_t kLookEvery = 8;   // launches; a twentieth of that
constexpr size_t kMost = 8192;

/// Ops whose CUDA kernels hold assertions about values: all that indexes, draws with given
/// probabilities, and compares labels with the number of classes. (Parts of names.)
constexpr std::array<string_view, 25> kAsserting = {"index",
                                                    "embedding",
                                                    "gather",
                                                    "scatter",
                                                    "take",
                                                    "put",
                                                    "nll_loss",
                                                    "multi",
                                                    "cross_entropy",
                                                    "binary_cross_entropy",
                                                    "bernoulli",
                                                    "assert",
                                                    "bincount",
                                                    "ctc_loss",
                                                    "max_unpool",
                                                    "searchsorted",
                                                    "repeat_interleave",
                                                    "one_hot",
                                                    "histogram",
                                                    "segment_reduce",
                                                    "grid_sampler",
                                                    "masked_scatter",
                                                    "nonzero_static",
                                                    "unique",
                                                    "poisson"};

/// What is known of a launched op without keeping its tensors alive.
struct Entry {
  uint64_t ticket;
  c10::Stream stream;
  const OpInfo* info;
  uint64_t number;
  uint64_t block;
  stacks::StackRef stack, forward_stack;
  c10::SmallVector<GeometryRef, 4> inputs;
  bool launched = false;
};

bool may_assert(const Entry& entry) {
  const string_view name = entry.info->short_name;
  return !entry.info->aten ||
         std::any_of(kAsserting.begin(), kAsserting.end(),
                     [&](string_view part) { return name.find(part) != string_view::npos; });
}

std::vector<std::string> described(const Entry& entry) {
  std::vector<std::string> inputs;
  for (const GeometryRef& look : entry.inputs) inputs.push_back(describe(*look));
  return inputs;
}

/// Codes of CUDA's runtime, and of HIP's, after which no call of the process works any more.
bool is_final(int32_t code) {
  constexpr std::array<int32_t, 11> kFinal = {214, 700, 702, 710, 714, 715,
                                              716, 717, 718, 719, 721};
  return std::find(kFinal.begin(), kFinal.end(), code) != kFinal.end();
}

class LaunchLog {
 public:
  explicit LaunchLog(c10::Device device) : device_(device), guard_(device.type()) {}

  struct Begun {
    uint64_t ticket, launched;
  };
  Begun begin(const Node& node) {
    std::lock_guard lock(mutex_);
    if (failure_) throw LostDevice();
    look_at_mark();
    const uint64_t launched = launched_through_;
    if (entries_.size() >= kMost) {
      leaves(entries_.front());
      entries_.pop_front();
      ++forgotten_;
    }
    entries_.push_back(entry_of(node));
    enters(entries_.back());
    return {last_ticket_, launched};
  }

  void launched(uint64_t ticket) {
    std::lock_guard lock(mutex_);
    const auto entry = from(ticket);
    if (entry != entries_.end() && entry->ticket == ticket) entry->launched = true;
    advance();
    try {
      if (!failure_ && marks_.empty() && entries_.size() >= kMarkEvery) set_mark();
    } catch (const std::exception&) {
      // The device is lost: the next call tells.
    }
  }

  /// Everything before the first op that is still being launched.
  uint64_t launched_so_far() {
    std::lock_guard lock(mutex_);
    return launched_through_;
  }

  void well(uint64_t ticket) {
    std::lock_guard lock(mutex_);
    drop_through(ticket);
  }

  /// An op that began with `begun` is done, and what had been launched on the stream by then.
  void waited_for(Begun begun, const c10::Stream& stream) {
    std::lock_guard lock(mutex_);
    const bool is_only_one = streams_.size() == 1 && streams_[0].stream == stream;
    if (begun.launched) drop_through(begun.launched, is_only_one ? nullptr : &stream);
    const auto own = from(begun.ticket);
    if (own != entries_.end() && own->ticket == begun.ticket) {
      leaves(*own);
      entries_.erase(own);
    }
    advance();
  }

  bool is_busy() {
    std::lock_guard lock(mutex_);
    return !failure_ && !entries_.empty();
  }

  engine::FailurePtr failure() {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  /// The failure of the device; `error` is told once, by whoever comes first.
  engine::FailurePtr lose(const std::exception_ptr& error, string_view message) {
    std::shared_ptr<FailureRoot> made;
    {
      std::lock_guard lock(mutex_);
      if (failure_) return failure_;
      made = blame(error, message);
    }
    failure_log().add(made, FailureLog::Holder::log);  // (may take the GIL)
    return failure_;                                   // (set once)
  }

  /// Those that may have something to do: the default stream is the program's as well.
  std::vector<c10::Stream> streams() {
    std::vector<c10::Stream> all{guard_.getDefaultStream(device_)};
    std::lock_guard lock(mutex_);
    for (const Used& used : streams_)
      if (used.stream != all[0]) all.push_back(used.stream);
    return all;
  }
  const c10::impl::VirtualGuardImpl& guard() const { return guard_; }

 private:
  Entry entry_of(const Node& node) {
    Entry entry{++last_ticket_, launch_stream(node), &node.info,         node.number,
                node.block,     node.stack,          node.forward_stack, {}};
    for (const TensorArg& arg : node.tensors)
      if (arg.value) entry.inputs.push_back(arg.value->geometry_ref());
    return entry;
  }

  /// The first entry of that ticket or a later one.
  std::deque<Entry>::iterator from(uint64_t ticket) {
    return std::lower_bound(entries_.begin(), entries_.end(), ticket,
                            [](const Entry& entry, uint64_t key) { return entry.ticket < key; });
  }

  void advance() {
    auto next = from(launched_through_ + 1);
    while (next != entries_.end() && next->launched) ++next;
    launched_through_ = next == entries_.end() ? last_ticket_ : next->ticket - 1;
  }

  void enters(const Entry& entry) {
    for (Used& used : streams_)
      if (used.stream == entry.stream) return void(++used.entries);
    streams_.push_back({entry.stream, 1});
  }

  void leaves(const Entry& entry) {
    for (Used& used : streams_)
      if (used.stream == entry.stream) --used.entries;
    std::erase_if(streams_, [](const Used& used) { return used.entries == 0; });
  }

  /// All, or those of one stream.
  void drop_through(uint64_t ticket, const c10::Stream* stream = nullptr) {
    const auto end = from(ticket + 1);
    const auto kept = std::remove_if(entries_.begin(), end, [&](const Entry& entry) {
      const bool drops = !stream || entry.stream == *stream;
      if (drops) leaves(entry);
      return drops;
    });
    entries_.erase(kept, end);
    if (stream) return;
    forgotten_ = 0;
    if (marked_ <= ticket) marks_.clear();
  }

  void set_mark() {
    const uint64_t ticket = launched_through_;
    if (entries_.empty() || ticket < entries_.front().ticket) return;
    const c10::DeviceGuard here(device_);
    for (const Used& used : streams_) marks_.push_back(event_on(used.stream));
    marked_ = ticket;
  }

  void look_at_mark() {
    if (marks_.empty() || last_ticket_ < marked_ + kMarkEvery / 2 || last_ticket_ % kLookEvery)
      return;
    const c10::DeviceGuard here(device_);
    if (std::all_of(marks_.begin(), marks_.end(), [](const EventRef& m) { return m->query(); }))
      drop_through(marked_);
  }

  std::shared_ptr<FailureRoot> blame(const std::exception_ptr& error, string_view message) {
    auto root = std::make_shared<FailureRoot>();
    root->lost_device = device_.str();
    root->others = forgotten_;
    const bool assertion = message.find("assert") != string_view::npos;
    const bool any_asserts = assertion && std::any_of(entries_.begin(), entries_.end(), may_assert);
    const Entry* first = nullptr;
    for (const Entry& entry : entries_) {
      if (any_asserts && !may_assert(entry)) {
        ++root->others;
        continue;
      }
      if (!first) first = &entry;
      root->candidates.push_back(
          {entry.info->torch_name, described(entry), entry.stack, entry.forward_stack});
    }
    std::string label = "(device)";
    if (first) {
      root->id = first->number;
      root->block = first->block;
      root->name = first->info->name;
      root->op = first->info->torch_name;
      root->inputs = described(*first);
      root->stack = first->stack;
      root->forward_stack = first->forward_stack;
      label = first->info->short_name + "#" + std::to_string(first->number);
    }
    root->error = error;
    root->label = label;
    failure_ = std::make_shared<OpFailure>(root, std::move(label));
    entries_.clear();
    streams_.clear();
    return root;
  }

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  std::mutex mutex_;
  std::deque<Entry> entries_;
  uint64_t last_ticket_ = 0;
  uint64_t launched_through_ = 0;  // all up to this ticket, and not the next
  size_t forgotten_ = 0;
  struct Used {
    c10::Stream stream;
    size_t entries;
  };
  std::vector<Used> streams_;  // of the entries
  std::vector<EventRef> marks_;
  uint64_t marked_ = 0;  // the marks were recorded after this ticket
  std::shared_ptr<const OpFailure> failure_;
};

using Logs = std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::unique_ptr<LaunchLog>>;

std::mutex logs_mutex;
Logs* all_logs = new Logs;  // engine threads may outlive statics
Logs& logs() { return *all_logs; }

LaunchLog& log_of(c10::Device device) {
  std::lock_guard lock(logs_mutex);
  auto& log = logs()[{device.type(), device.index()}];
  if (!log) log = std::make_unique<LaunchLog>(device);
  return *log;
}

}  // namespace

Launch::Launch(const Node& node) : node_(node) {
  if (node.device.is_cpu() || node.captured) return;
  const auto begun = log_of(node.device).begin(node);
  ticket_ = begun.ticket;
  launched_ = begun.launched;
}

Launch::~Launch() {
  if (ticket_) log_of(node_.device).launched(ticket_);
}

void Launch::device_waited_for() {
  if (!ticket_) return;
  log_of(node_.device).waited_for({std::exchange(ticket_, 0), launched_}, node_.stream());
}

uint64_t launched_so_far(c10::Device device) { return log_of(device).launched_so_far(); }
void copied(const Node& node, const CopyInFlight& copy) {
  log_of(node.device).waited_for({copy.ticket, copy.launched}, node.stream());
}

engine::FailurePtr device_failure(const Node& node, const std::exception_ptr& error) noexcept {
  if (node.device.is_cpu()) return nullptr;
  LaunchLog& log = log_of(node.device);
  engine::FailurePtr failure;
  try {
    std::rethrow_exception(error);
  } catch (const LostDevice&) {
    failure = log.failure();
  } catch (const std::exception& thrown) {
    if (!is_final(accelerator_error_code(error))) return nullptr;
    failure = log.lose(error, thrown.what());
  } catch (...) {
    return nullptr;
  }
  auto lost = std::static_pointer_cast<const OpFailure>(failure);
  if (lost->last() == node.label()) return failure;
  return std::make_shared<OpFailure>(std::move(lost), node.label());
}

engine::FailurePtr wait_for_device(c10::Device device, const engine::Interrupt& interrupt,
                                   bool& interrupted) {
  constexpr auto kSpin = std::chrono::microseconds(50);
  constexpr auto kLookEvery = std::chrono::microseconds(100);
  constexpr auto kAskEvery = std::chrono::milliseconds(20);
  LaunchLog& log = log_of(device);
  if (engine::FailurePtr failure = log.failure()) return failure;
  const uint64_t launched = log.launched_so_far();
  try {
    const c10::DeviceGuard here(device);  // (another device may be lost)
    std::vector<EventRef> events;
    for (const c10::Stream& stream : log.streams()) events.push_back(event_on(stream));
    const auto is_done = [&] {
      return std::all_of(events.begin(), events.end(),
                         [](const EventRef& e) { return e->query(); });
    };
    const auto begin = std::chrono::steady_clock::now();
    auto next_ask = begin + kAskEvery;
    while (!is_done()) {
      const auto now = std::chrono::steady_clock::now();
      if (now - begin > kSpin) std::this_thread::sleep_for(kLookEvery);
      if (now < next_ask) continue;
      next_ask = now + kAskEvery;
      interrupted = interrupt && interrupt();
      if (interrupted) return nullptr;
    }
  } catch (const std::exception& thrown) {
    // (While a stream is captured, the driver refuses to tell; the device is well.)
    if (!is_final(accelerator_error_code(std::current_exception()))) throw;
    return log.lose(std::current_exception(), thrown.what());
  }
  log.well(launched);
  return nullptr;
}

bool is_running(c10::Device device, engine::FailurePtr& failure) {
  LaunchLog& log = log_of(device);
  failure = log.failure();
  if (failure || !log.is_busy()) return false;
  try {
    const c10::DeviceGuard here(device);
    const std::vector<c10::Stream> streams = log.streams();
    return std::any_of(streams.begin(), streams.end(),
                       [&](const c10::Stream& s) { return !log.guard().queryStream(s); });
  } catch (const std::exception& thrown) {
    // (While a stream is captured, the driver refuses to tell; the device is well.)
    if (!is_final(accelerator_error_code(std::current_exception()))) return true;
    failure = log.lose(std::current_exception(), thrown.what());
    return false;
  }
}

// Its entries are the parent's. (They are not freed: their events are of a context that this
// process may not touch.)
void launches_after_fork_in_child() { all_logs = new Logs; }

std::vector<c10::Device> busy_devices() {
  std::vector<c10::Device> busy;
  std::lock_guard lock(logs_mutex);
  for (const auto& [key, log] : logs())
    if (log->is_busy()) busy.emplace_back(key.first, key.second);
  return busy;
}

}  // namespace lazyeng::run
