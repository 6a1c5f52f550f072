"""One step of AdamW for a list of parameters, in one launch.

The update is that of `torch.optim.AdamW` (Loshchilov and Hutter, "Decoupled weight decay
regularization", arXiv:1711.05101; AMSGrad: Reddi, Kale and Kumar, arXiv:1904.09237), in its order
of operations. One pass reads and writes parameter and states once; op by op it would be ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from . import _launch, _multi_tensor
from ._multi_tensor import Tensors

OP = "adamw"


@triton.jit
def _adamw_block(param_ptr, grad_ptr, mean_ptr, square_ptr, largest_ptr, offsets, mask, decay,
                 one_minus_beta1, beta2, one_minus_beta2, step_size, correction, eps, penalty,
                 AMSGRAD: tl.constexpr, MAXIMIZE: tl.constexpr, PENALTY: tl.constexpr,
                 COMPUTE: tl.constexpr):  # fmt: skip
    param = tl.load(param_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    mean = tl.load(mean_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    square = tl.load(square_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    if MAXIMIZE:
        grad = grad * -1  # (Triton 3.7 makes 0 - x of -x)
    if PENALTY:  # Adam's weight decay, which takes part in the means
        grad = tl.where(penalty != 0, grad + penalty * param, grad)  # (0 * inf would be NaN)
    mean += (grad - mean) * one_minus_beta1
    square = square * beta2 + one_minus_beta2 * grad * grad
    tl.store(mean_ptr + offsets, mean, mask=mask)
    tl.store(square_ptr + offsets, square, mask=mask)
    if AMSGRAD:
        largest = tl.load(largest_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
        square = tl.maximum(largest, square, propagate_nan=tl.PropagateNan.ALL)
        tl.store(largest_ptr + offsets, square, mask=mask)
    param = param * decay - step_size * (mean / (tl.sqrt(square) / correction + eps))
    tl.store(param_ptr + offsets, param, mask=mask)


@triton.jit
def _adamw_chunk(row, count_ptr, decay, one_minus_beta1, beta2, one_minus_beta2, step_size,
                 correction, eps, penalty, AMSGRAD: tl.constexpr, MAXIMIZE: tl.constexpr,
                 PENALTY: tl.constexpr, DTYPES: tl.constexpr, COMPUTE: tl.constexpr,
                 ALIGNED: tl.constexpr, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """The chunk whose addresses stand at `row`; the scalars are float64."""
    param_ptr = tl.load(row).to(tl.pointer_type(DTYPES[0]))
    grad_ptr = tl.load(row + 1).to(tl.pointer_type(DTYPES[1]))
    mean_ptr = tl.load(row + 2).to(tl.pointer_type(DTYPES[2]))
    square_ptr = tl.load(row + 3).to(tl.pointer_type(DTYPES[3]))
    largest_ptr = square_ptr
    if AMSGRAD:
        largest_ptr = tl.load(row + 4).to(tl.pointer_type(DTYPES[4]))
    n_elements = tl.load(count_ptr).to(tl.int32)
    if ALIGNED:
        param_ptr = tl.multiple_of(param_ptr, 16)
        grad_ptr = tl.multiple_of(grad_ptr, 16)
        mean_ptr = tl.multiple_of(mean_ptr, 16)
        square_ptr = tl.multiple_of(square_ptr, 16)
        largest_ptr = tl.multiple_of(largest_ptr, 16)
    decay = tl.full((), decay, COMPUTE)
    one_minus_beta1 = tl.full((), one_minus_beta1, COMPUTE)
    beta2 = tl.full((), beta2, COMPUTE)
    one_minus_beta2 = tl.full((), one_minus_beta2, COMPUTE)
    step_size = tl.full((), step_size, COMPUTE)
    correction = tl.full((), correction, COMPUTE)
    eps = tl.full((), eps, COMPUTE)
    penalty = tl.full((), penalty, COMPUTE)
    # Full blocks have no mask, which would split their loads into single elements.
    full = n_elements // BLOCK_SIZE * BLOCK_SIZE
    offsets = tl.arange(0, BLOCK_SIZE)
    everything = tl.full([BLOCK_SIZE], True, tl.int1)
    for start in range(0, full, BLOCK_SIZE):
        _adamw_block(param_ptr, grad_ptr, mean_ptr, square_ptr, largest_ptr, start + offsets,
                     everything, decay, one_minus_beta1, beta2, one_minus_beta2, step_size,
                     correction, eps, penalty, AMSGRAD, MAXIMIZE, PENALTY, COMPUTE)  # fmt: skip
    if full < n_elements:
        offsets += full
        _adamw_block(param_ptr, grad_ptr, mean_ptr, square_ptr, largest_ptr, offsets,
                     offsets < n_elements, decay, one_minus_beta1, beta2, one_minus_beta2,
                     step_size, correction, eps, penalty, AMSGRAD, MAXIMIZE, PENALTY,
                     COMPUTE)  # fmt: skip


@triton.jit
def adamw_kernel(table_ptr,
                 decay: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                 one_minus_beta1: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                 beta2: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                 one_minus_beta2: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                 step_size: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                 correction: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                 eps: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                 AMSGRAD: tl.constexpr, MAXIMIZE: tl.constexpr, DTYPES: tl.constexpr,
                 COMPUTE: tl.constexpr, ALIGNED: tl.constexpr,
                 BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """One chunk a program; its row of the table: parameter, gradient, mean, mean square, largest
    mean square, elements. The caller knows the number of the step."""
    row = table_ptr + tl.program_id(0) * 6
    _adamw_chunk(row, row + 5, decay, one_minus_beta1, beta2, one_minus_beta2, step_size,
                 correction, eps, 0.0, AMSGRAD, MAXIMIZE, tl.constexpr(False), DTYPES, COMPUTE,
                 ALIGNED, BLOCK_SIZE)  # fmt: skip


@triton.jit
def adamw_counted_kernel(table_ptr,
                         lr: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                         beta1: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                         beta2: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                         weight_decay: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                         eps: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
                         AMSGRAD: tl.constexpr, MAXIMIZE: tl.constexpr, PENALTY: tl.constexpr,
                         DTYPES: tl.constexpr, COMPUTE: tl.constexpr, ALIGNED: tl.constexpr,
                         BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """The same with the number of the step, float32, in the device's memory: its address stands
    in front of the elements. PENALTY: Adam, else AdamW. (aten::_fused_adam_, _fused_adamw_)"""
    row = table_ptr + tl.program_id(0) * 7
    step = tl.load(tl.load(row + 5).to(tl.pointer_type(tl.float32))).to(tl.float64)
    # In double precision, as 1 - 0.999 in float32 has but four digits.
    beta1 = tl.full((), beta1, tl.float64)
    beta2 = tl.full((), beta2, tl.float64)
    step_size = lr / (1 - tl.exp(step * tl.log(beta1)))
    correction = tl.sqrt(1 - tl.exp(step * tl.log(beta2)))
    decay = tl.full((), 1, tl.float64)
    if not PENALTY:
        decay -= lr * weight_decay
    _adamw_chunk(row, row + 6, decay, 1 - beta1, beta2, 1 - beta2, step_size, correction, eps,
                 weight_decay, AMSGRAD, MAXIMIZE, PENALTY, DTYPES, COMPUTE, ALIGNED,
                 BLOCK_SIZE)  # fmt: skip


def adamw_step(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors = (),
    *,
    step: int | Sequence[int],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
    maximize: bool = False,
) -> None:
    """Updates params and their states (zeros before the first step) in place.

    The lists have one tensor of any shape for each parameter; max_exp_avg_sqs only with `amsgrad`.
    step: the number of this step, from 1, for all or for each parameter; it is no tensor, because
    reading one would wait for the device. dtypes: float32, bfloat16, float16 (computed in float32,
    rounded once), float64, also mixed. Options as of `torch.optim.AdamW`. Raises ValueError for
    options, RuntimeError for lengths, shapes and devices that do not fit, NotImplementedError for
    dtypes.
    """
    largest = list(max_exp_avg_sqs) if amsgrad else [None] * len(params)
    _multi_tensor.check_lists(
        OP, params, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs, max_exp_avg_sqs=largest
    )
    steps = [step] * len(params) if isinstance(step, int) else list(step)
    _check_options(len(params), steps, lr, betas, eps, weight_decay)
    with torch.no_grad():
        adamw_update(list(params), list(grads), list(exp_avgs), list(exp_avg_sqs),
                     list(max_exp_avg_sqs) if amsgrad else [], steps, lr, *betas, eps, weight_decay,
                     maximize)  # fmt: skip


@_launch.recorded(lambda *_: None, mutates=("params", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"))
def adamw_update(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    max_exp_avg_sqs: Sequence[torch.Tensor],
    steps: Sequence[int],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """`adamw_step` as one op (Loshchilov and Hutter, arXiv:1711.05101); with max_exp_avg_sqs it is
    AMSGrad (Reddi, Kale and Kumar, arXiv:1904.09237).

    Each list has one tensor of the parameter's shape for each parameter, of any dtype of
    `adamw_step`; max_exp_avg_sqs may be empty. steps: one number for each.
    """
    amsgrad = bool(max_exp_avg_sqs)
    largest = max_exp_avg_sqs if amsgrad else [None] * len(params)
    lists = (params, grads, exp_avgs, exp_avg_sqs, largest)
    for now in sorted(set(steps)):  # usually one: the corrections of the bias depend on it
        chosen = [i for i, other in enumerate(steps) if other == now]
        # In double precision here, as in torch: 1 - 0.999 in float32 has but four digits.
        scalars = (
            1 - lr * weight_decay, 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1**now),
            math.sqrt(1 - beta2**now), eps,
        )  # fmt: skip
        _multi_tensor.update(
            adamw_kernel, [[tensors[i] for tensors in lists] for i in chosen],
            [float(scalar) for scalar in scalars], (0, 2, 3, 4), AMSGRAD=amsgrad, MAXIMIZE=maximize,
        )  # fmt: skip


def _check_options(n_params, steps, lr, betas, eps, weight_decay) -> None:
    if len(steps) != n_params:
        raise RuntimeError(
            f"[{OP}] step has another length than params, got {len(steps)}, expected {n_params}"
        )
    for now in steps:
        _multi_tensor.check_range(OP, "step", now, 1)
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        _multi_tensor.check_range(OP, name, value, 0.0)
    for i, beta in enumerate(betas):
        _multi_tensor.check_range(OP, f"betas[{i}]", beta, 0.0, 1.0)
