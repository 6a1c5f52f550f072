// csrc/fuse/device/device_calls.cpp: what calls look like, the table of their kernels, one run of
// them.
#include "csrc/fuse/device/device_calls.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "csrc/fuse/chosen_ops.h"
#include "csrc/fuse/device/device_arguments.h"
#include "csrc/fuse/device/kernel_requests.h"
#include "csrc/fuse/device/kernel_run.h"
#include "csrc/fuse/graphs/drawn_state.h"
#include "csrc/fuse/group.h"
#include "csrc/fuse/key.h"

namespace lazyeng::fuse {
namespace {

using State = DeviceCalls::Tensor::State;
constexpr size_t kMaxEntries = 1 << 12;
constexpr size_t kMaxTensors = 1 << 14;

/// False: kernels cannot depend on such an argument.
bool add_argument(const run::OpInfo& op, size_t index, const c10::IValue& value, Key& key) {
  const auto add_list = [&key](const auto& list) {
    key.push_back(list.size() << 8 | 8);
    for (const auto& element : list) key.push_back(static_cast<uint64_t>(element));
  };
  if (value.isNone()) {
    key.push_back(1);
  } else if (is_data(op, index, value)) {
    key.push_back(value.isList() ? value.toListRef().size() << 8 | 2 : 2);
  } else if (value.isBool()) {
    key.push_back(4 + value.toBool());
  } else if (value.isInt()) {
    key.push_back(6);
    key.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isScalar()) {
    key.push_back(7);  // the op's own default
  } else if (value.isIntList()) {
    add_list(value.toIntVector());
  } else if (value.isBoolList()) {
    add_list(value.toBoolList().vec());
  } else if (value.isString()) {
    key.push_back(std::hash<std::string_view>()(value.toStringView()));
  } else {
    return false;
  }
  return true;
}

/// One run: the tensors, numbered as they turn up, and numbers.
class CallsRun {
 public:
  using IsDead = std::function<bool(const run::Value&)>;

  CallsRun(c10::ArrayRef<run::Node*> nodes, const IsDead& is_dead)
      : nodes_(nodes), is_dead_(is_dead), device_(nodes[0]->device) {}

  /// Finds the tensors that exist, and makes the key. False if no kernel can run these calls.
  bool find() {
    key_.push_back(static_cast<uint64_t>(device_.index()) << 1 | tf32_);
    for (const run::Node* node : nodes_)
      if (!add_call(*node)) return false;
    return tensors_.size() < kMaxTensors;
  }

  const Key& key() const { return key_; }

  std::shared_ptr<const DeviceCalls> describe() const {
    auto made = std::make_shared<DeviceCalls>();
    made->tf32 = tf32_;
    made->device = device_.index();
    for (const Tensor& tensor : tensors_)
      made->tensors.push_back({tensor.value->geometry_ref(), tensor.state,
                               tensor.state != State::given || is_aligned(tensor.address)});
    size_t next = 0;
    for (const run::Node* node : nodes_) {
      DeviceCalls::Call& call = made->calls.emplace_back();
      call.info = &node->info;
      call.args = node->args;
      for (size_t i = 0; i < node->tensors.size(); ++i) call.tensors.push_back(places_[next++]);
      for (size_t i = 0; i < node->outputs.size(); ++i) call.results.push_back(places_[next++]);
    }
    return made;
  }

  void make_memory(const GroupKernels& kernels) {
    for (Tensor& tensor : tensors_) {
      if (tensor.state != State::made) continue;
      tensor.memory = run::new_storage(tensor.value->geometry().extent_bytes(), device_);
      tensor.address = address_in(tensor.memory, tensor.value->geometry());
    }
    for (const AddressTable& table : kernels.tables) tables_.push_back(upload(table));
  }

