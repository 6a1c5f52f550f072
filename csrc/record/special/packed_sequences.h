// csrc/record/special/packed_sequences.h: torch.nn.utils.rnn.pack_padded_sequence.
#pragma once

namespace lazyeng::record {

/// Registers a kernel for _pack_padded_sequence that needs the lengths alone: the padded tensor,
/// the embedding of a batch mostly, may be pending. Once per process.
void register_packed_sequences();

}  // namespace lazyeng::record
