"""Softmax and log-softmax along the last dim.

A row that fits in a block is read once and stays in registers (kernel 2 of the Triton tutorial
"Fused Softmax"). A longer one is read twice: the first pass keeps a running maximum and rescales
the sum when the maximum grows (Milakov and Gimelshein, "Online normalizer calculation for
softmax", arXiv:1805.02867), the second writes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from . import _launch


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_rows, n_cols, LOG: tl.constexpr, COMPUTE: tl.constexpr,
                   BLOCK_ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """BLOCK_ROWS whole rows a program: short rows alone would leave most of its threads idle."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    offsets = rows[:, None] * n_cols + cols[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=-float("inf")).to(COMPUTE)
    x -= tl.max(x, axis=1, keep_dims=True)  # exp cannot overflow
    exps = tl.exp(x)
    total = tl.sum(exps, axis=1, keep_dims=True)
    y = x - tl.log(total) if LOG else exps / total
    tl.store(y_ptr + offsets, y, mask=mask)


@triton.jit
def softmax_online_kernel(x_ptr, y_ptr, n_cols, LOG: tl.constexpr, COMPUTE: tl.constexpr,
                          BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """One row a program, BLOCK_SIZE columns at a time."""
    row = tl.program_id(0).to(tl.int64) * n_cols  # a tensor may have more than 2^31 elements
    cols = tl.arange(0, BLOCK_SIZE)
    top = tl.full((), -float("inf"), COMPUTE)
    total = tl.full((), 0, COMPUTE)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row + start + cols, mask=mask, other=-float("inf")).to(COMPUTE)
        new_top = tl.maximum(top, tl.max(x, axis=0))
        # A row may begin with a block of -inf: subtracting that would give NaN instead of 0.
        shift = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(x - shift), axis=0)
        top = new_top
    shift = tl.where(top == -float("inf"), 0.0, top)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row + start + cols, mask=mask, other=0.0).to(COMPUTE) - shift
        y = x - tl.log(total) if LOG else tl.exp(x) / total
        tl.store(y_ptr + row + start + cols, y, mask=mask)


@triton.jit
def softmax_backward_kernel(dy_ptr, y_ptr, dx_ptr, n_rows, n_cols, LOG: tl.constexpr,
                            COMPUTE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                            BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """dx = y (dy - sum(y dy)), or for the logarithm dx = dy - exp(y) sum(dy)."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    offsets = rows[:, None] * n_cols + cols[None, :]
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    total = tl.sum(dy if LOG else dy * y, axis=1, keep_dims=True)
    dx = dy - tl.exp(y) * total if LOG else y * (dy - total)
    tl.store(dx_ptr + offsets, dx, mask=mask)


@triton.jit
def softmax_backward_long_kernel(dy_ptr, y_ptr, dx_ptr, n_cols, LOG: tl.constexpr,
                                 COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """The same for one row a program, BLOCK_SIZE columns at a time."""
    row = tl.program_id(0).to(tl.int64) * n_cols
    cols = tl.arange(0, BLOCK_SIZE)
    # One sum a lane, added up once at the end: no communication between threads in the loop.
    sums = tl.zeros([BLOCK_SIZE], COMPUTE)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        dy = tl.load(dy_ptr + row + start + cols, mask=mask, other=0.0).to(COMPUTE)
        if LOG:
            sums += dy
        else:
            sums += dy * tl.load(y_ptr + row + start + cols, mask=mask, other=0.0).to(COMPUTE)
    total = tl.sum(sums, axis=0)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        dy = tl.load(dy_ptr + row + start + cols, mask=mask, other=0.0).to(COMPUTE)
        y = tl.load(y_ptr + row + start + cols, mask=mask, other=0.0).to(COMPUTE)
        dx = dy - tl.exp(y) * total if LOG else y * (dy - total)
        tl.store(dx_ptr + row + start + cols, dx, mask=mask)


def _launch_rows(short, long, tensors: tuple[torch.Tensor, ...], n_cols: int, log: bool) -> None:
    """Runs the kernel for short or for long rows on contiguous tensors of one shape."""
    n_rows = tensors[0].numel() // n_cols
    block_size = _launch.block_of(n_cols)
    constants = {"LOG": log, "COMPUTE": _launch.compute_type(*tensors)}
    if n_cols > block_size:
        _launch.launch(long, (n_rows,), *tensors, n_cols, BLOCK_SIZE=_launch.LOOP_BLOCK,
                       elements=_launch.LOOP_BLOCK, **constants)  # fmt: skip
        return
    block_rows = min(_launch.block_of(n_rows), max(1, 2048 // block_size))
    grid = (triton.cdiv(n_rows, block_rows),)
    _launch.launch(short, grid, *tensors, n_rows, n_cols, BLOCK_ROWS=block_rows,
                   BLOCK_SIZE=block_size, elements=block_rows * block_size,
                   **constants)  # fmt: skip


@_launch.recorded(lambda x, log: torch.empty_like(x, memory_format=torch.contiguous_format))
def softmax_forward(x: torch.Tensor, log: bool) -> torch.Tensor:
    """[..., n] -> [..., n], contiguous, of the same dtype; no autograd."""
    _launch.check_tensors(_name(log), x=x)
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        n_cols = x.shape[-1] if x.dim() else 1
        _launch_rows(softmax_kernel, softmax_online_kernel, (x, y), n_cols, log)
    return y


@_launch.recorded(lambda dy, y, log: torch.empty_like(y, memory_format=torch.contiguous_format))
def softmax_backward(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    """dx from dy and from what the forward returned, each [..., n]."""
    _launch.check_tensors(_name(log), dy=dy, y=y)
    _launch.check_shape(_name(log), "dy", dy, tuple(y.shape))
    dy, y = dy.contiguous(), y.contiguous()
    dx = torch.empty_like(y)
    if y.numel():
        n_cols = y.shape[-1] if y.dim() else 1
        kernels = (softmax_backward_kernel, softmax_backward_long_kernel)
        _launch_rows(*kernels, (dy, y, dx), n_cols, log)
    return dx


def _name(log: bool) -> str:
    return "log_softmax" if log else "softmax"


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log):
        y = softmax_forward(x, log)
        ctx.save_for_backward(y)
        ctx.log = log
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        return softmax_backward(dy, y, ctx.log), None


def softmax(x: torch.Tensor) -> torch.Tensor:
    """`F.softmax(x, dim=-1)`.

    [..., n] -> [..., n] of the same dtype: float32, bfloat16, float16 (computed in float32) or
    float64. Raises NotImplementedError for other dtypes, RuntimeError for a device without Triton.
    """
    _launch.check_tensors("softmax", x=x)
    return _Softmax.apply(x, False)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """`F.log_softmax(x, dim=-1)`; shapes, dtypes and errors as for `softmax`."""
    _launch.check_tensors("log_softmax", x=x)
    return _Softmax.apply(x, True)
