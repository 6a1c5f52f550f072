// csrc/record/metadata/plan_cache.cpp: what decides a plan, and the table of plans.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "csrc/record/metadata/infer.h"
#include "csrc/record/metadata/number_range.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/hash_words.h"

namespace lazyeng::record {
namespace {

constexpr size_t kMaxPlans = 1 << 15;

// Words that separate kinds, so that a list of ints never looks like an int.
enum Tag : uint64_t {
  none = 0xA1,
  integer,
  real,
  boolean,
  text,
  device,
  generator,
  list,
  tensor,
  complex
};

bool add_scalar_kinds(c10::ArrayRef<c10::IValue> numbers, PlanKey& key);

/// Of a number, or a list of numbers. False: it is something else.
bool add_scalar_kind(const c10::IValue& value, PlanKey& key) {
  if (value.isInt())
    key.push_back(Tag::integer);
  else if (value.isDouble())
    key.push_back(Tag::real);
  else if (value.isBool())
    key.push_back(Tag::boolean);
  else if (value.isComplexDouble())
    key.push_back(Tag::complex);
  else
    return value.isList() && add_scalar_kinds(value.toListRef(), key);
  return true;
}

bool add_scalar_kinds(c10::ArrayRef<c10::IValue> numbers, PlanKey& key) {
  key.push_back(Tag::list);
  key.push_back(numbers.size());
  return std::all_of(numbers.begin(), numbers.end(),
                     [&](const c10::IValue& number) { return add_scalar_kind(number, key); });
}

template <class List>
void add_list(const List& items, uint64_t tag, PlanKey& key) {
  key.push_back(Tag::list);
  key.push_back(tag);
  key.push_back(items.size());
  for (const auto& item : items) key.push_back(std::bit_cast<uint64_t>(item));
}

/// (Without copying the list.)
void add_ints(c10::ArrayRef<c10::IValue> items, PlanKey& key) {
  key.push_back(Tag::list);
  key.push_back(Tag::integer);
  key.push_back(items.size());
  for (const c10::IValue& item : items) key.push_back(static_cast<uint64_t>(item.toInt()));
}

void add_text(std::string_view text, PlanKey& key) {
  key.push_back(Tag::text);
  key.push_back(text.size());
  for (size_t at = 0; at < text.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    key.push_back(word);
  }
}

bool add_value(const c10::IValue& value, PlanKey& key) {
  if (value.isNone()) {
    key.push_back(Tag::none);
  } else if (value.isTensor() && !value.toTensor().defined()) {
    key.push_back(Tag::tensor);  // convolution without a bias, called by autograd
  } else if (value.isInt()) {
    key.push_back(Tag::integer);
    key.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    key.push_back(Tag::real);
    key.push_back(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isBool()) {
    key.push_back(Tag::boolean);
    key.push_back(value.toBool());
  } else if (value.isComplexDouble()) {
    key.push_back(Tag::complex);
    key.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().real()));
    key.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    add_text(value.toStringView(), key);
  } else if (value.isDevice()) {
    key.push_back(Tag::device);
    key.push_back(static_cast<uint64_t>(value.toDevice().type()) << 8 |
                  static_cast<uint8_t>(value.toDevice().index()));
  } else if (value.isGenerator()) {
    key.push_back(Tag::generator);
  } else if (value.isIntList()) {
    add_ints(value.toListRef(), key);
  } else if (value.isDoubleList()) {
    add_list(value.toDoubleVector(), Tag::real, key);
  } else if (value.isBoolList()) {
    const c10::List<bool> items = value.toBoolList();
    key.push_back(Tag::list);
    key.push_back(Tag::boolean);
    key.push_back(items.size());
    for (size_t i = 0; i < items.size(); ++i) key.push_back(items.get(i));
  } else {
    return false;
  }
  return true;
}

void add_pair(const Call& call, size_t i, size_t j, PlanKey& key) {
  const run::Geometry &a = *call.looks[i], &b = *call.looks[j];
  key.push_back(i << 32 | j);
  key.push_back(static_cast<uint64_t>(a.offset() - b.offset()));
  if (a.dtype() != b.dtype()) key.push_back(static_cast<uint64_t>(b.offset()));
}

/// Of two arguments, if one is written: whether they share memory decides overlap errors.
void add_sharing(const Call& call, size_t i, size_t j, PlanKey& key) {
  if ((call.tensors[i].written || call.tensors[j].written) && share_memory(call, i, j))
    add_pair(call, i, j, key);
}

/// The places of its tensors, those of each storage one after the other.
std::vector<std::vector<size_t>> by_storage(const Call& call) {
  std::unordered_map<const run::StorageVar*, size_t> known;
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (!call.tensors[i].value) continue;
    const auto [at, fresh] = known.try_emplace(&call.tensors[i].value->var(), groups.size());
    if (fresh) groups.emplace_back();
    groups[at->second].push_back(i);
  }
  return groups;
}

