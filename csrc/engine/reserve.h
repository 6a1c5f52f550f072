// csrc/engine/reserve.h: memory kept for what must not fail.
//
// A call that was recorded is owed: it runs, or its results carry a failure. Half appended to the
// tables, or lost with a window, it would be neither, and no caller gets a worker's error. So small
// allocations of the engine do not fail where malloc has nothing left: std::new_handler gives back
// some of a reserve then, if the thread is in an Owing scope (all of recording, pushing and
// waiting; engine threads for life), and operator new tries again. Elsewhere std::bad_alloc is
// thrown.
//
// Nobody begins to record while the reserve is not whole (fill_reserve): so it need last only for
// what is pending, which is bounded. It is address space mostly; its pages are never touched.
#pragma once

namespace lazyeng::engine {

/// Sets the handler, once, and fills the reserve.
void install_reserve();
/// Whether the reserve is whole, or could be made so.
bool fill_reserve() noexcept;

/// The calling thread may use the reserve, for a scope.
class Owing {
 public:
  Owing() noexcept { ++depth_; }
  ~Owing() { --depth_; }
  Owing(const Owing&) = delete;
  Owing& operator=(const Owing&) = delete;

  /// From now on, for as long as the thread lives.
  static void for_life() noexcept { ++depth_; }
  static bool active() noexcept { return depth_ != 0; }

 private:
  static inline constinit thread_local unsigned depth_ = 0;
};

}  // namespace lazyeng::engine
