// csrc/record/library.cpp: making torch's dispatcher call the recorder.
//
// A backend fallback alone is not enough: kernels registered for all backends (composite explicit
// ones) outrank it. So every op that eager runs whole (that is, without a composite implicit
// kernel, or with one of the CPU besides) gets the boxed kernel at PrivateUse1; the fallback serves
// ops of other namespaces that have kernels for single devices only.
#include "csrc/record/library.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/record/metadata/meta_answers.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/special/autocast.h"
#include "csrc/record/special/collectives.h"
#include "csrc/record/special/composites.h"
#include "csrc/record/special/factories.h"
#include "csrc/record/special/mkldnn_tensors.h"
#include "csrc/record/special/nested.h"
#include "csrc/record/special/packed_sequences.h"
#include "csrc/record/special/recurrent.h"
#include "csrc/record/special/tensor_lists.h"
#include "csrc/record/special/whole_products.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

/// The boxed kernel of one op.
class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(const c10::OperatorHandle& op) : handle_(op) {}

  void operator()(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
    const Gate::Inside inside;
    if (!answer_structured_meta(handle_, stack)) current_recorder()->record(info(), stack);
  }

 private:
  const run::OpInfo& info() {
    const run::OpInfo* const known = info_.load(std::memory_order_acquire);
    if (known && !known->outdated.load(std::memory_order_relaxed)) return *known;
    const run::OpInfo& made = info_of(handle_);
    info_.store(&made, std::memory_order_release);
    return made;
  }

  const c10::OperatorHandle handle_;
  std::atomic<const run::OpInfo*> info_{nullptr};
};

/// An op of aten with a kernel of the program's.
struct Replaced {
  std::unique_ptr<run::OpInfo> before;  // null: nobody had asked
  /// Our kernel, if the op had none: a decomposition that now has a kernel runs whole.
  std::unique_ptr<torch::Library> kernel;
};

/// What is known of ops, by the address of their schemas.
struct Infos {
  std::mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, Replaced> replaced;
  std::atomic<size_t> num_replaced{0};
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<run::OpInfo>> known;
  std::vector<std::unique_ptr<run::OpInfo>> outdated;  // what is recorded refers to them
};

Infos& infos() {
  static Infos* const instance = new Infos;
  return *instance;
}

/// An op that is defined anew (a custom op of the same name again, as in notebooks) keeps the
/// address of its schema, as our kernel keeps its entry in the dispatcher.
void forget(const c10::OperatorHandle& op) {
  std::lock_guard lock(infos().mutex);
  const auto found = infos().known.find(&op.schema());
  if (found == infos().known.end()) return;
  found->second->outdated.store(true, std::memory_order_relaxed);
  infos().outdated.push_back(std::move(found->second));
  infos().known.erase(found);
}

/// What is known of an op of aten by its name and tags is about torch's kernels. (So is what its
/// meta functions say: it stays one of torch's, of which these are believed after some runs.)
void know_schema_alone(run::OpInfo& info) {
  info.aten = false;
  info.work = run::Work::other;
  info.out_form.reset();
  info.offset_view = run::OffsetView::none;
  info.offset_matters |=
      std::any_of(info.returns.begin(), info.returns.end(),
                  [](const run::ReturnInfo& result) { return result.may_alias; });
  info.pointwise = info.reduction = info.structured_meta = info.made_of_ops = info.cpp_meta = false;
  info.fans_out = info.looks_once = info.checks_sizes = info.takes_some_of_first = false;
  for (run::ArgInfo& arg : info.args) arg.is_data = false;
}

bool has_tensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  return std::ranges::any_of(type->containedTypes(), has_tensors);
}

bool handles_tensors(const c10::FunctionSchema& schema) {
  const auto tensor = [](const c10::Argument& argument) {
    return has_tensors(argument.real_type());
  };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), tensor) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), tensor);
}

/// A decomposition for other backends is not what eager runs where the CPU has a kernel
/// (silu_backward), and rounds otherwise.
bool runs_whole(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool wants_kernel(const c10::OperatorHandle& op) {
  return op.hasSchema() && handles_tensors(op.schema()) && runs_whole(op) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

/// Ops registered by others while lazyeng is loaded. A definition is seen before its kernels, and
/// whether it wants one of ours depends on them: names wait here until kernels have come, which
/// lazyeng/torch_patches/custom_ops.py tells. (Looking at all of them takes 40 us, so not each plan
/// can do it.)
class NewOps final : public c10::OpRegistrationListener {
 public:
  struct State {
    std::mutex mutex;
    std::vector<c10::OperatorName> names;
    std::vector<c10::OperatorName> waiting;
    std::atomic<bool> some{false};  // names are new
  };
  explicit NewOps(State& state) : state_(state) {}

  // Called with the dispatcher's lock held: nothing may be registered in here.
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    if (op.operator_name().name.rfind("aten::", 0) == 0) return;
    std::lock_guard lock(state_.mutex);
    state_.names.push_back(op.operator_name());
    state_.some.store(true, std::memory_order_release);
  }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    std::lock_guard lock(state_.mutex);
    std::erase(state_.names, op.operator_name());
    std::erase(state_.waiting, op.operator_name());
    if (op.hasSchema()) forget(op);
  }

 private:
  State& state_;
};