/// Of one storage: in the order in which they begin, those that overlap stand close together.
void add_overlaps(const Call& call, std::vector<size_t>& places, PlanKey& key) {
  const auto look = [&](size_t i) -> const run::Geometry& {
    return call.tensors[i].value->geometry();
  };
  const auto begin = [&](size_t i) { return look(i).extent_bytes() - look(i).span_bytes(); };
  std::ranges::stable_sort(places, {}, begin);
  for (auto one = places.begin(); one != places.end(); ++one) {
    const uint64_t end = look(*one).extent_bytes();
    for (auto other = one + 1; other != places.end() && begin(*other) < end; ++other)
      add_sharing(call, std::max(*one, *other), std::min(*one, *other), key);
  }
}

/// (Lists of an optimizer have thousands of tensors.)
void add_sharing(const Call& call, PlanKey& key) {
  constexpr size_t kFew = 16;
  if (call.tensors.size() > kFew && !call.info.offset_matters) {
    for (std::vector<size_t>& group : by_storage(call)) add_overlaps(call, group, key);
    return;
  }
  for (size_t i = 0; i < call.tensors.size(); ++i)
    for (size_t j = 0; j < i; ++j) add_sharing(call, i, j, key);
}

void add_whether_zero(const c10::IValue& number, PlanKey& key) {
  if (!number.isScalar()) return;
  const c10::Scalar scalar = number.toScalar();
  key.push_back(static_cast<uint64_t>(scalar.isBoolean() ? !scalar.toBool() : scalar.equal(0)));
}

/// What is no tensor.
bool add_others(const Call& call, PlanKey& key) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    const run::ArgInfo& info = call.info.args[i];
    if (info.is_data && number_fits(call, call.args[i]) && add_scalar_kind(call.args[i], key)) {
      if (info.zero_decides) add_whether_zero(call.args[i], key);
      continue;
    }
    if (!add_value(call.args[i], key)) return false;
  }
  return true;
}

/// Which casts are on, and to what.
uint64_t autocast_of_this_thread() {
  const run::CallerModes modes = run::CallerModes::of_this_thread();
  uint64_t key = 0;
  for (size_t i = 0; i < modes.casts_to.size(); ++i)
    key = key << 9 | (modes.casts(i) ? uint64_t{1} << 8 | static_cast<uint8_t>(modes.casts_to[i])
                                     : uint64_t{0});
  return key;
}

/// What decides results beside the arguments.
uint64_t settings_of_calls(const run::OpInfo& info) {
  const bool grad_mode = info.asks_grad_mode && c10::GradMode::is_enabled();
  const uint64_t autocast = info.calls_cast_ops || !info.torchs ? autocast_of_this_thread() : 0;
  // (A kernel of oneDNN's may keep another layout, or return what torch's own leaves out.)
  const bool onednn = info.torchs && at::globalContext().userEnabledMkldnn();
  return autocast << 10 | static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 2 |
         static_cast<uint64_t>(onednn) << 1 | static_cast<uint64_t>(grad_mode);
}

}  // namespace

