"""Root mean square normalisation over the trailing dims, forward and backward.

y = x rstd weight with rstd = 1 / sqrt(mean(x^2) + eps) (Zhang and Sennrich, arXiv:1910.07467).
The backward keeps rstd, one number a row, and reads x again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from . import _columns, _launch


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, rstd_ptr, n_cols,
                    eps: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                    HAS_WEIGHT: tl.constexpr, COMPUTE: tl.constexpr,
                    BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """One row a program. The second loop finds a row that is not too long in the cache again."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * n_cols
    y_ptr += row * n_cols
    cols = tl.arange(0, BLOCK_SIZE)
    squares = tl.zeros([BLOCK_SIZE], COMPUTE)  # one sum a lane: no communication in the loop
    for start in range(0, n_cols, BLOCK_SIZE):
        x = tl.load(x_ptr + start + cols, mask=start + cols < n_cols, other=0.0).to(COMPUTE)
        squares += x * x
    mean_square = tl.sum(squares, axis=0) / n_cols
    rstd = 1 / tl.sqrt(mean_square + tl.full((), eps, COMPUTE))
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        y = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE) * rstd
        if HAS_WEIGHT:
            y *= tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        tl.store(y_ptr + start + cols, y, mask=mask)


@triton.jit
def rms_norm_dx_kernel(dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, n_cols,
                       HAS_WEIGHT: tl.constexpr, COMPUTE: tl.constexpr,
                       BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """dx = rstd (g - n mean(g n)) with g = dy weight and n = x rstd; one row a program."""
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * n_cols
    x_ptr += row * n_cols
    dx_ptr += row * n_cols
    rstd = tl.load(rstd_ptr + row).to(COMPUTE)
    cols = tl.arange(0, BLOCK_SIZE)
    sum_gn = tl.zeros([BLOCK_SIZE], COMPUTE)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        g = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        sum_gn += g * tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE) * rstd
    mean_gn = tl.sum(sum_gn, axis=0) / n_cols
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        g = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        normal = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE) * rstd
        tl.store(dx_ptr + start + cols, rstd * (g - normal * mean_gn), mask=mask)


@triton.jit
def rms_norm_partials_kernel(dy_ptr, x_ptr, rstd_ptr, dweight_ptr, n_rows, n_cols, rows_each,
                             COMPUTE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                             BLOCK_COLS: tl.constexpr):  # fmt: skip
    """Sums of dy n over one group of rows, for BLOCK_COLS columns; [groups, n_cols] in all.

    Without atomic additions, whose order differs from run to run: see layer_norm.py.
    """
    group = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    dweight = tl.zeros([BLOCK_ROWS, BLOCK_COLS], COMPUTE)
    for start in range(0, rows_each, BLOCK_ROWS):
        rows = group * rows_each + start + tl.arange(0, BLOCK_ROWS)
        inside = rows < n_rows
        mask = inside[:, None] & (cols < n_cols)[None, :]
        offsets = rows[:, None] * n_cols + cols[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=inside, other=0.0).to(COMPUTE)
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
        dweight += tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(COMPUTE) * x * rstd[:, None]
    tl.store(dweight_ptr + group * n_cols + cols, tl.sum(dweight, axis=0), mask=cols < n_cols)


def _fake_forward(x, normalized_shape, weight=None, eps=None):
    outer = x.shape[: x.dim() - len(normalized_shape)]
    dtype = _launch.torch_type(_launch.compute_type(x))
    rstd = x.new_empty((*outer, *[1] * len(normalized_shape)), dtype=dtype)
    return torch.empty_like(x, memory_format=torch.contiguous_format), rstd


