// csrc/record/generators.cpp: one engine var per random generator.
#include "csrc/record/generators.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace lazyeng::record {
namespace {

struct Draws {
  at::Generator keep;  // so that the address is not used again
  run::StorageVarRef var;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<const c10::GeneratorImpl*, Draws> entries;
  size_t forget_at = 16;  ///< so many entries: twice as many as were in use

  /// Some programs make a generator for each sample. What nobody else refers to draws no more. (A
  /// node that has not run refers to its own.)
  void forget_unused() {
    std::erase_if(entries, [](const auto& entry) {
      const Draws& draws = entry.second;
      return draws.keep.getIntrusivePtr().use_count() == 1 && !draws.var->awaited();
    });
    forget_at = std::max<size_t>(16, 2 * entries.size());
  }
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

at::Generator generator_of(const Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i)
    if (call.info.args[i].kind == run::ArgKind::generator && call.args[i].isGenerator())
      return call.args[i].toGenerator();
  for (const run::GeometryRef& look : call.looks)
    if (look) return at::globalContext().defaultGenerator(look->device());
  return at::globalContext().defaultGenerator(backing_device());
}

}  // namespace

run::StorageVarRef generator_var(const Call& call) {
  at::Generator generator = generator_of(call);
  std::lock_guard lock(table().mutex);
  auto& entries = table().entries;
  if (entries.size() >= table().forget_at) table().forget_unused();
  Draws& entry = entries[generator.unsafeGetGeneratorImpl()];
  if (!entry.var) {
    entry.keep = std::move(generator);
    entry.var = make_ref<run::StorageVar>(run::StorageVar::generator_tag{});
  }
  return entry.var;
}

std::vector<run::StorageVarRef> all_generator_vars() {
  std::vector<run::StorageVarRef> vars;
  std::lock_guard lock(table().mutex);
  for (auto& [_, entry] : table().entries) vars.push_back(entry.var);
  return vars;
}

}  // namespace lazyeng::record
