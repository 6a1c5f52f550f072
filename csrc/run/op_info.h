// csrc/run/op_info.h: what the schema of an op says, read once per op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <string>
#include <vector>

namespace lazyeng::run {

enum class ArgKind : uint8_t {
  tensor,                ///< Tensor, Tensor?
  tensor_list,           ///< Tensor[]
  tensor_lists,          ///< Tensor[][]
  optional_tensor_list,  ///< Tensor?[]
  generator,
  device,
  scalar,
  other,
};

constexpr bool is_list(ArgKind kind) {
  return kind == ArgKind::tensor_list || kind == ArgKind::tensor_lists ||
         kind == ArgKind::optional_tensor_list;
}

/// What an Optional is of; any other type itself.
c10::TypePtr without_optional(c10::TypePtr type);

struct ArgInfo {
  ArgKind kind = ArgKind::other;
  bool write = false;  ///< annotated as written: Tensor(a!)
  /// Every element is replaced unseen: an `out=` argument, or self of copy_, zero_, normal_ ...
  bool overwritten = false;
  bool silent = false;   ///< written, but torch does not count it as a change
  bool counts = false;   ///< integers that may be sizes or dims: no dtype, layout or memory format
  bool is_data = false;  ///< a number, which decides no plan as long as the op's dtypes can hold it
  bool zero_decides = false;  ///< such a number of which it matters whether it is 0
};

struct ReturnInfo {
  bool tensor = false;  ///< Tensor or Tensor[]
  bool list = false;
  bool number = false;  ///< a SymInt of aten: known from shapes, as torch's tracers have to know it
  bool optional = false;
  int written_arg = -1;    ///< returns this written argument itself
  bool may_alias = false;  ///< annotated as a view: Tensor(a)
};

/// What decides the order of arithmetic of an op's kernel (csrc/run/cores/width.h).
enum class Work : uint8_t {
  other,     ///< perhaps values
  copies,    ///< there is no arithmetic
  lookups,   ///< nor here; each element is looked up by itself
  elements,  ///< each element of the result is made by itself
  rows,      ///< each row of the result is made by itself
  product,   ///< of matrices
  convolution,
  recurrent,  ///< a layer of oneDNN, step by step
  windows,    ///< each image, or channel, of the result is made by itself, from windows of others
};

/// An op of torch.distributed: a backend goes on with it on threads, or streams, of its own.
enum class Collectivity : uint8_t {
  none,
  functional,  ///< its results are waited for one by one (_c10d_functional::wait_tensor)
  work,        ///< it returns a Work besides, which is waited for; ReturnInfo leaves that out
};

/// Views that csrc/record/metadata/offset_views.h knows.
enum class OffsetView : uint8_t { none, select, slice };

struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& handle);
  OpInfo(const OpInfo&) = delete;

  c10::OperatorHandle handle;
  std::string name;        ///< "aten::mm", "aten::add.out"
  std::string base;        ///< "aten::mm", "aten::add": without the overload
  std::string short_name;  ///< "mm"
  std::string torch_name;  ///< "aten.mm", "aten.add.out": as torch.ops spells it
  std::vector<ArgInfo> args;
  std::vector<ReturnInfo> returns;

  Work work = Work::other;
  /// The same op with `out=`: of what slices.h takes apart.
  std::optional<c10::OperatorHandle> out_form;
  OffsetView offset_view = OffsetView::none;
  bool aten = false;
  bool torchs = false;  ///< of aten or prims, whose meta functions are torch's own and may be wrong
  bool writes = false;  ///< some argument is written
  bool random = false;  ///< draws from a generator
  int dropout_arg = -1;  ///< its share of dropped elements, named dropout_p: 0 draws none
  Collectivity collective = Collectivity::none;
  bool takes_generator = false;
  bool takes_out = false;        ///< has an `out=`, which kernels of losses resize for a while
  bool data_dependent = false;   ///< shapes or results depend on values
  bool indexes = false;          ///< data dependent only if an index is a mask
  bool shows_values = false;     ///< its kernel has waited for the device whenever it returns
  bool returns_plain = false;    ///< some return is no tensor, and only a run tells what it is
  bool metadata_only = false;    ///< looks at shapes and the like, never at values or memory
  bool crosses_devices = false;  ///< copies one tensor to the device of another, or to one named
  bool checks_values = false;    ///< returns nothing and writes nothing: exists to raise
  bool reports_info = false;     ///< has a result called "info" that a later check looks at
  bool structured_meta = false;  ///< the C++ structured meta function can be asked
  int dtype_arg = -1;            ///< which argument is "dtype"
  bool storage_size_matters = false;  ///< shapes depend on, or are checked against, storage size
  /// What it returns depends on where in their storage its arguments lie. (The offset of a view
  /// counts from that of its argument in all other ops.)
  bool offset_matters = false;
  const char* ignored_warning = nullptr;  ///< text of one that is about the form of our calls
  bool meta_forgets_layout = false;  ///< the kernel keeps channels last, the meta function does not
  bool looks_at_grad = false;        ///< its kernel keeps something if an argument requires grad
  bool other_on_one_core = false;    ///< in so few elements that no trial may show it
  bool asks_grad_mode = false;       ///< what it returns depends on whether grad mode is on
  bool calls_cast_ops = false;       ///< what it returns depends on autocast, in its own kernel
  bool wrong_meta = false;  ///< the meta function is known to tell something else than the kernel
  /// Its kernels read and write where values of an argument point, without a check: a workspace, or
  /// LAPACK's row numbers. Never called with made-up arguments.
  bool trusts_contents = false;
  /// Likewise rows of its result: looked_up_rows.h.
  bool trusts_rows = false;
  /// Of its first tensor it takes some rows or elements: that may be much larger than what it does.
  bool takes_some_of_first = false;
  /// Its IndexErrors are of values: by its looks the meta function has refused what is refused.
  bool looks_up_by_values = false;
  bool pointwise = false;  ///< by torch's tag
  bool reduction = false;  ///< likewise
  bool fans_out = false;   ///< its kernel starts helpers for tensors of any size
  /// Its kernel may be asked about smaller tensors than it is called with.
  bool checks_sizes = false;
  bool looks_once = false;  ///< its kernel takes time linear in the size of what it gets
  /// On the CPU it is made of other ops, and so it is on the meta device: that tells the truth.
  bool made_of_ops = false;
  bool cpp_meta = false;  ///< (of these) without any Python
  /// The ops that its kernel is made of move the versions of what it writes; torch does no more.
  bool bumps_inside = false;
  bool moves_metadata = false;  ///< changes the metadata of what it writes (transpose_, squeeze_)
  /// Set once there was no meta function to ask: it is not looked for again.
  mutable std::atomic<bool> lacks_meta{false};
  /// Set once a run returned another shape, dtype or class than was recorded: from then on the op
  /// is run to learn what it returns. (Other strides are repaired: doubts.h.)
  mutable std::atomic<bool> distrust_plans{false};
  /// The op was taken back, and may have been defined anew: ops recorded before it refer to this.
  mutable std::atomic<bool> outdated{false};
  /// What csrc/fuse/op_table.cpp has found for the op; null: not looked up yet.
  mutable std::atomic<const void*> fuse_rule{nullptr};

 private:
  void read_names();
  void read_arguments();
  void read_returns();
  void read_work();
  void read_tags();
  void read_tables();
  void read_kernels();
};

}  // namespace lazyeng::run
