// csrc/record/special/autocast.h: autocast of what torch.func wraps around lazy tensors.
//
// A lazy tensor has the autocast key of the device where its memory is. A wrapper of torch.func
// takes its keys from the backend of what it wraps: it has AutocastPrivateUse1, which nobody turns
// on. So this key is on while autocast of a device is, and its kernels go on with the rule that the
// device has for the op.
#pragma once

namespace lazyeng::record {

/// Registers a kernel for each op that autocast of the CPU or of CUDA has a rule for. Once per
/// process.
void register_autocast();

/// To be called when autocast has been turned on or off in this thread.
void follow_autocast();

}  // namespace lazyeng::record
