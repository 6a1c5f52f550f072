// csrc/stacks/stack_table.cpp: hash-consed stacks.
//
// Who may do what, and why no entry is freed in use:
// - The table, the lookup and the sweep belong to the holder of the GIL. Nothing here gives the GIL
//   up between finding an entry and retaining it.
// - Any thread copies or drops a StackRef without the GIL. It can do that only while it holds a
//   share, so a count of 0 is final for everybody but a lookup: only the GIL holder makes 0 into 1,
//   and only the GIL holder frees at 0. The two cannot meet.
// - An entry owns its code objects, so no address among its sites can be reused while it is in the
//   table: equal sites mean the same code and instruction.
// - Freed code objects may run arbitrary Python code (weakref callbacks). They are released last,
//   when the entries are already out of the table.
// A child after fork inherits a consistent table, as the forking thread holds the GIL; shares of
// threads that do not exist in the child are never dropped, which only keeps those entries.
#include "csrc/stacks/stack_table.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "csrc/stacks/frame_walk.h"
#include "csrc/stacks/internal_code.h"
#include "csrc/stacks/saved_error.h"

namespace lazyeng::stacks {

/// One distinct stack; `depth` sites and then `depth` code objects follow it in memory.
struct Entry {
  std::atomic<uint32_t> shares{0};
  uint32_t depth = 0;
  uint64_t hash = 0;
  Entry* next = nullptr;    ///< in its bucket, or in the list of a sweep
  uint32_t last_used = 0;   ///< epoch of the last hit
  int32_t user_frame = -1;  ///< index of the innermost frame to show; valid in `labelled`
  uint32_t labelled = 0;    ///< internal_generation() that user_frame is based on

