// csrc/record/metadata/index_put_arguments.cpp: the checks of sizes that
// ATen/native/IndexingUtils.h and TensorAdvancedIndexing.cpp make.
#include "csrc/record/metadata/index_put_arguments.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lazyeng::record {
namespace {

constexpr std::array<std::string_view, 4> kForms = {
    "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"};

/// A size that values tell: of what a mask chooses.
constexpr int64_t kAny = -1;

using Sizes = c10::SmallVector<int64_t, 6>;

/// False: they do not broadcast.
bool broadcast(c10::IntArrayRef with, Sizes& common) {
  if (common.size() < with.size()) common.insert(common.begin(), with.size() - common.size(), 1);
  for (size_t i = 0; i < with.size(); ++i) {
    int64_t& size = common[common.size() - with.size() + i];
    if (size == 1 || (size == kAny && with[i] != 1))
      size = with[i];
    else if (with[i] != 1 && with[i] != size && with[i] != kAny)
      return false;
  }
  return true;
}

bool expands_to(c10::IntArrayRef sizes, c10::IntArrayRef wanted) {
  if (sizes.size() > wanted.size()) return false;
  return std::equal(sizes.rbegin(), sizes.rend(), wanted.rbegin(),
                    [](int64_t size, int64_t to) { return size == 1 || size == to || to == kAny; });
}

bool is_mask(const run::Geometry& index) {
  return index.dtype() == c10::kBool || index.dtype() == c10::kByte;
}

/// What is written, in self's dims: those before the first index, those that indices choose from,
/// and the others.
class IndexedPlace {
 public:
  explicit IndexedPlace(c10::IntArrayRef self) : self_(self) {}

  /// The next of the call's indices; null: all of that dim. False: it does not fit.
  bool add(const run::GeometryRef& index) {
    if (!index) return dim_ < self_.size() && keep_dim();
    const size_t taken = is_mask(*index) ? index->sizes().size() : 1;
    if (taken == 0 || dim_ + taken > self_.size()) return false;
    if (is_mask(*index) ? index->sizes() != self_.slice(dim_, taken) : self_[dim_] == 0)
      return false;
    is_apart_ |= indexed_ && !after_.empty();
    indexed_ = true;
    dim_ += taken;
    return broadcast(is_mask(*index) ? c10::IntArrayRef(kAny) : index->sizes(), chosen_);
  }

  /// After the last one.
  bool takes(c10::IntArrayRef values) {
    while (dim_ < self_.size()) keep_dim();
    Sizes place = is_apart_ ? chosen_ : before_;
    const Sizes& next = is_apart_ ? before_ : chosen_;
    place.append(next.begin(), next.end());
    place.append(after_.begin(), after_.end());
    return indexed_ && expands_to(values, place);
  }

 private:
  bool keep_dim() {
    (indexed_ ? after_ : before_).push_back(self_[dim_++]);
    return true;
  }

  const c10::IntArrayRef self_;
  size_t dim_ = 0;
  Sizes before_, chosen_, after_;
  bool indexed_ = false;
  bool is_apart_ = false;  // what indices choose comes first then
};

/// In place, of self's own memory. (Of dense tensors; of others torch cannot tell.)
bool reads_what_it_writes(const Call& call) {
  for (size_t i = 1; call.tensors[0].written && i < call.tensors.size(); ++i)
    if (call.looks[i] && call.looks[i]->dense() && call.looks[0]->dense() &&
        share_memory(call, 0, i))
      return true;
  return false;
}

}  // namespace

bool index_put_may_be_refused(const Call& call) {
  if (std::ranges::find(kForms, call.info.base) == kForms.end()) return false;
  const auto count = static_cast<size_t>(call.args[1].toInt());
  const run::GeometryRef &self = call.looks[0], &values = call.looks[count + 1];
  if (!self || !values || self->dtype() != values->dtype()) return true;
  if (reads_what_it_writes(call)) return true;
  IndexedPlace place(self->sizes());
  for (size_t i = 1; i <= count; ++i)
    if (!place.add(call.looks[i])) return true;
  return !place.takes(values->sizes());
}

}  // namespace lazyeng::record
