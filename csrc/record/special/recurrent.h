// csrc/record/special/recurrent.h: recurrent layers on CUDA devices.
#pragma once

namespace lazyeng::record {

/// Registers kernels for lstm, gru, rnn_tanh and rnn_relu, whose decomposition by torch looks, on
/// CUDA devices, at the memory of the weights. Once per process.
void register_recurrent_layers();

}  // namespace lazyeng::record
