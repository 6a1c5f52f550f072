"""Dropout whose mask is not stored: the backward makes it again from the same seed.

The random numbers are Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): a function of key and counter, so any program can make any element's number. Element
4 i + j is kept if the j-th number for the key `seed` and the counter (offset, i) is small enough.

They are not the numbers of torch's own dropout. That is Philox too, and a program here draws what
curand_uniform4 would for subsequence i; but torch lets a thread draw for several elements, by a
vector width and a grid that depend on dtype, alignment and GPU, and takes seed and offset from its
generator, which this does not touch. So give each call its own seed or offset.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from . import _launch

OP = "dropout"


@triton.jit
def dropout_kernel(x_ptr, y_ptr, n_elements, seed: tl.int64, offset: tl.int64,  # pyright: ignore[reportInvalidTypeForm]
                   keep: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                   COMPUTE: tl.constexpr, GROUPS: tl.constexpr):  # fmt: skip
    """4 GROUPS elements a program: one counter gives four numbers, and all are used."""
    block = tl.program_id(0).to(tl.int64) * GROUPS
    groups = block + tl.arange(0, GROUPS)
    zeros = tl.zeros([GROUPS], tl.int64)
    low, high = zeros + offset, (zeros + offset) >> 32
    r0, r1, r2, r3 = tl.philox(seed, low.to(tl.uint32), high.to(tl.uint32), groups.to(tl.uint32),
                               (groups >> 32).to(tl.uint32))  # fmt: skip
    # r0[0], r1[0], r2[0], r3[0], r0[1], ...: neighbours in memory stay in one thread, so loads and
    # stores are wide.
    random = tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))
    # The upper 24 bits are a float32 exactly: multiples of 2^-24 in [0, 1).
    uniform = (random >> 8).to(tl.int32).to(tl.float32) * (1.0 / 16777216.0)
    offsets = block * 4 + tl.arange(0, 4 * GROUPS)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    y = tl.where(uniform < tl.full((), keep, tl.float32), x / tl.full((), keep, COMPUTE), 0.0)
    tl.store(y_ptr + offsets, y, mask=mask)


@_launch.recorded(lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
def dropout_forward(x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    """y, contiguous, of x's shape and dtype; its own backward, given dy in place of x."""
    _check(x, p, seed, offset)
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        groups = 256
        _launch.launch(
            dropout_kernel, (triton.cdiv(x.numel(), 4 * groups),), x, y, x.numel(), seed, offset,
            1.0 - p, COMPUTE=_launch.compute_type(x), GROUPS=groups, elements=4 * groups,
        )  # fmt: skip
    return y


def _check(x, p, seed, offset) -> None:
    _launch.check_tensors(OP, x=x)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"[{OP}] p is out of range, got {p}, expected 0.0 to 1.0")
    for name, value in (("seed", seed), ("offset", offset)):
        if not 0 <= value < 2**63:
            raise ValueError(f"[{OP}] {name} is out of range, got {value}, expected 0 to 2**63 - 1")


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed, offset):
        ctx.arguments = (p, seed, offset)
        return dropout_forward(x, p, seed, offset)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        # The derivative is the mask times 1 / (1 - p): dropout again.
        return dropout_forward(dy, *ctx.arguments), None, None, None


def dropout(
    x: torch.Tensor, p: float = 0.5, *, seed: int, offset: int = 0, training: bool = True
) -> torch.Tensor:
    """Zeros with probability p, else x / (1 - p); x itself without `training`.

    x of any shape, float32, bfloat16, float16 (computed in float32) or float64 -> the same. The
    mask depends on seed, offset (0 to 2^63 - 1 each) and an element's index in contiguous order
    alone, not on dtype or device; another seed or offset gives an independent one. Raises
    ValueError for p, seed and offset, NotImplementedError for the dtype, RuntimeError for a device
    without Triton.
    """
    _check(x, p, seed, offset)
    return _Dropout.apply(x, p, seed, offset) if training else x