  /// False if a tensor has no memory.
  bool bind(const KernelArgument& argument, LaunchArguments& arguments) {
    using Kind = KernelArgument::Kind;
    switch (argument.kind) {
      case Kind::tensor:
        arguments.add(tensors_[argument.index].address);
        return tensors_[argument.index].address != nullptr;
      case Kind::table:
        arguments.add(tables_[argument.index].mutable_data_ptr());
        return true;
      case Kind::argument:
        return bind_number(nodes_[argument.call]->args[argument.index], argument.type, arguments);
      case Kind::seed:
        arguments.add(static_cast<int64_t>(drawn_->seed()));
        return true;
      case Kind::offset:
        arguments.add(static_cast<int64_t>(drawn_->offset()));
        return true;
      default:
        return false;
    }
  }

  /// Before the arguments are bound. False: torch draws nothing for such numbers, or there is no
  /// generator whose state can be known.
  bool begin_to_draw(const GroupKernels& kernels) {
    if (kernels.draws == 0) return true;
    for (const run::Node* node : nodes_)
      for (const c10::IValue& arg : node->args)
        if (arg.isDouble() && !(arg.toDouble() >= 0 && arg.toDouble() < 1)) return false;
    drawn_.emplace(device_);
    return true;
  }

  /// Once all kernels are launched: what is drawn next is drawn after it.
  void end_drawing(const GroupKernels& kernels) {
    if (drawn_) drawn_->move_on(kernels.draws);
    drawn_.reset();
  }

  /// Of the largest tensor that is made or written.
  int64_t elements() const {
    int64_t most = 0;
    for (const Tensor& tensor : tensors_) most = std::max(most, tensor.value->geometry().numel());
    return most;
  }

  /// Of what nobody holds any more: it stays in the kernels.
  uint64_t bytes_not_written() const {
    uint64_t bytes = 0;
    for (const Tensor& tensor : tensors_)
      if (tensor.state == State::dead) bytes += tensor.value->geometry().extent_bytes();
    return bytes;
  }

  void install() {
    for (Tensor& tensor : tensors_) {
      if (tensor.state != State::made) continue;
      tensor.value->var().set_nbytes(tensor.memory.nbytes());
      tensor.value->var().set_engine_face(std::move(tensor.memory));
    }
  }

 private:
  struct Tensor {
    run::Value* value;
    State state;
    char* address = nullptr;
    c10::Storage memory;  // of what is made
  };

  bool add_call(const run::Node& node) {
    key_.push_back(reinterpret_cast<uint64_t>(&node.info));
    for (size_t i = 0; i < node.args.size(); ++i)
      if (node.info.args[i].kind != run::ArgKind::tensor &&
          !add_argument(node.info, i, node.args[i], key_))
        return false;
    for (const run::TensorArg& arg : node.tensors)
      if (!add_given(arg)) return false;
    for (const run::ValueRef& output : node.outputs) add_made(output.get());
    return true;
  }

  bool add_given(const run::TensorArg& arg) {
    if (!arg.value) {
      add_place(-1);
      return !arg.raw.defined();
    }
    // (What a call has made, perhaps reshaped, and what has turned up before.)
    for (const void* known :
         {static_cast<const void*>(&arg.value->var()), static_cast<const void*>(arg.value.get())})
      if (const auto found = known_.find(known); found != known_.end()) {
        add_place(found->second);
        return true;
      }
    const run::Geometry& look = arg.value->geometry();
    char* const address = address_of(*arg.value);
    if (!address || look.device() != device_ || look.data().conj || look.data().neg) return false;
    if (nodes_.size() > 1) known_.emplace(arg.value.get(), place());
    add_tensor({arg.value.get(), State::given, address, {}}, is_aligned(address));
    return true;
  }

  void add_made(run::Value* value) {
    if (!value) return add_place(-1);
    if (nodes_.size() > 1) known_.emplace(&value->var(), place());
    add_tensor({value, is_dead_(*value) ? State::dead : State::made, nullptr, {}}, true);
  }

