// csrc/run/plain/unseen_writers.h: what may write a tensor's memory without torch noticing.
//
// A write through an operator is recorded, or moves a version counter (storage_var.h). Others leave
// no trace: numpy over memory that a tensor was made of, or over a tensor's own memory that it was
// lent, a library that knows the address. What a recorded call reads of such memory is kept as it
// is at the call, or the call has run when it returns (csrc/record/kept_values.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace lazyeng::run {

struct TrackedVersion;

/// In order: the later, the likelier.
enum class Writers : uint8_t {
  seen,           ///< torch's operators only, as far as anybody knows
  shares,         ///< other processes: memory in files and the like
  knows_address,  ///< somebody has asked for the address
  lent,           ///< an array of numpy, or a tensor of another library, is over it now
  foreign,        ///< it never was torch's
};

/// The memory was given away, or never was torch's: who writes it is the program's affair.
inline bool written_unseen(Writers writers) { return writers >= Writers::lent; }

/// Who may write the memory unseen. Either face of a storage (storage_var.h).
Writers writers_of(const c10::Storage& storage);

/// Whether it is memory in a file, or of several processes.
bool is_mapped(const c10::Storage& storage);

/// What was told about memory of torch's own. Its lock is a leaf; entries stand under the face that
/// owns the memory.
class Lendings {
 public:
  /// For as long as `handle` lives: the tensor over this memory that an array was made of.
  void lend(const c10::Storage& storage, const at::Tensor& handle);
  void tell_address(const c10::Storage& storage);
  /// `alias` has a version counter of its own (`.data`): the vars of the memory look at it too.
  void note_alias(const c10::Storage& storage, const at::Tensor& alias);

  Writers writers_of(const c10::StorageImpl& owner);
  /// The version counters of aliases.
  std::vector<std::shared_ptr<TrackedVersion>> versions_of(const c10::Storage& storage);

  /// Around a fork (csrc/record/process/fork.cpp).
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

 private:
  struct Entry {
    /// Keeps the address from being used again.
    c10::weak_intrusive_ptr<c10::StorageImpl> owner;
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> handles;
    std::vector<std::shared_ptr<TrackedVersion>> versions;  ///< until they are over
    bool address_known = false;

    explicit Entry(const c10::Storage& storage) : owner(storage.getWeakStorageImpl()) {}
    void drop_dead();
    bool says_nothing() const;
  };

  Entry& entry_locked(const c10::Storage& storage);
  Entry* find_locked(const c10::StorageImpl& owner);

  std::mutex mutex_;
  std::atomic<bool> some_{false};
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  size_t sweep_at_ = 256;
};

Lendings& lendings();

}  // namespace lazyeng::run
