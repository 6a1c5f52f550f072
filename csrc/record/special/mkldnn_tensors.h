// csrc/record/special/mkldnn_tensors.h: calls of dense tensors beside MKLDNN ones.
//
// `linear(x.to_mkldnn(), weight)` goes by the dispatch key of x to oneDNN's kernel, past ours, and
// that looks at the memory of the weight. So in front of each such kernel stands one that waits for
// what is dense and hands over plain tensors. Tensors of MKLDNN themselves are never lazy.
#pragma once

namespace lazyeng::record {

/// Once per process.
void register_mkldnn_tensors();

}  // namespace lazyeng::record
