// csrc/record/metadata/stand_ins.h: tensors in place of a call's arguments, for asking what an op
// returns.
//
// Arguments that share a storage get stand-ins that share one, so that views are recognised and
// overlaps are complained about.
#pragma once

#include <optional>

#include "csrc/record/call.h"

namespace lazyeng::record {

class StandIns {
 public:
  /// Who is asked: each wants tensors of its own kind.
  enum class For : uint8_t {
    structured_meta,  ///< tensors of the device "lazyeng" without memory
    meta,             ///< tensors of torch's meta device
    kernel,           ///< real tensors
    one_element,      ///< real tensors of the recorded rank, every dim of one element
    usual_dtypes,     ///< the same, of usual_dtypes()
    floats,           ///< the same, of float_dtypes()
  };

  /// Real tensors hold ones, or `integers` if their dtype is integral (0: indices, 1: divisors).
  StandIns(const Call& call, For whom, int integers = 0);

  /// The call's arguments with stand-ins in the places of tensors.
  torch::jit::Stack arguments() const;
  /// One per tensor of the call; undefined where that is.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// What stand-in `i`, or a view of it, looks like, as told of the tensor that it stands for.
  run::GeometryRef look_of(const at::Tensor& stand_in, size_t i) const;
  /// Each stand-in is still a tensor over the storage that it was given.
  bool kept_storages() const;

 private:
  bool has_stand_in(size_t i) const;
  at::Tensor make(size_t i);
  at::Tensor make_one_element(const run::Geometry& look, c10::ScalarType dtype) const;
  c10::Storage storage_for(size_t i);
  void place_in_small_storages();
  int64_t elements_before(c10::ArrayRef<size_t> sharing) const;
  c10::IValue list_at(size_t first, int64_t length, bool optional) const;

  const Call& call_;
  const For whom_;
  const int integers_;
  std::vector<at::Tensor> tensors_;
  std::vector<c10::Storage> storages_;  // of each tensor
  std::vector<int64_t> moved_by_;       // elements by which the stand-in's offset is smaller
};

/// How long a trial of a kernel may take.
enum class TrialSize : uint8_t {
  brief,     ///< less than the meta function
  any_sane,  ///< as long as the call itself, unless it is huge
};

/// The stand-ins for a kernel would be small enough, and the kernel is known to look at nothing
/// that they lack.
bool kernel_can_be_tried(const Call& call, TrialSize size = TrialSize::brief);

/// For each tensor a dtype that its kernel takes if it wants one for all: that of the first tensor
/// that is floating or complex, or else of the first; and int64 for an index, bool for a mask. A
/// number keeps its own.
std::vector<c10::ScalarType> usual_dtypes(const Call& call);
/// The same with float32, and int64 also for a target.
std::vector<c10::ScalarType> float_dtypes(const Call& call);

/// The op returns views of what it gets, writes nothing and looks at no memory.
bool only_makes_views(const run::OpInfo& info);

/// A tensor without memory: of the device "lazyeng" for structured metas, else of torch's meta.
at::Tensor without_memory(StandIns::For whom, const c10::Storage& storage,
                          const run::GeometryData& g);
c10::Storage no_memory(StandIns::For whom, uint64_t nbytes);

}  // namespace lazyeng::record
