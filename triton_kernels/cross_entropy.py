"""Cross entropy of logits with class indices, forward and backward, without storing probabilities.

With w the class weights, s the label smoothing, C classes, label y and p = softmax(x), a row costs

    (1 - s) w_y (lse(x) - x_y) + s / C * sum_c w_c (lse(x) - x_c)

(`torch.nn.functional.cross_entropy`). The forward reads the logits once, with the running maximum
of softmax.py. It keeps the two parts of each row's log-sum-exp, the maximum and the logarithm of
the sum: added up, a large maximum would swallow the other. The backward makes from them

    dx_c = p_c ((1 - s) w_y + s / C * sum(w)) - (1 - s) w_y [c = y] - s / C * w_c.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from . import _launch


# debug=True makes device_assert real: a wrong label stops the GPU's context as it does in torch.
@triton.jit(debug=True)
def cross_entropy_kernel(x_ptr, target_ptr, weight_ptr, rows_ptr, n_rows, n_cols, ignore_index,
                         smoothing: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                         HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, COMPUTE: tl.constexpr,
                         BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """One row a program, written to rows [4, n_rows]: loss, w_y, maximum, logarithm of the sum.

    An ignored row has loss and w_y 0.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * n_cols
    label = tl.load(target_ptr + row)
    used = label != ignore_index
    valid = (label >= 0) & (label < n_cols)
    tl.device_assert(valid | (label == ignore_index), "[cross_entropy] label is out of range")
    cols = tl.arange(0, BLOCK_SIZE)
    top = tl.full((), -float("inf"), COMPUTE)
    shift = tl.full((), 0, COMPUTE)
    total = tl.full((), 0, COMPUTE)
    weights = tl.full((), 0, COMPUTE)
    weighted = tl.full((), 0, COMPUTE)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=mask, other=-float("inf")).to(COMPUTE)
        new_top = tl.maximum(top, tl.max(x, axis=0))
        new_shift = tl.where(new_top == -float("inf"), 0.0, new_top)  # not -inf - -inf
        total = total * tl.exp(top - new_shift) + tl.sum(tl.exp(x - new_shift), axis=0)
        if SMOOTH:
            w = tl.full([BLOCK_SIZE], 1, COMPUTE)
            if HAS_WEIGHT:
                w = tl.load(weight_ptr + start + cols, mask=mask, other=0.0).to(COMPUTE)
            weighted += (shift - new_shift) * weights
            weighted += tl.sum(tl.where(mask, w * (x - new_shift), 0.0), axis=0)
            weights += tl.sum(tl.where(mask, w, 0.0), axis=0)
        top = new_top
        shift = new_shift
    log_total = tl.log(total)
    w_label = tl.full((), 1, COMPUTE)
    if HAS_WEIGHT:
        w_label = tl.load(weight_ptr + label, mask=used & valid, other=0.0).to(COMPUTE)
    x_label = tl.load(x_ptr + label, mask=used & valid, other=0.0).to(COMPUTE)
    loss = w_label * (log_total - (x_label - shift))
    if SMOOTH:
        s = tl.full((), smoothing, COMPUTE)
        loss = (1 - s) * loss + s / n_cols * (log_total * weights - weighted)
    tl.store(rows_ptr + row, tl.where(used, loss, 0.0))
    tl.store(rows_ptr + n_rows + row, tl.where(used, w_label, 0.0))
    tl.store(rows_ptr + 2 * n_rows + row, shift)
    tl.store(rows_ptr + 3 * n_rows + row, log_total)


