// csrc/record/kept_values.cpp: which arguments are copied, and the copies.
#include "csrc/record/kept_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/record/thread_mode.h"
#include "csrc/run/memory/buffers.h"
#include "csrc/run/plain/unseen_writers.h"

namespace lazyeng::record {
namespace {

/// Of memory that its owner may well write: to copy this much takes less than to wait for all that
/// the call depends on.
constexpr uint64_t kMostUnseen = uint64_t{1} << 20;
/// Of any other.
constexpr uint64_t kMostPlain = uint64_t{64} << 10;
/// Kernels may sum in another order where data begins elsewhere in a line.
constexpr uintptr_t kAlignment = 64;

/// (While a write is pending, an engine thread may just move the storage. That it is pending means
/// that nobody else is known to write it: see uses_memory_of_others.)
bool is_exposed(const run::TensorArg& arg) {
  return arg.value && arg.value->var().exposed() && !arg.value->var().awaited() &&
         arg.value->geometry().device().is_cpu() && arg.value->geometry().numel() != 0 &&
         arg.value->var().engine_face();
}

/// Nobody can tell its kernel's reads of a copy from those of the original: it returns no view,
/// and does not look at the storage.
bool reads_values_only(const run::OpInfo& info) {
  return info.aten && !info.checks_values && !info.offset_matters && !info.storage_size_matters &&
         std::none_of(info.returns.begin(), info.returns.end(),
                      [](const run::ReturnInfo& result) { return result.may_alias; });
}

bool writes(const run::Node& node, const run::StorageVar& var) {
  return std::any_of(node.tensors.begin(), node.tensors.end(), [&](const run::TensorArg& arg) {
    return arg.written && arg.value && &arg.value->var() == &var;
  });
}

/// The bytes from its first element to its last, at the same place in a line, in memory of their
/// own.
run::ValueRef copy_of(const run::Value& value, const char* begin, uint64_t bytes) {
  const uintptr_t place = reinterpret_cast<uintptr_t>(begin) % kAlignment;
  at::DataPtr block = run::allocate_buffer(bytes + kAlignment);
  char* const base = static_cast<char*>(block.get());
  char* const copy =
      base + (place - reinterpret_cast<uintptr_t>(base) % kAlignment + kAlignment) % kAlignment;
  std::memcpy(copy, begin, bytes);
  const c10::DeleterFnPtr deleter = block.get_deleter();
  at::DataPtr data(copy, block.release_context(), deleter, block.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr,
                             /*resizable=*/false);
  return make_ref<run::Value>(make_ref<run::StorageVar>(storage, bytes),
                              run::with_offset(value.geometry_ref(), 0));
}

/// Null: it cannot be copied now, or is too large.
run::ValueRef copy_of(const run::Value& value, uint64_t most) {
  const run::Geometry& look = value.geometry();
  run::StorageVar& var = value.var();
  const uint64_t bytes = look.span_bytes();
  if (bytes > most || var.awaited() || var.failure()) return nullptr;
  c10::StorageImpl& storage = *var.engine_face().unsafeGetStorageImpl();
  const uint64_t skipped = static_cast<uint64_t>(look.offset()) * c10::elementSize(look.dtype());
  if (skipped + bytes > storage.nbytes()) return nullptr;
  const auto* begin = static_cast<const char*>(storage._mutable_data_ptr_no_checks().get());
  return copy_of(value, begin + skipped, bytes);
}

}  // namespace

void keep_values(run::Node& node) {
  if (node.collective || !reads_values_only(node.info)) return;
  const bool inside = thread_mode().inside();
  // What was one object in the call is one here: a kernel may look (attention of one tensor).
  c10::SmallVector<std::pair<run::ValueRef, run::ValueRef>, 4> copied;
  for (run::TensorArg& arg : node.tensors) {
    if (!is_exposed(arg) || arg.written) continue;
    const auto* before =
        std::ranges::find(copied, arg.value, [](auto& pair) { return pair.first; });
    if (before != copied.end()) {
      arg.value = before->second;
      continue;
    }
    const run::Writers writers = run::writers_of(arg.value->var().engine_face());
    if (writers == run::Writers::seen && (inside || !arg.plain)) continue;
    if (writes(node, arg.value->var())) continue;
    const uint64_t most = run::written_unseen(writers) ? kMostUnseen : kMostPlain;
    if (run::ValueRef copy = copy_of(*arg.value, most)) {
      node.cost_bytes += copy->var().nbytes();
      copied.emplace_back(std::exchange(arg.value, copy), copy);
    }
  }
}

/// Files that are mapped, and memory of several processes: the program may read what it has written
/// by other ways than this tensor, and nobody would see that it does.
static bool writes_what_others_see(const run::Node& node) {
  return node.device.is_cpu() &&
         std::any_of(node.tensors.begin(), node.tensors.end(), [](const run::TensorArg& arg) {
           return arg.written && is_exposed(arg) && run::is_mapped(arg.value->var().engine_face());
         });
}

bool uses_memory_of_others(const run::Node& node) {
  if (node.collective) return false;  // (they read later in eager too)
  if (node.info.writes && writes_what_others_see(node)) return true;
  if (node.plain_reads.empty()) return false;
  // A checkpoint that was mapped and is copied, for one: the program may write that file anew
  // afterwards, and to read what was cut off ends the process.
  const bool copies = node.info.torch_name == "aten.copy_";
  return std::any_of(node.tensors.begin(), node.tensors.end(), [&](const run::TensorArg& arg) {
    if (!is_exposed(arg)) return false;
    const run::Writers writers = run::writers_of(arg.value->var().engine_face());
    return run::written_unseen(writers) ||
           (copies && !arg.written && writers == run::Writers::shares);
  });
}

}  // namespace lazyeng::record