  void add_tensor(Tensor tensor, bool aligned) {
    key_.push_back(reinterpret_cast<uint64_t>(&tensor.value->geometry().at_origin()));
    key_.push_back(static_cast<uint64_t>(tensor.state) << 1 | aligned);
    add_place(place());
    tensors_.push_back(std::move(tensor));
  }

  /// Of the next tensor.
  int16_t place() const { return static_cast<int16_t>(tensors_.size()); }

  void add_place(int16_t place) {
    key_.push_back(static_cast<uint64_t>(place));
    places_.push_back(place);
  }

  static bool bind_number(const c10::IValue& value, Type type, LaunchArguments& arguments) {
    if (!value.isScalar()) return false;
    const c10::Scalar number = value.toScalar();
    if (number.isIntegral(/*includeBool=*/true))
      add_number(number.toLong(), type, arguments);
    else if (number.isFloatingPoint())
      add_number(number.toDouble(), type, arguments);
    else
      return false;
    return true;
  }

  double number_in(const AddressTable::Column& column, size_t i) const {
    const c10::IValue& list = nodes_[column.call]->args[column.index];
    return list.toListRef()[i].toScalar().toDouble();
  }

  std::vector<int64_t> rows_of(const AddressTable& table) const {
    std::vector<int64_t> rows;
    for (size_t i = 0; i < table.columns[0].tensors.size(); ++i) {
      const int64_t numel = tensors_[table.columns[0].tensors[i]].value->geometry().numel();
      for (int64_t start = 0; start < numel; start += table.piece) {
        for (const AddressTable::Column& column : table.columns) {
          if (column.tensors.empty()) {
            rows.push_back(std::bit_cast<int64_t>(number_in(column, i)));
            continue;
          }
          const int16_t place = column.tensors[i];
          const Tensor* const tensor = place < 0 ? nullptr : &tensors_[place];
          const int64_t moved =
              tensor && column.moves
                  ? start *
                        static_cast<int64_t>(c10::elementSize(tensor->value->geometry().dtype()))
                  : 0;
          rows.push_back(tensor ? reinterpret_cast<int64_t>(tensor->address) + moved : 0);
        }
        rows.push_back(std::min(table.piece, numel - start));
      }
    }
    return rows;
  }

  /// Pinned, so that the copy does not wait for what the device still does; torch's allocator keeps
  /// the memory until the copy is done.
  at::Tensor upload(const AddressTable& table) const {
    const std::vector<int64_t> rows = rows_of(table);
    const at::Tensor host = at::empty({static_cast<int64_t>(rows.size())},
                                      at::TensorOptions().dtype(at::kLong).pinned_memory(true));
    std::memcpy(host.mutable_data_ptr(), rows.data(), rows.size() * sizeof(int64_t));
    return host.to(at::TensorOptions().device(device_), /*non_blocking=*/true);
  }

