// csrc/engine/access_list.h: the accesses of one op; the first few live inside the op.
//
// Not thread safe. Addresses are stable once the op is pushed: nothing is added after that.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "csrc/engine/var.h"

namespace lazyeng::engine {

class AccessList {
 public:
  Access* begin() noexcept { return data(); }
  Access* end() noexcept { return data() + size_; }
  const Access* begin() const noexcept { return more_ ? more_.get() : inline_; }
  const Access* end() const noexcept { return begin() + size_; }
  uint32_t size() const noexcept { return size_; }
  Access& operator[](uint32_t i) noexcept { return data()[i]; }

  Access& add() {
    if (size_ == capacity_) grow();
    return data()[size_++];
  }

  /// Drops everything from the n-th on, and with it the references to the vars.
  void truncate(uint32_t n) noexcept {
    while (size_ > n) data()[--size_].var = nullptr;
  }
  void clear() noexcept { truncate(0); }

 private:
  static constexpr uint32_t kInline = 4;  // two operands, an output, a generator: no heap for these

  Access* data() noexcept { return more_ ? more_.get() : inline_; }

  void grow() {
    auto bigger = std::make_unique<Access[]>(size_t{capacity_} * 2);
    std::move(begin(), end(), bigger.get());
    more_ = std::move(bigger);
    capacity_ *= 2;
  }

  uint32_t size_ = 0;
  uint32_t capacity_ = kInline;
  std::unique_ptr<Access[]> more_;  // used instead of inline_ when set
  Access inline_[kInline];
};

}  // namespace lazyeng::engine
