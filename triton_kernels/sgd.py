"""One step of stochastic gradient descent for a list of parameters, in one launch.

The update is that of `torch.optim.SGD` (Sutskever et al., "On the importance of initialization and
momentum in deep learning", 2013), in its order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from . import _launch, _multi_tensor
from ._multi_tensor import Tensors

OP = "sgd"


@triton.jit
def _sgd_block(param_ptr, grad_ptr, buffer_ptr, offsets, mask, lr, momentum, one_minus_dampening,
               weight_decay, MOMENTUM: tl.constexpr, FIRST: tl.constexpr, NESTEROV: tl.constexpr,
               MAXIMIZE: tl.constexpr, COMPUTE: tl.constexpr):  # fmt: skip
    param = tl.load(param_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
    if MAXIMIZE:
        grad = grad * -1  # (Triton 3.7 makes 0 - x of -x)
    # (0 * inf would be NaN)
    grad = tl.where(weight_decay != 0, grad + weight_decay * param, grad)
    if MOMENTUM:
        buffer = grad  # the first gradient is not damped
        if not FIRST:
            buffer = tl.load(buffer_ptr + offsets, mask=mask, other=0.0).to(COMPUTE)
            buffer = buffer * momentum + one_minus_dampening * grad
        tl.store(buffer_ptr + offsets, buffer, mask=mask)
        grad = grad + momentum * buffer if NESTEROV else buffer
    tl.store(param_ptr + offsets, param - lr * grad, mask=mask)


@triton.jit
def sgd_kernel(table_ptr,
               lr: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
               momentum: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
               dampening: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
               weight_decay: tl.float64,  # pyright: ignore[reportInvalidTypeForm]
               MOMENTUM: tl.constexpr, FIRST: tl.constexpr, NESTEROV: tl.constexpr,
               MAXIMIZE: tl.constexpr, DTYPES: tl.constexpr, COMPUTE: tl.constexpr,
               ALIGNED: tl.constexpr, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """One chunk a program; its row of the table: parameter, gradient, buffer, elements."""
    row = table_ptr + tl.program_id(0) * 4
    param_ptr = tl.load(row).to(tl.pointer_type(DTYPES[0]))
    grad_ptr = tl.load(row + 1).to(tl.pointer_type(DTYPES[1]))
    buffer_ptr = param_ptr
    if MOMENTUM:
        buffer_ptr = tl.load(row + 2).to(tl.pointer_type(DTYPES[2]))
    n_elements = tl.load(row + 3).to(tl.int32)
    if ALIGNED:
        param_ptr = tl.multiple_of(param_ptr, 16)
        grad_ptr = tl.multiple_of(grad_ptr, 16)
        buffer_ptr = tl.multiple_of(buffer_ptr, 16)
    lr = tl.full((), lr, COMPUTE)
    momentum = tl.full((), momentum, COMPUTE)
    one_minus_dampening = tl.full((), 1 - dampening, COMPUTE)
    weight_decay = tl.full((), weight_decay, COMPUTE)
    # Full blocks have no mask, which would split their loads into single elements.
    full = n_elements // BLOCK_SIZE * BLOCK_SIZE
    offsets = tl.arange(0, BLOCK_SIZE)
    everything = tl.full([BLOCK_SIZE], True, tl.int1)
    for start in range(0, full, BLOCK_SIZE):
        _sgd_block(param_ptr, grad_ptr, buffer_ptr, start + offsets, everything, lr, momentum,
                   one_minus_dampening, weight_decay, MOMENTUM, FIRST, NESTEROV, MAXIMIZE,
                   COMPUTE)  # fmt: skip
    if full < n_elements:
        offsets += full
        _sgd_block(param_ptr, grad_ptr, buffer_ptr, offsets, offsets < n_elements, lr, momentum,
                   one_minus_dampening, weight_decay, MOMENTUM, FIRST, NESTEROV, MAXIMIZE,
                   COMPUTE)  # fmt: skip


def sgd_step(
    params: Tensors,
    grads: Tensors,
    momentum_buffers: list[torch.Tensor | None],
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
) -> None:
    """Updates params and momentum_buffers in place.

    The lists have one tensor of any shape for each parameter; a buffer that is None is made and put
    into its list (the first step). dtypes: float32, bfloat16, float16 (computed in float32, rounded
    once), float64, also mixed. Options as of `torch.optim.SGD`. Raises ValueError for options,
    RuntimeError for lengths, shapes and devices that do not fit, NotImplementedError for dtypes.
    """
    _multi_tensor.check_lists(OP, params, grads=grads, momentum_buffers=momentum_buffers)
    for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
        _multi_tensor.check_range(OP, name, value, 0.0)
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ValueError(
            f"[{OP}] nesterov does not fit, got momentum {momentum} and dampening {dampening}, "
            "expected momentum above 0 and dampening 0"
        )
    missing = [momentum != 0 and buffer is None for buffer in momentum_buffers]
    for i, is_missing in enumerate(missing):
        if is_missing:
            momentum_buffers[i] = torch.empty_like(params[i], requires_grad=False)
    buffers = [buffer for buffer in momentum_buffers if buffer is not None] if momentum else []
    with torch.no_grad():
        sgd_update(list(params), list(grads), buffers, missing, lr, momentum, dampening,
                   weight_decay, nesterov, maximize)  # fmt: skip


@_launch.recorded(lambda *_: None, mutates=("params", "momentum_buffers"))
def sgd_update(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    momentum_buffers: Sequence[torch.Tensor],
    first: Sequence[bool],
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """`sgd_step` as one op (Sutskever et al., 2013).

    Each list has one tensor of the parameter's shape for each parameter, of any dtype of
    `sgd_step`; momentum_buffers is empty without momentum. `first` says whose buffer has no values
    yet.
    """
    scalars = (float(lr), float(momentum), float(dampening), float(weight_decay))
    constants = {"MOMENTUM": momentum != 0, "NESTEROV": nesterov, "MAXIMIZE": maximize}
    lists = (params, grads, momentum_buffers or [None] * len(params))
    for now in sorted(set(first)):
        rows = [row for row, is_first in zip(zip(*lists, strict=True), first, strict=True)
                if is_first == now]  # fmt: skip
        _multi_tensor.update(sgd_kernel, rows, scalars, (0, 2), FIRST=now, **constants)
