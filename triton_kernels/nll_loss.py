"""Negative log-likelihood of class indices, and its backward together with that of log_softmax.

With w the class weights and y the label, a row of log-probabilities x costs -w_y x_y; the mean is
over the sum of the w_y (`torch.nn.functional.nll_loss`). torch takes cross_entropy apart into
log_softmax and this. Its backward would write a row of zeros with one number in it, v = -w_y g,
which that of log_softmax reads: here

    dz_c = v [c = y] - exp(x_c) v

is made from the log-probabilities alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from . import _launch

OP = "nll_loss"
ROWS_BLOCK = 1024


# debug=True makes device_assert real: a wrong label stops the GPU's context as it does in torch.
@triton.jit(debug=True)
def nll_loss_kernel(x_ptr, target_ptr, weight_ptr, y_ptr, total_weight_ptr, n_rows, n_cols,
                    ignore_index, HAS_WEIGHT: tl.constexpr, REDUCTION: tl.constexpr,
                    COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """All rows in one program, which reads but one element of each: so the sum has one order.

    REDUCTION as aten has it: 0 writes each row's loss and the total weight 0, 1 is the mean, 2 the
    sum.
    """
    losses = tl.zeros([BLOCK_SIZE], COMPUTE)
    weights = tl.zeros([BLOCK_SIZE], COMPUTE)
    for start in range(0, n_rows, BLOCK_SIZE):
        rows = start + tl.arange(0, BLOCK_SIZE).to(tl.int64)
        inside = rows < n_rows
        label = tl.load(target_ptr + rows, mask=inside, other=0).to(tl.int64)
        used = inside & (label != ignore_index)
        valid = (label >= 0) & (label < n_cols)
        tl.device_assert(valid | (used == 0), "[nll_loss] label is out of range")
        used = used & valid
        w = tl.full([BLOCK_SIZE], 1, COMPUTE)
        if HAS_WEIGHT:
            w = tl.load(weight_ptr + label, mask=used, other=0.0).to(COMPUTE)
        x = tl.load(x_ptr + rows * n_cols + label, mask=used, other=0.0).to(COMPUTE)
        loss = tl.where(used, x * w * -1, 0.0)  # (Triton 3.7 makes 0 - x of -x)
        if REDUCTION == 0:
            tl.store(y_ptr + rows, loss, mask=inside)
        losses += loss
        weights += tl.where(used, w, 0.0)
    total_weight = tl.sum(weights, axis=0)
    if REDUCTION == 0:
        total_weight = tl.full((), 0, COMPUTE)
    else:
        loss = tl.sum(losses, axis=0)
        if REDUCTION == 1:
            loss = loss / total_weight  # pyright: ignore[reportOperatorIssue]
        tl.store(y_ptr, loss)
    tl.store(total_weight_ptr, total_weight)


@triton.jit
def _gradient(row, dy_ptr, target_ptr, weight_ptr, total_weight_ptr, n_cols, ignore_index,
              HAS_WEIGHT: tl.constexpr, REDUCTION: tl.constexpr,
              COMPUTE: tl.constexpr):  # fmt: skip
    """The label of a row, and the gradient of its log-probability."""
    label = tl.load(target_ptr + row).to(tl.int64)
    valid = (label >= 0) & (label < n_cols)
    used = valid & (label != ignore_index)
    dy = tl.load(dy_ptr + row * (REDUCTION == 0)).to(COMPUTE)
    if REDUCTION == 1:
        dy /= tl.load(total_weight_ptr).to(COMPUTE)
    if HAS_WEIGHT:
        dy *= tl.load(weight_ptr + label, mask=used, other=0.0).to(COMPUTE)
    return label, tl.where(used, dy * -1, 0.0)


@triton.jit
def nll_loss_backward_kernel(dy_ptr, target_ptr, weight_ptr, total_weight_ptr, dx_ptr, n_cols,
                             ignore_index, HAS_WEIGHT: tl.constexpr, REDUCTION: tl.constexpr,
                             COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """BLOCK_SIZE columns of one row: zeros, and one number."""
    row = tl.program_id(0).to(tl.int64)
    label, value = _gradient(row, dy_ptr, target_ptr, weight_ptr, total_weight_ptr, n_cols,
                             ignore_index, HAS_WEIGHT, REDUCTION, COMPUTE)  # fmt: skip
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    dx = tl.where(cols == label, value, 0.0)
    tl.store(dx_ptr + row * n_cols + cols, dx, mask=cols < n_cols)


@triton.jit
def nll_log_softmax_backward_kernel(dy_ptr, target_ptr, weight_ptr, total_weight_ptr, x_ptr, dz_ptr,
                                    n_cols, ignore_index, HAS_WEIGHT: tl.constexpr,
                                    REDUCTION: tl.constexpr, COMPUTE: tl.constexpr,
                                    BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """dz of BLOCK_SIZE columns of one row; x are the log-probabilities that log_softmax made of
    z."""
    row = tl.program_id(0).to(tl.int64)
    label, value = _gradient(row, dy_ptr, target_ptr, weight_ptr, total_weight_ptr, n_cols,
                             ignore_index, HAS_WEIGHT, REDUCTION, COMPUTE)  # fmt: skip
    value = value.to(x_ptr.dtype.element_ty).to(COMPUTE)  # torch stores it, in between
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(COMPUTE)
    dz = tl.where(cols == label, value, 0.0) - tl.exp(x) * value
    tl.store(dz_ptr + row * n_cols + cols, dz, mask=mask)


def _fake_forward(x, target, weight, reduction, ignore_index):
    return x.new_empty(target.shape if reduction == 0 else ()), x.new_empty(())


@_launch.recorded(_fake_forward)
def nll_loss_forward(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, total weight) as aten::nll_loss_forward; x [rows, C], target [rows], weight [C]."""
    n_rows, n_cols = x.shape
    loss, total_weight = _fake_forward(x, target, weight, reduction, ignore_index)
    _launch.launch(
        nll_loss_kernel, (1,), x.contiguous(), target.contiguous(), _contiguous(weight), loss,
        total_weight, n_rows, n_cols, ignore_index, HAS_WEIGHT=weight is not None,
        REDUCTION=reduction, COMPUTE=_launch.compute_type(x), BLOCK_SIZE=ROWS_BLOCK,
        elements=ROWS_BLOCK, sanitize_overflow=False,
    )  # fmt: skip
    return loss, total_weight


