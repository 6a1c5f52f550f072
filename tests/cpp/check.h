// tests/cpp/check.h: the few lines of test framework that the C++ tests need.
//
// Each test is a function; a failed check throws out of it. Checks run on the test's own thread.
// A test that hangs is ended by an alarm, which fails the whole program. Tests run under sanitizers
// and beside other programs: none may assume that one thread is faster than another, or that
// something is done within some time. What must come is waited for without a limit (the alarm is
// one); what must not come is held back by a Gate (ops.h).
#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace lazyeng::test {

inline void check(bool ok, const std::string& fact,
                  std::source_location at = std::source_location::current()) {
  if (ok) return;
  throw std::runtime_error(std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": " +
                           fact);
}

template <class A, class B>
void same(const A& got, const B& expected, const std::string& what,
          std::source_location at = std::source_location::current()) {
  if (got == expected) return;
  std::ostringstream text;
  text << what << ": got " << got << ", expected " << expected;
  check(false, text.str(), at);
}

struct Test {
  const char* name;
  std::function<void()> body;
};

inline const char* running_test = "";
inline int scale_percent = 100;  // sanitizers run fewer rounds of the long tests

inline int scaled(int count) { return count * scale_percent / 100; }

/// For tests that do the same many times in search of a race: a slow or busy machine does it less
/// often instead of running into the alarm.
class TimeBudget {
 public:
  bool is_left() const { return std::chrono::steady_clock::now() < end_; }

 private:
  const std::chrono::steady_clock::time_point end_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(5);
};

inline void on_alarm(int) {
  const char text[] = "  HANGS: ";
  (void)!write(1, text, sizeof(text) - 1);
  (void)!write(1, running_test, strlen(running_test));
  (void)!write(1, "\n0 passed, 1 failed\n", 20);
  _exit(2);
}

/// Arguments: percent of the rounds of long tests, and a substring of the names of the tests to
/// run.
inline int run_tests(int argc, char** argv, std::initializer_list<Test> tests) {
  const char* limit = std::getenv("TEST_TIMEOUT");
  const unsigned limit_seconds = limit ? std::atoi(limit) : 60;
  if (argc > 1) scale_percent = std::atoi(argv[1]);
  const std::string only = argc > 2 ? argv[2] : "";
  signal(SIGALRM, on_alarm);
  int passed = 0, failed = 0;
  for (const Test& test : tests) {
    if (std::string(test.name).find(only) == std::string::npos) continue;
    running_test = test.name;
    alarm(limit_seconds);
    const auto start = std::chrono::steady_clock::now();
    std::string error;
    try {
      test.body();
    } catch (const std::exception& e) {
      error = e.what();
    }
    alarm(0);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    ++(error.empty() ? passed : failed);
    std::printf("  %s %s (%.2f s)%s%s\n", error.empty() ? "ok  " : "FAIL", test.name, time.count(),
                error.empty() ? "" : ": ", error.c_str());
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}

}  // namespace lazyeng::test