@_launch.recorded(_fake_forward)
def rms_norm_forward(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, rstd); x [*rows, *normalized_shape], y the same, rstd [*rows, 1, ...] in float32 (float64
    for float64)."""
    _check(x, normalized_shape, weight)
    n_cols = math.prod(normalized_shape)
    y, rstd = _fake_forward(x, normalized_shape)
    if x.numel():
        rows = _launch.as_rows(x, n_cols)
        weight = weight.contiguous() if weight is not None else None
        block_size = _launch.block_of(n_cols, _launch.LOOP_BLOCK)
        # Torch's default is the step of the type that it computes in, not of x.
        eps = torch.finfo(rstd.dtype).eps if eps is None else eps
        _launch.launch(
            rms_norm_kernel, (len(rows),), rows, weight, y, rstd, n_cols, eps,
            HAS_WEIGHT=weight is not None, COMPUTE=_launch.compute_type(x), BLOCK_SIZE=block_size,
            elements=block_size,
        )  # fmt: skip
    return y, rstd


@_launch.recorded(lambda dy, x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """dx; dy and x [*rows, *normalized_shape], rstd as the forward returned it."""
    _check(x, normalized_shape, weight)
    _check_backward(dy, x, rstd)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        n_cols = math.prod(normalized_shape)
        rows = _launch.as_rows(x, n_cols)
        weight = weight.contiguous() if weight is not None else None
        block_size = _launch.block_of(n_cols, _launch.LOOP_BLOCK)
        _launch.launch(
            rms_norm_dx_kernel, (len(rows),), dy.contiguous(), rows, weight, rstd.contiguous(), dx,
            n_cols, HAS_WEIGHT=weight is not None, COMPUTE=_launch.compute_type(x),
            BLOCK_SIZE=block_size, elements=block_size,
        )  # fmt: skip
    return dx


@_launch.recorded(lambda dy, x, normalized_shape, rstd: rstd.new_empty(normalized_shape))
def rms_norm_backward_weight(
    dy: torch.Tensor, x: torch.Tensor, normalized_shape: Sequence[int], rstd: torch.Tensor
) -> torch.Tensor:
    """dweight [*normalized_shape] in the type of rstd: a sum over the rows, in a fixed order."""
    _check(x, normalized_shape, None)
    _check_backward(dy, x, rstd)
    n_cols = math.prod(normalized_shape)
    rows = _launch.as_rows(x, n_cols)
    groups, rows_each = _launch.row_groups(len(rows))
    partials = torch.empty((groups, n_cols), dtype=rstd.dtype, device=x.device)
    if partials.numel():
        block_cols = _launch.block_of(n_cols, 128)
        grid = (triton.cdiv(n_cols, block_cols), groups)
        _launch.launch(
            rms_norm_partials_kernel, grid, dy.contiguous(), rows, rstd.contiguous(), partials,
            len(rows), n_cols, rows_each, COMPUTE=_launch.compute_type(x),
            BLOCK_ROWS=_launch.GROUP_BLOCK, BLOCK_COLS=block_cols,
            elements=_launch.GROUP_BLOCK * block_cols,
        )  # fmt: skip
    return _columns.column_sums(partials).view(list(normalized_shape))


def _check(x, normalized_shape, weight) -> None:
    _launch.check_tensors("rms_norm", x=x, weight=weight)
    _launch.check_normalized("rms_norm", x, normalized_shape)
    _launch.check_shape("rms_norm", "weight", weight, tuple(normalized_shape))


def _check_backward(dy, x, rstd) -> None:
    _launch.check_tensors("rms_norm", x=x, dy=dy, rstd=rstd)
    _launch.check_shape("rms_norm", "dy", dy, tuple(x.shape))


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, normalized_shape, weight, eps):
        y, rstd = rms_norm_forward(x, normalized_shape, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.normalized_shape = normalized_shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, rstd = ctx.saved_tensors
        arguments = (dy, x, ctx.normalized_shape, rstd)
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            dx = rms_norm_backward(*arguments, weight)
        if ctx.needs_input_grad[2]:
            dweight = rms_norm_backward_weight(*arguments).to(weight.dtype)
        return dx, None, dweight, None


def rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """`F.rms_norm`: x [*rows, *normalized_shape] -> the same; weight [*normalized_shape].

    dtypes: float32, bfloat16, float16 (computed in float32), float64; y has that of x. Raises
    NotImplementedError for other dtypes, RuntimeError for shapes and devices that do not fit.
    """
    _check(x, normalized_shape, weight)
    return _RMSNorm.apply(x, tuple(normalized_shape), weight, eps)