  uintptr_t* sites() noexcept { return reinterpret_cast<uintptr_t*>(this + 1); }
  PyCodeObject** codes() noexcept { return reinterpret_cast<PyCodeObject**>(sites() + depth); }
};

namespace {

constexpr size_t kept_dead = 1024;       // entries without shares that wait for the next hit
constexpr uint32_t first_buckets = 256;  // a power of two, as always

/// All fields belong to the GIL holder; `size` is atomic so that statistics need no GIL.
struct Table {
  Entry** buckets = nullptr;
  uint32_t shift = 64;  ///< bucket = hash >> shift
  std::atomic<size_t> size{0};
  size_t sweep_at = 2 * kept_dead;
  uint32_t epoch = 1;  ///< counts sweeps
  std::atomic<Mode> mode{Mode::user};
};

// Never destroyed: StackRefs may outlive static destructors and the interpreter.
constinit Table table;

size_t bucket_count() noexcept { return table.buckets ? size_t{1} << (64 - table.shift) : 0; }

/// Moves every entry into a bucket array of twice the size. Without memory the chains get longer.
void grow() noexcept {
  const size_t old_count = bucket_count();
  const size_t count = old_count ? 2 * old_count : first_buckets;
  auto** fresh = static_cast<Entry**>(std::calloc(count, sizeof(Entry*)));
  if (!fresh) return;
  const uint32_t shift = 64 - static_cast<uint32_t>(__builtin_ctzll(count));
  for (size_t i = 0; i < old_count; ++i) {
    for (Entry *entry = table.buckets[i], *next; entry; entry = next) {
      next = entry->next;
      Entry*& head = fresh[entry->hash >> shift];
      entry->next = head;
      head = entry;
    }
  }
  std::free(table.buckets);
  table.buckets = fresh;
  table.shift = shift;
}

Entry* find(const Walk& walk) noexcept {
  if (!table.buckets) return nullptr;
  for (Entry* entry = table.buckets[walk.hash >> table.shift]; entry; entry = entry->next) {
    if (entry->hash == walk.hash && entry->depth == walk.depth &&
        std::memcmp(entry->sites(), walk.sites, walk.depth * sizeof(uintptr_t)) == 0)
      return entry;
  }
  return nullptr;
}

/// A new entry in the table, without shares; null without memory.
Entry* insert(const Walk& walk) noexcept {
  if (table.size.load(std::memory_order_relaxed) >= bucket_count()) grow();
  if (!table.buckets) return nullptr;
  const size_t bytes = walk.depth * sizeof(uintptr_t);
  void* memory = std::malloc(sizeof(Entry) + 2 * bytes);
  if (!memory) return nullptr;
  auto* entry = new (memory) Entry;
  entry->depth = walk.depth;
  entry->hash = walk.hash;
  std::memcpy(entry->sites(), walk.sites, bytes);
  walk_codes(walk, entry->codes());
  for (uint32_t i = 0; i < walk.depth; ++i) Py_INCREF(entry->codes()[i]);
  Entry*& head = table.buckets[walk.hash >> table.shift];
  entry->next = head;
  head = entry;
  table.size.fetch_add(1, std::memory_order_relaxed);
  return entry;
}

bool is_dead(const Entry* entry) noexcept {
  // acquire: what other threads did with their shares happened before we free the entry.
  return entry->shares.load(std::memory_order_acquire) == 0;
}

size_t count_dead() noexcept {
  size_t dead = 0;
  for (size_t i = 0; i < bucket_count(); ++i)
    for (const Entry* entry = table.buckets[i]; entry; entry = entry->next) dead += is_dead(entry);
  return dead;
}

/// Takes up to `excess` dead entries out of the table and puts them before `list`.
Entry* unlink_dead(size_t& excess, bool unused_only, Entry* list) noexcept {
  for (size_t i = 0; i < bucket_count() && excess; ++i) {
    for (Entry** link = &table.buckets[i]; *link && excess;) {
      Entry* entry = *link;
      if (!is_dead(entry) || (unused_only && entry->last_used == table.epoch)) {
        link = &entry->next;
        continue;
      }
      *link = entry->next;
      entry->next = list;
      list = entry;
      table.size.fetch_sub(1, std::memory_order_relaxed);
      --excess;
    }
  }
  return list;
}

/// Runs Python code perhaps: the table must be consistent, and no lock held.
void release(Entry* list) noexcept {
  while (list) {
    Entry* entry = list;
    list = entry->next;
    for (uint32_t i = 0; i < entry->depth; ++i) Py_DECREF(entry->codes()[i]);
    entry->~Entry();
    std::free(entry);
  }
}

/// Frees all but `kept` of the dead entries, those first that were not hit since the last sweep.
/// The next sweep comes after half as many new entries as there are now: O(1) a miss on average.
void sweep(size_t kept) noexcept {
  Entry* list = nullptr;
  const size_t dead = count_dead();
  if (dead > kept) {
    size_t excess = dead - kept;
    list = unlink_dead(excess, true, list);
    list = unlink_dead(excess, false, list);
  }
  ++table.epoch;
  const size_t size = table.size.load(std::memory_order_relaxed);
  table.sweep_at = size + std::max(kept_dead, size / 2);
  release(list);
}

/// Index of the innermost frame that is the user's, -1 if none is. Decided once per entry.
int32_t user_frame(Entry& entry) {
  if (entry.labelled == internal_generation()) return entry.user_frame;
  entry.user_frame = -1;
  for (uint32_t i = 0; i < entry.depth; ++i) {
    if (is_internal(entry.codes()[i])) continue;
    entry.user_frame = static_cast<int32_t>(i);
    break;
  }
  entry.labelled = internal_generation();
  return entry.user_frame;
}

}  // namespace

StackRef::StackRef(const StackRef& other) noexcept : entry_(other.entry_) {
  if (entry_) entry_->shares.fetch_add(1, std::memory_order_relaxed);
}

StackRef::~StackRef() {
  if (entry_) entry_->shares.fetch_sub(1, std::memory_order_release);
}

void set_mode(Mode mode) noexcept { table.mode.store(mode, std::memory_order_relaxed); }

Mode mode() noexcept { return table.mode.load(std::memory_order_relaxed); }

StackRef capture() noexcept {
  StackRef stack;
  if (mode() == Mode::off) return stack;
  Walk walk;
  walk_frames(walk);
  if (walk.depth == 0) return stack;
  Entry* entry = find(walk);
  const bool miss = !entry;
  if (miss && !(entry = insert(walk))) return stack;
  entry->last_used = table.epoch;
  entry->shares.fetch_add(1, std::memory_order_relaxed);
  stack.entry_ = entry;
  if (miss && table_size() >= table.sweep_at) collect(kept_dead);
  return stack;
}

PyObject* to_python(const StackRef& stack) {
  Entry* entry = stack.entry_;
  const uint32_t depth = entry ? entry->depth : 0;
  PyObject* list = PyList_New(depth);
  for (uint32_t i = 0; list && i < depth; ++i) {
    PyCodeObject* code = entry->codes()[i];
    PyObject* frame = Py_BuildValue("Oi", code, last_instruction(code, entry->sites()[i]));
    if (frame)
      PyList_SET_ITEM(list, depth - 1 - i, frame);
    else
      Py_CLEAR(list);
  }
  return list;
}

std::string innermost_user_line(const StackRef& stack) {
  if (!stack) return "";
  SavedError saved;
  Entry& entry = *stack.entry_;
  const int32_t index = user_frame(entry);
  if (index < 0) return "";
  PyCodeObject* code = entry.codes()[index];
  const int line = PyCode_Addr2Line(code, last_instruction(code, entry.sites()[index]));
  const std::string file = shown_file_of(code);
  return file.substr(file.find_last_of('/') + 1) + ':' + std::to_string(line);
}

size_t table_size() noexcept { return table.size.load(std::memory_order_relaxed); }

void collect(size_t kept) noexcept {
  SavedError saved;
  sweep(kept);
}

}  // namespace lazyeng::stacks
