// csrc/record/generators.cpp: one engine var per random generator.
#include "csrc/record/generators.h"

#include <ATen/Context.h>

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
  Draws& entry = table().entries[generator.unsafeGetGeneratorImpl()];
  if (!entry.var) {
    entry.keep = std::move(generator);
    entry.var = make_ref<run::StorageVar>(run::StorageVar::generator_tag{});
  }
  return entry.var;
}

run::StorageVarRef known_generator_var(const c10::GeneratorImpl* generator) {
  std::lock_guard lock(table().mutex);
  auto found = table().entries.find(generator);
  return found == table().entries.end() ? nullptr : found->second.var;
}

std::vector<run::StorageVarRef> all_generator_vars() {
  std::vector<run::StorageVarRef> vars;
  std::lock_guard lock(table().mutex);
  for (auto& [_, entry] : table().entries) vars.push_back(entry.var);
  return vars;
}

}  // namespace lazyeng::record