@triton.jit
def cross_entropy_backward_kernel(x_ptr, target_ptr, weight_ptr, rows_ptr, scale_ptr, dx_ptr,
                                  n_rows, n_cols, scale_stride, ignore_index,
                                  smoothing: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                                  HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
                                  COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """dx of BLOCK_SIZE columns of one row, times its scale (scale_stride 0: one for all rows)."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    label = tl.load(target_ptr + row)
    used = label != ignore_index
    shift = tl.load(rows_ptr + 2 * n_rows + row).to(COMPUTE)
    log_total = tl.load(rows_ptr + 3 * n_rows + row).to(COMPUTE)
    scale = tl.load(scale_ptr + row * scale_stride).to(COMPUTE)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(COMPUTE)
    p = tl.exp(x - shift - log_total)
    hit = cols == label
    w_label = tl.full((), 1, COMPUTE)
    if HAS_WEIGHT:
        inside = (label >= 0) & (label < n_cols)
        w_label = tl.load(weight_ptr + label, mask=used & inside, other=0.0).to(COMPUTE)
    dx = w_label * (p - tl.where(hit, 1.0, 0.0))
    if SMOOTH:
        s = tl.full((), smoothing, COMPUTE)
        w = tl.full([BLOCK_SIZE], 1, COMPUTE)
        weights = tl.full((), 0, COMPUTE) + n_cols
        if HAS_WEIGHT:
            # After the class weights stands their sum, which each program would have to add up.
            w = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(COMPUTE)
            weights = tl.load(weight_ptr + n_cols).to(COMPUTE)
        dx = (1 - s) * dx + s / n_cols * (p * weights - w)
    # Selected, not multiplied by 0: an ignored row may hold infinities. (Eager gives NaN then.)
    dx = tl.where(used, dx * scale, 0.0)
    tl.store(dx_ptr + row * n_cols + cols, dx, mask=mask)


OP = "cross_entropy"


def _fake_forward(x, target, weight, ignore_index, label_smoothing):
    dtype = _launch.torch_type(_launch.compute_type(x))
    return x.new_empty((4, x.shape[0]), dtype=dtype)


@_launch.recorded(_fake_forward)
def cross_entropy_forward(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    """[4, rows]: losses, w_y, maxima, logarithms of sums; x [rows, C], target [rows] contiguous."""
    n_rows, n_cols = x.shape
    rows = _fake_forward(x, target, weight, ignore_index, label_smoothing)
    if not target.is_cuda:
        _check_labels(target, n_cols, ignore_index)
    if n_rows:
        block_size = _launch.block_of(n_cols, _launch.LOOP_BLOCK)
        _launch.launch(
            cross_entropy_kernel, (n_rows,), x, target, weight, rows, n_rows, n_cols,
            ignore_index, label_smoothing, HAS_WEIGHT=weight is not None,
            SMOOTH=label_smoothing > 0, COMPUTE=_launch.compute_type(x), BLOCK_SIZE=block_size,
            elements=block_size,
            sanitize_overflow=False,  # debug=True would also check each addition of integers
        )  # fmt: skip
    return rows


@_launch.recorded(lambda scale, x, *_: torch.empty_like(x))
def cross_entropy_backward(
    scale: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight_and_sum: torch.Tensor | None,
    rows: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    """dx [rows, C]; scale is the gradient of each row's loss, [rows], or of all, []; rows as the
    forward returned them; the class weights are followed by their sum, [C + 1]."""
    n_rows, n_cols = x.shape
    dx = torch.empty_like(x)
    if x.numel():
        block_size = _launch.block_of(n_cols, _launch.LOOP_BLOCK)
        _launch.launch(
            cross_entropy_backward_kernel, (n_rows, triton.cdiv(n_cols, block_size)), x, target,
            weight_and_sum, rows, scale.contiguous(), dx, n_rows, n_cols, scale.dim(), ignore_index,
            label_smoothing, HAS_WEIGHT=weight_and_sum is not None, SMOOTH=label_smoothing > 0,
            COMPUTE=_launch.compute_type(x), BLOCK_SIZE=block_size, elements=block_size,
        )  # fmt: skip
    return dx


class _CrossEntropy(torch.autograd.Function):
    """On rows: x [rows, C], target [rows]. Returns [rows] or a scalar in the computing type."""

    @staticmethod
    def forward(ctx, x, target, weight, ignore_index, reduction, label_smoothing):
        options = (ignore_index, label_smoothing)
        rows = cross_entropy_forward(x, target, weight, *options)
        losses = rows[0]
        weight_sum = rows[1].sum() if reduction == "mean" else None
        if weight is not None:
            weight = torch.cat((weight, weight.sum(0, keepdim=True)))
        ctx.save_for_backward(x, target, weight, rows, weight_sum)
        ctx.options = options
        if reduction == "none":
            return losses.clone()  # not the whole of rows
        return losses.sum() if weight_sum is None else losses.sum() / weight_sum

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, target, weight, rows, weight_sum = ctx.saved_tensors
        scale = dy if weight_sum is None else dy / weight_sum
        dx = cross_entropy_backward(scale, x, target, weight, rows, *ctx.options)
        return dx, None, None, None, None, None


def cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """`F.cross_entropy` with class indices (not with class probabilities).

    x [N, C, *dims] or [C], target [N, *dims] or [] of int64 or uint8, weight [C], no gradient to
    it -> [] or, for reduction "none", the shape of target. dtypes of x: float32, bfloat16,
    float16 (computed in float32), float64; the result has that of x.

    A label outside 0 .. C - 1 that is not `ignore_index` is a device-side assertion on CUDA, as in
    torch: the error comes with a later call, and the process cannot use the device any more. In
    Triton's interpreter it is an IndexError. Raises NotImplementedError for dtypes, ValueError for
    sizes that differ and an unknown reduction, RuntimeError for the rest, as `F.cross_entropy`.
    """
    _check(x, target, weight, reduction, label_smoothing)
    n_classes = x.shape[min(1, x.dim() - 1)]
    rows = x.movedim(1, -1) if x.dim() > 1 else x
    # Empty rows have no valid label: [rows, 0] would lose their number in a view(-1, 0).
    rows = rows.contiguous().view(target.numel(), n_classes)
    labels = target.contiguous().view(-1).to(torch.int64)
    if weight is not None:
        weight = weight.detach().contiguous()
    loss = _CrossEntropy.apply(rows, labels, weight, ignore_index, reduction, label_smoothing)
    return (loss.view(target.shape) if reduction == "none" else loss).to(x.dtype)


def _check(x, target, weight, reduction, label_smoothing) -> None:
    _launch.check_tensors(OP, x=x, weight=weight)
    _launch.check_loss(OP, x, target, reduction)
    _launch.check_tensors(OP, (*_launch.FLOATS, target.dtype), x=x, target=target, weight=weight)
    expected = (*x.shape[:1], *x.shape[2:]) if x.dim() > 1 else ()
    if not x.dim() or tuple(target.shape) != expected:
        error = ValueError if target.dim() == len(expected) else RuntimeError
        raise error(
            f"[{OP}] shape of target does not fit, got {list(target.shape)}, "
            f"expected {list(expected)} for x of {list(x.shape)}"
        )
    _launch.check_shape(OP, "weight", weight, (x.shape[min(1, x.dim() - 1)],))
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(
            f"[{OP}] label_smoothing is out of range, got {label_smoothing}, expected 0.0 to 1.0"
        )


def _check_labels(labels: torch.Tensor, n_classes: int, ignore_index: int) -> None:
    wrong = ((labels < 0) | (labels >= n_classes)) & (labels != ignore_index)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise IndexError(
            f"[{OP}] label is out of range, got {int(labels[row])} at row {row}, "
            f"expected 0 to {n_classes - 1} or ignore_index {ignore_index}"
        )
