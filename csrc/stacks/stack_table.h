// csrc/stacks/stack_table.h: creation stacks, captured by walking interpreter frames, each distinct
// whole stack stored once.
//
// Ownership: a StackRef owns a share of one table entry; an entry owns references to its code
// objects. StackRefs may be copied and dropped on any thread without the GIL; entries are freed
// later, by a thread that has it.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace lazyeng::stacks {

enum class Mode : uint8_t {
  off,   ///< capture nothing
  user,  ///< whole stacks; frames of lazyeng and torch are hidden when shown (default)
  full,  ///< the same stacks, shown with these frames
};

struct Entry;

/// A share of one captured stack; null if capturing is off or no Python code was running.
class StackRef {
 public:
  StackRef() = default;
  StackRef(const StackRef& other) noexcept;
  StackRef(StackRef&& other) noexcept : entry_(other.entry_) { other.entry_ = nullptr; }
  StackRef& operator=(StackRef other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~StackRef();
  explicit operator bool() const noexcept { return entry_ != nullptr; }

 private:
  friend StackRef capture() noexcept;
  friend PyObject* to_python(const StackRef&);
  friend std::string innermost_user_line(const StackRef&);
  Entry* entry_ = nullptr;
};

void set_mode(Mode mode) noexcept;
Mode mode() noexcept;

/// The calling thread's Python stack. The GIL must be held. Never raises: an unreadable stack is
/// null.
StackRef capture() noexcept;

/// New reference: a list of (code object, last instruction offset in bytes), outermost first; empty
/// for null. The GIL must be held. Null with a Python error set when out of memory.
PyObject* to_python(const StackRef& stack);

/// "train.py:42" of the innermost frame that is not lazyeng's or torch's own, in UTF-8; "" if there
/// is none. The GIL must be held.
std::string innermost_user_line(const StackRef& stack);

/// Number of entries in the table, live ones and those kept for the next hit.
size_t table_size() noexcept;

/// Frees entries that nothing refers to, but for a few that may be met again: at most `kept`. The
/// GIL must be held.
void collect(size_t kept) noexcept;

}  // namespace lazyeng::stacks