@_launch.recorded(lambda dy, x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
def nll_loss_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """dx [rows, C] of x [rows, C]; target [rows], weight [C] or None; dy [rows], or [] if the
    forward reduced; total_weight [], of the forward."""
    return _backward(nll_loss_backward_kernel, (), dy, x, target, weight, reduction, ignore_index,
                     total_weight)  # fmt: skip


@_launch.recorded(lambda dy, x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
def nll_log_softmax_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """dz [rows, C] for x = log_softmax(z), [rows, C]: the formula at the top of this file.

    target [rows], weight [C] or None; dy [rows], or [] if the forward reduced; total_weight [], of
    the forward. dtypes as of `nll_loss`; dz has that of x.
    """
    return _backward(nll_log_softmax_backward_kernel, (x.contiguous(),), dy, x, target, weight,
                     reduction, ignore_index, total_weight)  # fmt: skip


def _backward(kernel, also_read, dy, x, target, weight, reduction, ignore_index, total_weight):
    """What the kernel makes, of x's shape."""
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        n_rows, n_cols = x.shape
        block = _launch.block_of(n_cols, _launch.LOOP_BLOCK)
        _launch.launch(
            kernel, (n_rows, triton.cdiv(n_cols, block)), dy.contiguous(), target.contiguous(),
            _contiguous(weight), total_weight, *also_read, dx, n_cols, ignore_index,
            HAS_WEIGHT=weight is not None, REDUCTION=reduction, COMPUTE=_launch.compute_type(x),
            BLOCK_SIZE=block, elements=block,
        )  # fmt: skip
    return dx


def _contiguous(weight: torch.Tensor | None) -> torch.Tensor | None:
    return weight.contiguous() if weight is not None else None


class _NllLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target, weight, reduction, ignore_index):
        loss, total_weight = nll_loss_forward(x, target, weight, reduction, ignore_index)
        ctx.save_for_backward(x, target, weight, total_weight)
        ctx.options = reduction, ignore_index
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, target, weight, total_weight = ctx.saved_tensors
        reduction, ignore_index = ctx.options
        dx = nll_loss_backward(dy, x, target, weight, reduction, ignore_index, total_weight)
        return dx, None, None, None, None


def nll_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """`F.nll_loss` of x [N, C] and class indices [N], int64 or uint8; weight [C], no gradient to
    it -> [] or, for reduction "none", [N].

    dtypes of x: float32, bfloat16, float16 (computed in float32), float64; the result has that of
    x. A label outside 0 .. C - 1 that is not `ignore_index` is a device-side assertion, as in
    torch. Raises NotImplementedError for dtypes, ValueError for an unknown reduction, RuntimeError
    for shapes and devices that do not fit.
    """
    _launch.check_tensors(OP, x=x, weight=weight)
    _launch.check_loss(OP, x, target, reduction)
    if x.dim() != 2:
        raise RuntimeError(f"[{OP}] shape of x does not fit, got {list(x.shape)}, expected [N, C]")
    _launch.check_shape(OP, "target", target, (x.shape[0],))
    _launch.check_shape(OP, "weight", weight, (x.shape[1],))
    weight = weight.detach() if weight is not None else None
    return _NllLoss.apply(x, target, weight, _launch.REDUCTIONS[reduction], ignore_index)