uint64_t hash_of(const PlanKey& key) { return run::hash_words(key.data(), key.size()); }

bool make_kind_key(const Call& call, PlanKey& key) {
  key.push_back(reinterpret_cast<uint64_t>(&call.info));
  key.push_back(settings_of_calls(call.info));
  for (const run::GeometryRef& look : call.looks)
    key.push_back(look ? static_cast<uint64_t>(look->device().type()) << 16 |
                             static_cast<uint64_t>(look->dtype()) << 8 |
                             look->data().wrapped_number << 7 | look->sizes().size()
                       : ~uint64_t{0});
  return add_others(call, key);
}

bool may_be_nondeterministic() {
  const at::Context& context = at::globalContext();
  return !context.deterministicAlgorithms() || context.deterministicAlgorithmsWarnOnly();
}

bool make_key(const Call& call, PlanKey& key) {
  const run::OpInfo& info = call.info;
  key.push_back(reinterpret_cast<uint64_t>(&info));
  key.push_back(settings_of_calls(info) << 2 |
                static_cast<uint64_t>(may_be_nondeterministic()) << 1 |
                static_cast<uint64_t>(info.distrust_plans.load(std::memory_order_relaxed)));
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const run::Geometry* look = call.looks[i].get();
    key.push_back(
        reinterpret_cast<uint64_t>(look && !info.offset_matters ? &look->at_origin() : look));
    if (info.storage_size_matters && call.tensors[i].value)
      key.push_back(call.tensors[i].value->var().nbytes());
  }
  if (!add_others(call, key)) return false;
  if (info.work == run::Work::product) key.push_back(static_cast<uint64_t>(is_scaled(call)));
  if (info.writes) add_sharing(call, key);
  return true;
}

PlanCache::Entry* PlanCache::find_locked(const PlanKey& key, uint64_t hash) const {
  if (table_.empty()) return nullptr;
  const size_t mask = table_.size() - 1;
  for (size_t i = hash & mask; table_[i]; i = (i + 1) & mask)
    if (table_[i]->hash == hash && table_[i]->key == key) return table_[i].get();
  return nullptr;
}

CallPlanRef PlanCache::find(const PlanKey& key) const {
  const uint64_t hash = hash_of(key);
  std::lock_guard lock(mutex_);
  const Entry* entry = find_locked(key, hash);
  return entry && entry->plan->holds() ? entry->plan : nullptr;
}

void PlanCache::insert(const PlanKey& key, const Call& call, CallPlanRef plan) {
  const uint64_t hash = hash_of(key);
  auto entry = std::make_unique<Entry>();
  entry->key.assign(key.begin(), key.end());
  entry->hash = hash;
  entry->looks = call.looks;
  entry->plan = std::move(plan);
  Table dropped;  // what it holds goes after the lock
  std::lock_guard lock(mutex_);
  if (Entry* known = find_locked(key, hash)) return std::swap(known->plan, entry->plan);
  if (size_ >= kMaxPlans) {
    dropped.swap(table_);
    size_ = 0;
  }
  if (2 * (size_ + 1) > table_.size()) grow_locked();
  put_locked(std::move(entry));
  ++size_;
}

void PlanCache::put_locked(std::unique_ptr<Entry> entry) {
  const size_t mask = table_.size() - 1;
  size_t i = entry->hash & mask;
  while (table_[i]) i = (i + 1) & mask;
  table_[i] = std::move(entry);
}

void PlanCache::grow_locked() {
  Table old(table_.empty() ? 1024 : 2 * table_.size());
  old.swap(table_);
  for (std::unique_ptr<Entry>& entry : old)
    if (entry) put_locked(std::move(entry));
}

}  // namespace lazyeng::record
