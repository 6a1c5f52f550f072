"""Dropout. The random numbers are Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", 2011): a function of key and counter, so any program can make any element's number.

``dropout`` stores no mask: the backward makes it again from the same seed. Element 4 i + j is kept
if the j-th number for the key `seed` and the counter (offset, i) is small enough. These are not the
numbers of torch's own dropout, so give each call its own seed or offset.

``native_dropout`` makes the mask that torch's CUDA kernel makes. That is Philox too, by curand: a
thread draws four numbers at a time, for neighbours in memory or, where the elements do not fall
into whole vectors, for elements as far from each other as there are threads. `Drawing` says how.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from . import _launch
from ._drawing import Drawing

OP, NATIVE = "dropout", "native_dropout"


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


@triton.jit
def native_dropout_kernel(x_ptr, y_ptr, mask_ptr, n_elements, n_threads, seed: tl.int64,  # pyright: ignore[reportInvalidTypeForm]
                          offset: tl.int64, p: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                          COMPUTE: tl.constexpr, VECTOR: tl.constexpr,
                          DRAWS: tl.constexpr):  # fmt: skip
    """DRAWS draws a program, each of four numbers, of which a vector of two takes half."""
    draws = tl.program_id(0).to(tl.int64) * DRAWS + tl.arange(0, DRAWS)
    # A vector of eight takes two draws of its thread, one after the other.
    EACH: tl.constexpr = 2 if VECTOR == 8 else 1  # pyright: ignore[reportAssignmentType]
    turns = draws // EACH
    threads = turns % n_threads
    rounds = turns // n_threads
    # (torch's offset counts numbers, the counter counts fours.)
    counters = offset // 4 + rounds * EACH + draws % EACH
    r0, r1, r2, r3 = tl.philox(seed, counters.to(tl.uint32), (counters >> 32).to(tl.uint32),
                               threads.to(tl.uint32), (threads >> 32).to(tl.uint32))  # fmt: skip
    keep = tl.full((), 1.0 - p, COMPUTE)
    scale = (1.0 / keep.to(tl.float64)).to(COMPUTE)
    k0, k1, k2, k3 = _kept(r0, keep), _kept(r1, keep), _kept(r2, keep), _kept(r3, keep)
    if VECTOR == 1:
        first = rounds * (4 * n_threads) + threads
        _drop(x_ptr, y_ptr, mask_ptr, first, n_elements, k0, scale)
        _drop(x_ptr, y_ptr, mask_ptr, first + n_threads, n_elements, k1, scale)
        _drop(x_ptr, y_ptr, mask_ptr, first + 2 * n_threads, n_elements, k2, scale)
        _drop(x_ptr, y_ptr, mask_ptr, first + 3 * n_threads, n_elements, k3, scale)
    else:
        # Neighbours in memory stay in one thread, so loads and stores are wide.
        NUMBERS: tl.constexpr = 2 if VECTOR == 2 else 4  # pyright: ignore[reportAssignmentType]
        if NUMBERS == 2:
            kept = tl.interleave(k0, k1)
        else:
            kept = tl.interleave(tl.interleave(k0, k2), tl.interleave(k1, k3))
        begin = tl.program_id(0).to(tl.int64) * (DRAWS * NUMBERS)
        offsets = begin + tl.arange(0, DRAWS * NUMBERS)
        _drop(x_ptr, y_ptr, mask_ptr, offsets, n_elements, kept, scale)


@triton.jit
def _kept(number, keep):
    """curand's uniform number in (0, 1] is compared: 0 for what is dropped, or 1."""
    uniform = number.to(tl.float32) * (1.0 / 4294967296.0) + (1.0 / 8589934592.0)
    return (uniform < keep).to(keep.dtype)


@triton.jit
def _drop(x_ptr, y_ptr, mask_ptr, offsets, n_elements, kept, scale):
    """A product, as torch's: an infinite element that is dropped becomes NaN."""
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(scale.dtype)
    tl.store(y_ptr + offsets, x * kept * scale, mask=mask)
    tl.store(mask_ptr + offsets, kept != 0, mask=mask)


def native_dropout(
    x: torch.Tensor, p: float, *, seed: int, offset: int, resident: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch.native_dropout(x, p, True) returns on a GPU whose generator has `seed` (64 bits)
    and `offset` (a multiple of 4), and that has room for `resident` blocks of 256 threads:
    multiprocessors times (threads of each // 256).

    x contiguous, aligned to 16 bytes, of less than 2^31 elements, float32, bfloat16, float16
    (computed in float32) or float64 -> (y of its shape and dtype, mask: bool). The generator is the
    caller's to advance, by Drawing.increment. Raises ValueError for p, seed and offset,
    NotImplementedError for the dtype, RuntimeError for a device without Triton.
    """
    _launch.check_tensors(NATIVE, x=x)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"[{NATIVE}] p is out of range, got {p}, expected 0.0 to below 1.0")
    if not 0 <= seed < 2**64:
        raise ValueError(f"[{NATIVE}] seed is out of range, got {seed}, expected 0 to 2**64 - 1")
    if offset % 4 or not 0 <= offset < 2**63:
        raise ValueError(f"[{NATIVE}] offset does not fit, got {offset}, expected a multiple of 4")
    y, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    if x.numel():
        drawing, draws = Drawing.of(x.numel(), x.element_size(), resident), 256
        _launch.launch(
            native_dropout_kernel, (triton.cdiv(drawing.draws(x.numel()), draws),), x, y, mask,
            x.numel(), drawing.threads, seed - (seed >> 63 << 64), offset, p,
            COMPUTE=_launch.compute_type(x), VECTOR=drawing.vector, DRAWS=draws,
            elements=4 * draws,
        )  # fmt: skip
    return y, mask


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
