"""Layer normalisation over the trailing dims, forward and backward.

y = (x - mean) rstd weight + bias, where rstd = 1 / sqrt(var + eps) and var is the biased variance
(Ba, Kiros and Hinton, arXiv:1607.06450). The forward returns mean and rstd as
aten::native_layer_norm does on CUDA: in float32 for 16-bit inputs.
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
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, n_cols,
                      eps: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                      HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, COMPUTE: tl.constexpr,
                      BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """One row a program. The second loop finds a row that is not too long in the cache again."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * n_cols
    y_ptr += row * n_cols
    cols = tl.arange(0, BLOCK_SIZE)
    # Blocks are merged by mean and sum of squared distances (Chan, Golub and LeVeque, 1979): a sum
    # of squares minus the square of the sum would cancel where the mean is large.
    mean = tl.full((), 0, COMPUTE)
    squares = tl.full((), 0, COMPUTE)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        count = tl.minimum(n_cols - start, BLOCK_SIZE).to(COMPUTE)
        block_mean = tl.sum(x, axis=0) / count
        distance = tl.where(mask, x - block_mean, 0.0)
        delta = block_mean - mean
        share = count / (start + count)
        squares += tl.sum(distance * distance, axis=0) + delta * delta * start * share
        mean += delta * share
    rstd = 1 / tl.sqrt(squares / n_cols + tl.full((), eps, COMPUTE))
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        y = (tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE) - mean) * rstd
        if HAS_WEIGHT:
            y *= tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        if HAS_BIAS:
            y += tl.load(bias_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        tl.store(y_ptr + start + cols, y, mask=mask)


@triton.jit
def layer_norm_dx_kernel(dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, n_cols,
                         HAS_WEIGHT: tl.constexpr, COMPUTE: tl.constexpr,
                         BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """dx = rstd (g - mean(g) - n mean(g n)) with g = dy weight, n = (x - mean) rstd; one row."""
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * n_cols
    x_ptr += row * n_cols
    dx_ptr += row * n_cols
    mean = tl.load(mean_ptr + row).to(COMPUTE)
    rstd = tl.load(rstd_ptr + row).to(COMPUTE)
    cols = tl.arange(0, BLOCK_SIZE)
    # One sum a lane, added up once after the loop: no communication between threads in it.
    sum_g = tl.zeros([BLOCK_SIZE], COMPUTE)
    sum_gn = tl.zeros([BLOCK_SIZE], COMPUTE)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        g = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        normal = (tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE) - mean) * rstd
        sum_g += g
        sum_gn += g * normal
    mean_g = tl.sum(sum_g, axis=0) / n_cols
    mean_gn = tl.sum(sum_gn, axis=0) / n_cols
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        g = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
        normal = (tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE) - mean) * rstd
        tl.store(dx_ptr + start + cols, rstd * (g - mean_g - normal * mean_gn), mask=mask)


@triton.jit
def layer_norm_partials_kernel(dy_ptr, x_ptr, mean_ptr, rstd_ptr, dweight_ptr, dbias_ptr, n_rows,
                               n_cols, rows_each, COMPUTE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                               BLOCK_COLS: tl.constexpr):  # fmt: skip
    """Sums of dy n and of dy over one group of rows, for BLOCK_COLS columns.

    Each program writes its own partial sum, [groups, n_cols]: atomic additions would need no second
    stage, but their order, and with it the rounding, differs from run to run.
    """
    group = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    dweight = tl.zeros([BLOCK_ROWS, BLOCK_COLS], COMPUTE)
    dbias = tl.zeros([BLOCK_ROWS, BLOCK_COLS], COMPUTE)
    for start in range(0, rows_each, BLOCK_ROWS):
        rows = group * rows_each + start + tl.arange(0, BLOCK_ROWS)
        inside = rows < n_rows  # rows_each is a multiple of BLOCK_ROWS
        mask = inside[:, None] & (cols < n_cols)[None, :]
        offsets = rows[:, None] * n_cols + cols[None, :]
        mean = tl.load(mean_ptr + rows, mask=inside, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + rows, mask=inside, other=0.0).to(COMPUTE)
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
        dweight += dy * (x - mean[:, None]) * rstd[:, None]
        dbias += dy
    out = group * n_cols + cols
    tl.store(dweight_ptr + out, tl.sum(dweight, axis=0), mask=cols < n_cols)
    tl.store(dbias_ptr + out, tl.sum(dbias, axis=0), mask=cols < n_cols)


