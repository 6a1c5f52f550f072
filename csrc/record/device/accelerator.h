// csrc/record/device/accelerator.h: the accelerator that torch had before us, or none, stays
// torch's.
//
// at::getAccelerator() names one device type for the process, and as soon as the PrivateUse1
// backend has a name, that one. Autograd takes streams from the accelerator only, so every
// backward through CUDA tensors, ours or not, would fail with "opt_ready_stream &&
// opt_parent_stream INTERNAL ASSERT FAILED" (pytorch/pytorch#161129, torch 2.8 and later). Pinning
// and torch.accelerator ask the same function. Without a GPU, programs that never heard of us would
// find an accelerator that has no memory and no streams: torch.utils.benchmark synchronizes it,
// FSDP and checkpoints of torch.distributed move tensors there. Nothing in torch lets a backend
// decline.
#pragma once

namespace lazyeng::record {

/// To be called before PrivateUse1 is named. False: naming it would take CUDA's place.
bool keep_accelerator();

}  // namespace lazyeng::record
