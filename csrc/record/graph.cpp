// csrc/record/graph.cpp: finding the ops that have not run, and what they need of each other.
#include "csrc/record/graph.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "csrc/fuse/group.h"

namespace lazyeng::record {
namespace {

template <class F>
void for_each_var(const run::Node& node, F f) {
  for (const run::TensorArg& arg : node.tensors)
    if (arg.value) f(arg.value->var(), arg.written);
  for (const run::ValueRef& value : node.outputs)
    if (value) f(value->var(), true);
}

/// Collects nodes: those of the window, then what the engine has that writes, or waits for, a var
/// they name.
class Finder {
 public:
  void add_op(const Ref<engine::Op>& op, bool pushed) {
    if (auto* group = dynamic_cast<fuse::Group*>(op.get())) {
      const int number = groups_++;
      for (const fuse::Member& member : group->members) add_node(member.node, number, pushed);
    } else if (auto* node = dynamic_cast<run::Node*>(op.get())) {
      add_node(Ref<run::Node>(node), -1, pushed);
    }  // (anything else marks a place for somebody who waits)
  }

  void look_at(run::StorageVar& var) {
    if (looked_at_.insert(&var).second) vars_.push_back(&var);
  }

  Graph find() {
    while (!vars_.empty()) {
      run::StorageVar* const var = vars_.back();
      vars_.pop_back();
      for (const Ref<engine::Op>& op : var->pending_ops()) add_op(op, true);
    }
    std::sort(found_.begin(), found_.end(), [](const GraphNode& a, const GraphNode& b) {
      return a.node->number < b.node->number;
    });
    return std::move(found_);
  }

 private:
  void add_node(const Ref<run::Node>& node, int group, bool pushed) {
    if (!known_.insert(node.get()).second) return;
    found_.push_back({node, group, pushed, {}, {}});
    for_each_var(*node, [this](run::StorageVar& var, bool) { look_at(var); });
  }

  int groups_ = 0;
  Graph found_;
  std::unordered_set<const run::Node*> known_;
  std::unordered_set<const run::StorageVar*> looked_at_;
  std::vector<run::StorageVar*> vars_;  // kept alive by the nodes and by the caller
};

void add_once(std::vector<size_t>& list, size_t place) {
  if (std::find(list.begin(), list.end(), place) == list.end()) list.push_back(place);
}

/// What each node reads and follows, from the order of recording.
void connect(Graph& graph) {
  struct Last {
    std::vector<size_t> readers;  // of the newest version
    size_t writer = 0;
    bool written = false;
  };
  std::unordered_map<const run::StorageVar*, Last> last;
  for (size_t i = 0; i < graph.size(); ++i) {
    GraphNode& node = graph[i];
    const auto overwrites = [&](run::StorageVar& var) {
      return std::any_of(node.node->tensors.begin(), node.node->tensors.end(),
                         [&](const run::TensorArg& arg) {
                           return arg.value && &arg.value->var() == &var && arg.overwrites_memory();
                         });
    };
    for_each_var(*node.node, [&](run::StorageVar& var, bool) {
      const Last& before = last[&var];
      if (before.written) add_once(overwrites(var) ? node.follows : node.reads, before.writer);
    });
    for_each_var(*node.node, [&](run::StorageVar& var, bool written) {
      Last& now = last[&var];
      if (!written) return now.readers.push_back(i);
      for (size_t reader : now.readers)
        if (reader != i) add_once(node.follows, reader);
      now = {{}, i, true};
    });
  }
}

/// Only the nodes that one of `vars` needs.
Graph needed_for(const Graph& graph, const std::vector<run::StorageVarRef>& vars) {
  std::unordered_set<const run::StorageVar*> wanted;
  for (const run::StorageVarRef& var : vars) wanted.insert(var.get());
  std::vector<bool> needed(graph.size());
  for (size_t i = graph.size(); i-- > 0;) {
    for_each_var(*graph[i].node, [&](run::StorageVar& var, bool written) {
      if (written && wanted.contains(&var)) needed[i] = true;
    });
    if (!needed[i]) continue;
    for (size_t before : graph[i].reads) needed[before] = true;
    for (size_t before : graph[i].follows) needed[before] = true;
  }
  std::vector<size_t> place(graph.size());
  Graph kept;
  for (size_t i = 0; i < graph.size(); ++i) {
    if (!needed[i]) continue;
    place[i] = kept.size();
    kept.push_back(graph[i]);
    for (size_t& before : kept.back().reads) before = place[before];
    for (size_t& before : kept.back().follows) before = place[before];
  }
  return kept;
}

}  // namespace

Graph make_graph(const std::vector<Ref<engine::Op>>& window,
                 const std::vector<run::StorageVarRef>& vars) {
  Finder finder;
  for (const Ref<engine::Op>& op : window) finder.add_op(op, false);
  for (const run::StorageVarRef& var : vars) finder.look_at(*var);
  Graph graph = finder.find();
  connect(graph);
  return vars.empty() ? graph : needed_for(graph, vars);
}

}  // namespace lazyeng::record