def _fake_forward(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    outer = x.shape[: x.dim() - len(normalized_shape)]
    dtype = _launch.torch_type(_launch.compute_type(x))
    mean = x.new_empty((*outer, *[1] * len(normalized_shape)), dtype=dtype)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, mean, torch.empty_like(mean)


@_launch.recorded(_fake_forward)
def layer_norm_forward(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, mean, rstd); x [*rows, *normalized_shape], y the same, mean and rstd [*rows, 1, ...]."""
    _check(x, normalized_shape, weight, bias)
    n_cols = math.prod(normalized_shape)
    y, mean, rstd = _fake_forward(x, normalized_shape)
    if not x.numel():
        return y, mean.zero_(), rstd.fill_(math.nan)  # as aten for empty rows
    rows = _launch.as_rows(x, n_cols)
    weight = weight.contiguous() if weight is not None else None
    bias = bias.contiguous() if bias is not None else None
    block_size = _launch.block_of(n_cols, _launch.LOOP_BLOCK)
    _launch.launch(
        layer_norm_kernel, (len(rows),), rows, weight, bias, y, mean, rstd, n_cols, eps,
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, COMPUTE=_launch.compute_type(x),
        BLOCK_SIZE=block_size, elements=block_size,
    )  # fmt: skip
    return y, mean, rstd


@_launch.recorded(lambda dy, x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
def layer_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """dx; x and dy [*rows, *normalized_shape], mean and rstd as the forward returned them."""
    _check(x, normalized_shape, weight, None)
    _check_backward(dy, x, mean, rstd)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        n_cols = math.prod(normalized_shape)
        rows = _launch.as_rows(x, n_cols)
        weight = weight.contiguous() if weight is not None else None
        block_size = _launch.block_of(n_cols, _launch.LOOP_BLOCK)
        _launch.launch(
            layer_norm_dx_kernel, (len(rows),), dy.contiguous(), rows, weight, mean.contiguous(),
            rstd.contiguous(), dx, n_cols, HAS_WEIGHT=weight is not None,
            COMPUTE=_launch.compute_type(x), BLOCK_SIZE=block_size, elements=block_size,
        )  # fmt: skip
    return dx


def _fake_backward_weight(dy, x, normalized_shape, mean, rstd):
    return (mean.new_empty(normalized_shape), mean.new_empty(normalized_shape))


@_launch.recorded(_fake_backward_weight)
def layer_norm_backward_weight(
    dy: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dweight, dbias), each [*normalized_shape] in the type of mean: sums over the rows."""
    _check(x, normalized_shape, None, None)
    _check_backward(dy, x, mean, rstd)
    n_cols = math.prod(normalized_shape)
    rows = _launch.as_rows(x, n_cols)
    groups, rows_each = _launch.row_groups(len(rows))
    partials = torch.empty((2, groups, n_cols), dtype=mean.dtype, device=x.device)
    if partials.numel():
        block_cols = _launch.block_of(n_cols, 128)
        grid = (triton.cdiv(n_cols, block_cols), groups)
        _launch.launch(
            layer_norm_partials_kernel, grid, dy.contiguous(), rows, mean.contiguous(),
            rstd.contiguous(), partials[0], partials[1], len(rows), n_cols, rows_each,
            COMPUTE=_launch.compute_type(x), BLOCK_ROWS=_launch.GROUP_BLOCK, BLOCK_COLS=block_cols,
            elements=_launch.GROUP_BLOCK * block_cols,
        )  # fmt: skip
    dweight, dbias = (_columns.column_sums(p).view(list(normalized_shape)) for p in partials)
    return dweight, dbias


def _check_backward(dy, x, mean, rstd) -> None:
    _launch.check_tensors("layer_norm", x=x, dy=dy, mean=mean, rstd=rstd)
    _launch.check_shape("layer_norm", "dy", dy, tuple(x.shape))
    _launch.check_shape("layer_norm", "rstd", rstd, tuple(mean.shape))


def _check(x, normalized_shape, weight, bias) -> None:
    op = "layer_norm"
    _launch.check_tensors(op, x=x, weight=weight, bias=bias)
    _launch.check_normalized(op, x, normalized_shape)
    _launch.check_shape(op, "weight", weight, tuple(normalized_shape))
    _launch.check_shape(op, "bias", bias, tuple(normalized_shape))


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, normalized_shape, weight, bias, eps):
        y, mean, rstd = layer_norm_forward(x, normalized_shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.normalized_shape = normalized_shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, mean, rstd = ctx.saved_tensors
        needs_x, _, needs_weight, needs_bias, _ = ctx.needs_input_grad
        arguments = (dy, x, ctx.normalized_shape, mean, rstd)
        dx = dweight = dbias = None
        if needs_x:
            dx = layer_norm_backward(*arguments, weight)
        if needs_weight or needs_bias:
            dweight, dbias = layer_norm_backward_weight(*arguments)
            dweight = dweight.to(weight.dtype) if needs_weight else None
            dbias = dbias.to(bias.dtype) if needs_bias else None
        return dx, None, dweight, dbias, None


def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """`F.layer_norm`: x [*rows, *normalized_shape] -> the same; weight, bias [*normalized_shape].

    dtypes: float32, bfloat16, float16 (computed in float32), float64; y has that of x. Raises
    NotImplementedError for other dtypes, RuntimeError for shapes and devices that do not fit.
    """
    _check(x, normalized_shape, weight, bias)
    return _LayerNorm.apply(x, tuple(normalized_shape), weight, bias, eps)
