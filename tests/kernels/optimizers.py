"""What the tests of the optimizers' kernels share: parameters, and steps of torch.optim."""

import torch
from lazyeng.triton_kernels._multi_tensor import SMALLEST_CHUNK

# Several chunks, one of them not full; odd; a scalar; nothing. Transposed below: (6, 4).
SHAPES = [(SMALLEST_CHUNK + 1500,), (3, 5), (), (0,), (6, 4)]


def parameters(device, dtypes=(torch.float32,)):
    """One of each shape and dtype; the last of each dtype is not contiguous."""
    made = []
    for dtype in dtypes:
        tensors = [torch.randn(shape, device=device).to(dtype) for shape in SHAPES]
        tensors[-1] = tensors[-1].t()
        made += tensors
    return made


def steps_of_torch(optimizer, params, all_grads, **options):
    """The parameters and states after torch's steps, and copies of them to start from."""
    ours, theirs = ([p.detach().clone() for p in params] for _ in range(2))
    made = optimizer([torch.nn.Parameter(p) for p in theirs], **options)
    for grads in all_grads:
        for param, grad in zip(made.param_groups[0]["params"], grads, strict=True):
            param.grad = grad.clone()
        made.step()
    after = made.param_groups[0]["params"]
    return ours, [p.detach() for p in after], [made.state[p] for p in after]


def gradients(params, steps=3):
    return [[torch.randn_like(p) for p in params] for _ in range(steps)]
