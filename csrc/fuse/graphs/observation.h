// csrc/fuse/graphs/observation.h: what a CUDA graph depends on, of one segment.
#pragma once

#include <optional>
#include <vector>

#include "csrc/fuse/graphs/segment.h"
#include "csrc/fuse/key.h"

namespace lazyeng::fuse {

/// Vars stand in the order of the segment's claims.
struct Observation {
  /// Settings of the process that decide which kernels run, the numbers of all calls, and how large
  /// the memory of the inputs is.
  Key numbers;
  std::vector<size_t> ends;            ///< in numbers, of the settings and of each node
  std::vector<const char*> addresses;  ///< null: the segment makes the var
  std::vector<uint64_t> sizes;         ///< of these, in bytes
  std::vector<bool> written;
  std::vector<bool> held;  ///< somebody else can still ask for it
};

/// Nothing: this one has to run as its ops. On the engine thread that may run the segment.
std::optional<Observation> observe(Segment& segment);
/// Whether the settings are still those.
bool has_settings_of(const Observation& before);

}  // namespace lazyeng::fuse
