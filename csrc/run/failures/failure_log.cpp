// csrc/run/failures/failure_log.cpp: who tells of a failure, and until when that is known.
#include "csrc/run/failures/failure_log.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::run {

using namespace std::chrono_literals;

namespace {

/// Each root once: every op that it reaches may have logged it.
std::vector<std::shared_ptr<FailureRoot>> in_order_of_creation(
    std::vector<std::shared_ptr<FailureRoot>> roots) {
  std::sort(roots.begin(), roots.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return roots;
}

/// Whether somebody holds a plain tensor over the memory. A worker may have it for a moment, when
/// it has done an op: so it is looked at again. GIL; no locks.
bool is_seen(const Ref<engine::Var>& var) {
  constexpr std::chrono::microseconds kPauses[] = {0us, 50us, 200us, 1000us};
  return std::ranges::all_of(kPauses, [&](std::chrono::microseconds pause) {
    if (pause.count() > 0) {
      const NoGil released;
      std::this_thread::sleep_for(pause);
    }
    return plain_storages().is_held(static_cast<StorageVar&>(*var));
  });
}

// Some thousand bytes each.
constexpr size_t kMostDropped = 10'000;

}  // namespace

void FailureLog::add(const std::shared_ptr<FailureRoot>& root, Holder holder) {
  if (holder == Holder::tensor) return add({.kind = Item::Kind::held, .root = root});
  add({.kind = Item::Kind::dropped, .root = root, .kept = root});
}

void FailureLog::add_of_block(const std::shared_ptr<FailureRoot>& root, uint64_t block,
                              std::vector<Ref<engine::Var>> plain) {
  add({.kind = Item::Kind::of_block,
       .root = root,
       .kept = root,
       .block = block,
       .plain = std::move(plain)});
}

void FailureLog::add_shared(const std::shared_ptr<FailureRoot>& root, uint64_t block,
                            std::vector<Ref<engine::Var>> shared) {
  add({.kind = Item::Kind::shared, .root = root, .block = block, .plain = std::move(shared)});
}

void FailureLog::add(Item item) {
  std::vector<Item> over;  // dropped after the lock: a root's destructor may take the GIL
  std::vector<Ref<engine::Var>> not_held;
  if (const std::shared_ptr<FailureRoot> root = item.root.lock())
    item.autograd_node = root->autograd_node;
  std::lock_guard lock(mutex_);
  if (!is_open_locked(item.block)) not_held.swap(item.plain);
  if (items_.size() >= sweep_at_) {
    over = take_over_locked();
    sweep_at_ = std::max<size_t>(64, 2 * items_.size());
  }
  items_.push_back(std::move(item));
  note_locked(items_.back());
}

void FailureLog::note_locked(const Item& item) {
  if (item.autograd_node != 0) by_autograd_node_[item.autograd_node] = item.root;
}

void FailureLog::set_items_locked(std::vector<Item> items) {
  items_ = std::move(items);
  by_autograd_node_.clear();
  for (const Item& item : items_) note_locked(item);
}

/// What needs to be kept no longer.
std::vector<FailureLog::Item> FailureLog::take_over_locked() {
  const auto dropped =
      static_cast<size_t>(std::ranges::count(items_, Item::Kind::dropped, &Item::kind));
  size_t too_many = dropped > kMostDropped ? dropped - kMostDropped / 2 : 0;
  std::vector<Item> over, left;
  for (Item& item : items_) {
    const bool forget = too_many > 0 && item.kind == Item::Kind::dropped;
    too_many -= forget ? 1 : 0;
    (forget || item.is_over() ? over : left).push_back(std::move(item));
  }
  set_items_locked(std::move(left));
  return over;
}

std::shared_ptr<FailureRoot> FailureLog::of_autograd_node(uint64_t node) {
  std::lock_guard lock(mutex_);
  const auto found = by_autograd_node_.find(node);
  return found == by_autograd_node_.end() ? nullptr : found->second.lock();
}

FailureLog::Unreported FailureLog::unreported() {
  Unreported found;
  {
    std::lock_guard lock(mutex_);
    found.items.swap(items_);
    std::vector<Item> left;
    for (Item& item : found.items)  // (one of a block is reported once, and stays until its end)
      if (!item.plain.empty())
        left.push_back({item.kind, item.root, item.kept, item.block, std::move(item.plain),
                        item.autograd_node});
    set_items_locked(std::move(left));
  }
  for (Item& item : found.items) {
    if (item.kind == Item::Kind::shared) continue;  // (it is there once more, for its lazy tensor)
    if (auto root = item.root.lock(); root && !root->reported)
      found.roots.push_back(std::move(root));
  }
  found.roots = in_order_of_creation(std::move(found.roots));
  return found;
}

void FailureLog::put_back(Unreported unreported) {
  std::lock_guard lock(mutex_);
  std::move(items_.begin(), items_.end(), std::back_inserter(unreported.items));
  set_items_locked(std::move(unreported.items));
}

std::vector<std::shared_ptr<FailureRoot>> FailureLog::of_block(uint64_t block) {
  std::vector<std::shared_ptr<FailureRoot>> result;
  std::vector<std::pair<std::shared_ptr<FailureRoot>, std::vector<Ref<engine::Var>>>> shared;
  {
    std::lock_guard lock(mutex_);
    for (const Item& item : items_) {
      if (!item.is_of_block() || item.block != block) continue;
      if (item.kind == Item::Kind::shared)
        shared.emplace_back(item.root.lock(), item.plain);
      else
        result.push_back(item.kept);
    }
  }
  for (auto& [root, vars] : shared)
    if (root && std::ranges::any_of(vars, is_seen) && std::ranges::count(result, root) == 0)
      result.push_back(std::move(root));
  return in_order_of_creation(std::move(result));
}

void FailureLog::enter_block(uint64_t block) {
  std::lock_guard lock(mutex_);
  open_blocks_.push_back(block);
}

std::vector<Ref<engine::Var>> FailureLog::leave_block(uint64_t block) {
  std::vector<Ref<engine::Var>> left, shared, forgotten;
  {
    std::lock_guard lock(mutex_);
    std::erase(open_blocks_, block);
    for (Item& item : items_) {
      if (item.plain.empty() || item.block != block) continue;
      std::move(item.plain.begin(), item.plain.end(),
                std::back_inserter(item.kind == Item::Kind::shared ? shared : left));
      item.plain.clear();
    }
  }
  // (What lazy tensors alone have stays failed.)
  std::ranges::copy_if(shared, std::back_inserter(left), is_seen);
  std::lock_guard lock(mutex_);
  for (const Ref<engine::Var>& var : left)
    if (!is_held_locked(*var)) forgotten.push_back(var);
  return forgotten;
}

std::vector<uint64_t> FailureLog::open_blocks() {
  std::lock_guard lock(mutex_);
  return open_blocks_;
}

bool FailureLog::is_open_locked(uint64_t block) const {
  return std::find(open_blocks_.begin(), open_blocks_.end(), block) != open_blocks_.end();
}

bool FailureLog::is_held_locked(const engine::Var& var) const {
  return std::any_of(items_.begin(), items_.end(), [&](const Item& item) {
    return std::any_of(item.plain.begin(), item.plain.end(),
                       [&](const Ref<engine::Var>& held) { return held.get() == &var; });
  });
}

FailureLog& failure_log() {
  static FailureLog* const instance = new FailureLog;  // engine threads may outlive statics
  return *instance;
}

}  // namespace lazyeng::run