/// Registrations live as long as the process. But a kernel of ours keeps its op's entry in the
/// dispatcher, and that the Python object of the op that was asked for first, which may be gone
/// once the op is defined anew: of ops of other namespaces they can be taken back.
struct Registered {
  std::vector<std::unique_ptr<torch::Library>> libraries;
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, std::unique_ptr<torch::Library>> of_ops;
  std::optional<c10::RegistrationHandleRAII> listener;
  NewOps::State new_ops;
};

Registered& registered() {
  static Registered* const instance = new Registered;
  return *instance;
}

std::unique_ptr<torch::Library> new_library(const std::string& name_space) {
  return std::make_unique<torch::Library>(torch::Library::IMPL, name_space,
                                          std::make_optional(c10::DispatchKey::PrivateUse1),
                                          __FILE__, __LINE__);
}

void add_kernel(torch::Library& library, const c10::OperatorHandle& op) {
  std::optional<torch::CppFunction> kernel = collective_kernel(op);
  if (!kernel) kernel = tensor_list_kernel(op);
  if (!kernel)
    kernel = torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel>(op));
  library.impl(without_namespace(op.operator_name()).c_str(), std::move(*kernel));
}

/// Kernels have been registered for it, so that it can be told what they are.
bool has_kernels(const c10::OperatorHandle& op) {
  for (c10::DispatchKey key :
       {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeImplicitAutograd})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

/// One of these outranks a fallback; the second is that of structured ops.
bool has_kernel_for_all_backends(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

/// An op that is made of others, except in this layout (linear and matmul of nested tensors).
bool is_whole_in(const OtherLayout& layout, const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         op.hasKernelForDispatchKey(layout.cpu);
}

/// An op with a kernel for all backends would be run by that, and not by the kernel of the layout.
void register_other_layouts(const std::vector<c10::OperatorName>& names) {
  for (const OtherLayout& layout : kOtherLayouts) {
    const c10::DispatchKey key = layout.ours;
    registered().libraries.push_back(std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", std::make_optional(key), __FILE__, __LINE__));
    for (const c10::OperatorName& name : names) {
      const auto op = c10::Dispatcher::singleton().findOp(name);
      if (op && name.name.rfind("aten::", 0) == 0 && op->hasSchema() &&
          handles_tensors(op->schema()) && !op->hasKernelForDispatchKey(key) &&
          (has_kernel_for_all_backends(*op) || is_whole_in(layout, *op)))
        registered().libraries.back()->impl(
            without_namespace(name).c_str(),
            torch::CppFunction::makeFromBoxedFunction<&record_whole>());
    }
  }
}

void register_fallbacks() {
  const auto add = [](c10::DispatchKey key, torch::CppFunction function) {
    registered().libraries.push_back(std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", std::make_optional(key), __FILE__, __LINE__));
    registered().libraries.back()->fallback(std::move(function));
  };
  add(c10::DispatchKey::PrivateUse1, torch::CppFunction::makeFromBoxedFunction<&record_whole>());
  for (const OtherLayout& layout : kOtherLayouts)
    add(layout.ours, torch::CppFunction::makeFromBoxedFunction<&record_whole>());
}

}  // namespace

std::string without_namespace(const c10::OperatorName& name) {
  const std::string base = name.name.substr(name.name.find("::") + 2);
  return name.overload_name.empty() ? base : base + "." + name.overload_name;
}

void record_whole(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Gate::Inside inside;
  if (!answer_structured_meta(op, stack)) current_recorder()->record(info_of(op), stack);
}

const run::OpInfo& info_of(const c10::OperatorHandle& op) {
  Infos& all = infos();
  {
    std::lock_guard lock(all.mutex);
    const auto found = all.known.find(&op.schema());
    if (found != all.known.end()) return *found->second;
  }
  // (Without the lock: the dispatcher tells of an op that is taken back with a lock of its own.)
  auto made = std::make_unique<run::OpInfo>(op);
  std::lock_guard lock(all.mutex);
  if (all.replaced.contains(&op.schema())) know_schema_alone(*made);
  return *all.known.try_emplace(&op.schema(), std::move(made)).first->second;
}

namespace {

/// As it is looked up from now on; null: looked at anew. Returns what was.
std::unique_ptr<run::OpInfo> exchange_known(Infos& all, const c10::FunctionSchema* schema,
                                            std::unique_ptr<run::OpInfo> now) {
  std::unique_ptr<run::OpInfo> before;
  if (const auto found = all.known.find(schema); found != all.known.end()) {
    before = std::move(found->second);
    before->outdated.store(true, std::memory_order_relaxed);
    all.known.erase(found);
  }
  if (now) {
    now->outdated.store(false, std::memory_order_relaxed);
    all.known.emplace(schema, std::move(now));
  }
  return before;
}

std::unique_ptr<torch::Library> kernel_if_wanted(const c10::OperatorHandle& op) {
  if (!wants_kernel(op)) return nullptr;
  auto library = new_library("aten");
  add_kernel(*library, op);
  return library;
}

}  // namespace

void set_replaced(const c10::OperatorHandle& op, bool replaced) {
  Infos& all = infos();
  const c10::FunctionSchema* const schema = &op.schema();
  // (Registered and taken back without the lock.)
  std::unique_ptr<torch::Library> kernel = replaced ? kernel_if_wanted(op) : nullptr;
  std::lock_guard lock(all.mutex);
  const auto found = all.replaced.find(schema);
  if ((found != all.replaced.end()) == replaced) return;
  if (replaced) {
    all.replaced.emplace(schema, Replaced{exchange_known(all, schema, nullptr), std::move(kernel)});
  } else {
    kernel = std::move(found->second.kernel);
    if (auto ours = exchange_known(all, schema, std::move(found->second.before)))
      all.outdated.push_back(std::move(ours));
    all.replaced.erase(found);
  }
  all.num_replaced.store(all.replaced.size(), std::memory_order_relaxed);
}

bool is_replaced(const c10::OperatorHandle& op) {
  Infos& all = infos();
  if (all.num_replaced.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(all.mutex);
  return all.replaced.contains(&op.schema());
}

size_t register_kernels() {
  size_t count = 0;
  registered().libraries.push_back(new_library("aten"));
  torch::Library& aten = *registered().libraries.back();
  std::vector<c10::OperatorName> names = c10::Dispatcher::singleton().getAllOpNames();
  std::vector<c10::OperatorName> others;
  for (const c10::OperatorName& name : names) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || name.name.rfind("aten::", 0) != 0) {
      if (op) others.push_back(name);
      continue;
    }
    if (!wants_kernel(*op)) continue;
    add_kernel(aten, *op);
    ++count;
  }
  register_other_layouts(names);
  register_fallbacks();
  register_factories();
  register_autocast();
  register_opaque_composites();
  register_nested_kernels();
  register_recurrent_layers();
  register_packed_sequences();
  register_whole_products();
  register_collectives();
  register_mkldnn_tensors();
  registered().new_ops.names = std::move(others);
  adopt_ops_with_kernels();
  // (Of the ops that torch itself defines, those without a kernel now are not built in.)
  registered().new_ops.waiting.clear();
  registered().listener.emplace(c10::Dispatcher::singleton().addRegistrationListener(
      std::make_unique<NewOps>(registered().new_ops)));
  return count;
}

void adopt_new_ops() {
  NewOps::State& state = registered().new_ops;
  if (state.some.load(std::memory_order_acquire)) adopt_ops_with_kernels();
}

// One thread at a time: what one looks at stands in no list meanwhile, and another that has just
// given such an op its kernels must find it. (The lock is not the lists': the dispatcher holds its
// own when it tells of an op.)
void adopt_ops_with_kernels() {
  const Gate::Inside inside;  // to the end of the lock, for which the GIL may be let go of
  static std::mutex* const one_at_a_time = new std::mutex;
  std::unique_lock adopting(*one_at_a_time, std::try_to_lock);
  if (!adopting) {
    const run::NoGil released;
    adopting.lock();
  }
  NewOps::State& state = registered().new_ops;
  std::vector<c10::OperatorName> names;
  {
    std::lock_guard lock(state.mutex);
    names.swap(state.names);
    names.insert(names.end(), state.waiting.begin(), state.waiting.end());
    state.waiting.clear();
    state.some.store(false, std::memory_order_release);
  }
  std::vector<c10::OperatorName> waiting;
  for (const c10::OperatorName& name : names) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema()) continue;
    if (!has_kernels(*op)) {
      waiting.push_back(name);
      continue;
    }
    if (!wants_kernel(*op)) continue;
    auto library = new_library(name.name.substr(0, name.name.find("::")));
    add_kernel(*library, *op);
    std::lock_guard lock(registered().mutex);
    registered().of_ops[name] = std::move(library);
  }
  std::lock_guard lock(state.mutex);
  state.waiting.insert(state.waiting.end(), waiting.begin(), waiting.end());
}

void take_back_kernels(const std::string& name) {
  const Gate::Inside inside;
  std::vector<std::unique_ptr<torch::Library>> kernels;  // (which end without our locks)
  {
    NewOps::State& state = registered().new_ops;
    std::scoped_lock lock(registered().mutex, state.mutex);
    auto& of_ops = registered().of_ops;
    for (auto kernel = of_ops.begin(); kernel != of_ops.end();) {
      const auto next = std::next(kernel);
      if (kernel->first.name == name) {
        state.names.push_back(kernel->first);  // (this overload may stay)
        kernels.push_back(std::move(of_ops.extract(kernel).mapped()));
      }
      kernel = next;
    }
    if (!kernels.empty()) state.some.store(true, std::memory_order_release);
  }
}

}  // namespace lazyeng::record