  const c10::ArrayRef<run::Node*> nodes_;
  const IsDead& is_dead_;
  const c10::Device device_;
  // (The program may change it meanwhile.)
  const bool tf32_ =
      at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32;
  Key key_;
  std::vector<Tensor> tensors_;
  std::unordered_map<const void*, int16_t> known_;  // places: of vars that calls make, of values
  std::vector<int16_t> places_;                     // of each call's tensors and results, in order
  std::vector<at::Tensor> tables_;
  std::optional<DrawnState> drawn_;  // held from the first argument to the last launch
};

struct Entry {
  std::shared_ptr<const DeviceCalls> calls;  // (the key holds addresses of its looks)
  std::shared_ptr<PlanKernels> kernels;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<Key, Entry, HashKey> entries;
};

Table& table() {
  static Table* const instance = new Table;  // engine threads may outlive statics
  return *instance;
}

std::shared_ptr<PlanKernels> slot_for(const CallsRun& run,
                                      std::shared_ptr<const DeviceCalls>& calls) {
  std::lock_guard lock(table().mutex);
  if (const auto found = table().entries.find(run.key()); found != table().entries.end()) {
    calls = found->second.calls;
    return found->second.kernels;
  }
  if (table().entries.size() >= kMaxEntries) table().entries.clear();
  calls = run.describe();
  return table()
      .entries.emplace(run.key(), Entry{calls, std::make_shared<PlanKernels>()})
      .first->second.kernels;
}

std::shared_ptr<const GroupKernels> kernels_for(const CallsRun& run, c10::Device device) {
  std::shared_ptr<const DeviceCalls> calls;
  const std::shared_ptr<PlanKernels> slot = slot_for(run, calls);
  const Variant variant{device.index(), 0};  // (alignment is part of the key)
  bool unknown = false;
  std::shared_ptr<const GroupKernels> kernels = slot->find(variant, unknown);
  if (unknown) {
    KernelRequest request;
    request.device = device.index();
    request.variant = variant;
    request.kernels = slot;
    request.calls = calls;
    for (const DeviceCalls::Call& call : calls->calls) request.ops.push_back(call.info->name);
    kernel_requests().ask(std::move(request));
  }
  return kernels;
}

void report(c10::ArrayRef<run::Node*> nodes, const CallsRun& run, const GroupKernels& kernels) {
  std::string text = "hand-written";
  for (const DeviceKernel& kernel : kernels.kernels) text += ' ' + kernel.name;
  report_group(nodes, run.elements(), run.bytes_not_written(), text);
}

}  // namespace

bool is_data(const run::OpInfo& op, size_t index, const c10::IValue& value) {
  if (op.args[index].kind != run::ArgKind::scalar) return value.isDouble();
  if (value.isList()) return true;
  if (!value.isScalar()) return false;
  const std::optional<c10::IValue>& usual = op.handle.schema().arguments()[index].default_value();
  return !usual || !usual->isScalar() || value.toScalar().isComplex() ||
         usual->toScalar().toDouble() != value.toScalar().toDouble();
}

bool run_by_hand(run::Node& node) {
  if (!is_chosen(node)) return false;
  run::Node* nodes[] = {&node};
  std::exception_ptr error;
  const Launched launched = launch_calls(nodes, [](const run::Value&) { return false; }, error);
  if (launched == Launched::partly) std::rethrow_exception(error);
  return launched == Launched::yes;
}

Launched launch_calls(c10::ArrayRef<run::Node*> nodes,
                      const std::function<bool(const run::Value&)>& is_dead,
                      std::exception_ptr& error) {
  size_t launched = 0;
  try {
    CallsRun run(nodes, is_dead);
    if (!run.find()) return Launched::no;
    const auto kernels = kernels_for(run, nodes[0]->device);
    if (!kernels) return Launched::no;
    // (Their upload would be captured as a copy from memory that others have by the next launch.)
    if (nodes[0]->captured && (!kernels->tables.empty() || kernels->draws)) return Launched::no;
    RECORD_FUNCTION("lazyeng::hand_written", c10::ArrayRef<const c10::IValue>());
    const c10::DeviceGuard here(nodes[0]->device);
    const run::OnStream on_stream(*nodes[0]);
    run.make_memory(*kernels);
    KernelRun launches(*nodes[0]);
    launches.make_partials(*kernels);
    const auto own = [&run](const KernelArgument& argument, LaunchArguments& arguments) {
      return run.bind(argument, arguments);
    };
    if (!run.begin_to_draw(*kernels) || !launches.bind(*kernels, own)) return Launched::no;
    const c10::SmallVector<const run::Node*, 8> all(nodes.begin(), nodes.end());
    const auto finish = [&] {
      run.end_drawing(*kernels);
      run.install();
    };
    launches.launch(all, *kernels, finish, launched);
    if (logging()) report(nodes, run, *kernels);
    stats().by_hand.fetch_add(nodes.size(), std::memory_order_relaxed);
    return Launched::yes;
  } catch (...) {
    // No memory, a lost device: torch's own kernel will tell.
    if (launched == 0) return Launched::no;
    error = as_torch_tells(std::current_exception());
    return Launched::partly;
  }
}

}  // namespace lazyeng::fuse
