// csrc/fuse/chosen_ops.h: which ops have kernels of their own, alone, in pairs, and in chains over
// lists of tensors.
//
// The table is Python's (lazyeng/fuse/chosen/table.py); it is told once, at start. Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "csrc/run/node.h"

namespace lazyeng::fuse {

using Pairs = std::vector<std::pair<std::string, std::string>>;
void set_chosen_ops(const std::vector<std::string>& alone, const Pairs& pairs,
                    const std::vector<std::string>& lists);

/// Whether a hand-written kernel may run the node.
bool is_chosen(const run::Node& node);
/// Whether one may run the node together with a later one that reads what it makes.
bool begins_pair(const run::Node& node);
/// Whether `second` is one that `first`, which begins a pair, may run together with: its first
/// tensor is what `first` makes, perhaps reshaped.
bool are_pair(const run::Node& first, const run::Node& second);

/// The number of tensors in each of its lists, if one kernel may run the node together with others
/// over as many; else 0. It has no other tensors; element i of what it makes depends on the
/// elements i of its lists.
int64_t lists_of(const run::Node& node);

}  // namespace lazyeng::fuse
