// csrc/run/doubts.h: which calls have returned something else than was expected of them.
//
// A meta function that is wrong about one call is wrong about others like it, of other sizes. But
// not about all calls of the op: who multiplies an expanded mask once need not learn by runs, from
// then on, what each product of numbers looks like. record/metadata/doubts.h tells which calls have
// the same cause.
#pragma once

#include <cstdint>

namespace lazyeng::run {

/// The hash of what all calls of a kind have in common. 0: there is nothing to be doubted.
using DoubtedKind = uint64_t;

struct Doubts {
  /// A result had other strides than its plan said: plans come from runs.
  bool layouts = false;
  /// The structured meta function refused what a run then accepted: it is not asked again.
  bool structured = false;
};

/// Any thread, as are all of these.
Doubts doubts_of(DoubtedKind kind);
void doubt_layouts(DoubtedKind kind);
void doubt_structured_meta(DoubtedKind kind);

/// Changes when layouts of that kind are doubted, and now and then when those of another are: what
/// was planned before is asked for once more.
uint32_t doubts_stamp(DoubtedKind kind);

}  // namespace lazyeng::run
