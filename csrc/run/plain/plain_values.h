// csrc/run/plain/plain_values.h: values of plain tensors that are used again and again.
//
// A model's parameters are arguments of every step. Their vars die with the last node that reads
// them, and making them anew took a third of what recording such a call takes. So values seen of
// late are kept here, a few, each for as long as the plain tensor still looks as it did.
//
// A var holds the memory, and nothing shall live much longer for it. So values are kept inside
// lazy() only, until the outermost block ends; what the program has dropped meanwhile is let go of
// as others come, and at each wait for everything. Kept is only memory of torch's own allocator for
// the CPU (no file, no numpy array), and not much of it: but for one large tensor that a thread
// takes row after row of (`data[i]`), which is let go of at the next use of another, once the
// program has dropped it.
#pragma once

#include <array>
#include <atomic>

#include "csrc/engine/spin_lock.h"
#include "csrc/run/value.h"

namespace lazyeng::run {

class PlainValues {
 public:
  /// The value of a plain strided tensor whose memory the engine can reach: the one of before, if
  /// there is one. `viewed`: a view is taken of it. Inside lazy(). Any thread.
  ValueRef value_of(const at::Tensor& plain, bool viewed = false);

  /// Lets go of what only this table holds.
  void drop_unused();
  void drop_all();

 private:
  struct Entry {
    const c10::TensorImpl* tensor = nullptr;  ///< perhaps dead: compared, never followed
    c10::Storage storage;  ///< keeps the address of its StorageImpl from being used again
    c10::VariableVersion version_counter{c10::VariableVersion::DISABLED};  ///< (likewise)
    ValueRef value;
  };

  static constexpr size_t kEntries = 512;
  /// Looked at whenever a value comes in.
  static constexpr size_t kLooks = 8;

  static size_t slot_of(const c10::TensorImpl* tensor);
  static bool is_unused(const Entry& entry);
  static bool may_be_kept(const at::Tensor& plain, size_t most_bytes);
  /// Null: unknown, or no longer as it was.
  ValueRef find(const at::Tensor& plain);
  void keep(const at::Tensor& plain, const ValueRef& value);
  void keep_large(const at::Tensor& plain, const ValueRef& value);
  void look_at_large(const at::Tensor& asked_for);
  void forget(const c10::TensorImpl* tensor);
  template <class Condition>
  void drop_if(const Condition& condition);

  engine::SpinLock mutex_;
  std::array<Entry, kEntries> entries_;
  size_t used_ = 0;
  size_t next_ = 0;  // where the last look ended
  /// The large one. (Its entry may have been dropped.)
  std::atomic<const c10::TensorImpl*> large_{nullptr};
};

PlainValues& plain_values();

/// A value of the plain tensor that nobody else has.
ValueRef new_value_of(const at::Tensor& plain);

/// The same, of an argument that is read: its bytes are among what recording may run ahead by.
ValueRef value_of_argument(const at::Tensor& plain);

}  // namespace lazyeng::run
