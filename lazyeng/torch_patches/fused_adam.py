"""Adam's and AdamW's step over parameters on CUDA, recorded as one op.

torch.optim's default there is a dozen calls over lists of tensors, and two reads of each
parameter's step counter: work of the program's thread, which is what limits small models on a GPU
(docs/gpu.md). ATen has the step as one op (``fused=True``), which a hand-written kernel runs
(triton_kernels/adamw.py) or else torch's own: the same operations in the same order, whose last
bits differ (a decay is subtracted, sums and products may be contracted). So it is left alone where
LAZYENG_FUSION demands eager's bits, and in dtypes in which that op rounds less often.

The state stays that of the default: the counters are tensors on the CPU.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C
from lazyeng.config import MODES
from lazyeng.torch_patches.optimizers import TYPES, are_recorded

_torch: Any = torch  # (its type stubs leave these functions out)
_DTYPES = (torch.float32, torch.float64)
_SYNC = MODES.index("sync")

_enabled = [False]


def enable(on: bool) -> None:
    """Whether last bits may be other than eager's."""
    _enabled[0] = on


def install() -> None:
    """Puts the step in front of torch's. Once per process, at import."""
    module: Any = importlib.import_module("torch.optim.adam")
    module._multi_tensor_adam = _in_one_op(module._multi_tensor_adam)


def _in_one_op(torchs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(torchs)
    def step(*lists: Any, grad_scale: Any = None, found_inf: Any = None, **options: Any) -> None:
        fits = grad_scale is None and found_inf is None and _are_numbers(options)
        if not (fits and _enabled[0] and len(lists) == 6 and _fit(*lists)):
            return torchs(*lists, grad_scale=grad_scale, found_inf=found_inf, **options)
        _record(*lists, **options)

    return step


def _are_numbers(options: dict[str, Any]) -> bool:
    numbers = all(isinstance(options[name], (float, int)) for name in ("lr", "beta1", "beta2"))
    return numbers and not any(options[n] for n in ("capturable", "differentiable", "has_complex"))


def _fit(params: list[torch.Tensor], grads: list[torch.Tensor], means: list[torch.Tensor],
         squares: list[torch.Tensor], largest: list[torch.Tensor],
         steps: list[torch.Tensor]) -> bool:  # fmt: skip
    """Whether the op takes them: one device, one dtype, and the tensors of a parameter in one order
    in memory."""
    if not params or not params[0].is_cuda or torch.compiler.is_compiling():
        return False
    if _C.thread_mode()[0] == _SYNC or not are_recorded(params):
        return False
    if params[0].dtype not in _DTYPES or not {type(p) for p in params} <= {*TYPES}:
        return False
    if any(grad.requires_grad for grad in grads) or not all(step.is_cpu for step in steps):
        return False
    return _C.lie_alike(params, grads, means, squares, *([largest] if largest else []))


def _record(params: list[torch.Tensor], grads: list[torch.Tensor], means: list[torch.Tensor],
            squares: list[torch.Tensor], largest: list[torch.Tensor], steps: list[torch.Tensor], *,
            decoupled_weight_decay: bool, lr: float, beta1: float, beta2: float,
            weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
            **_: bool) -> None:  # fmt: skip
    _torch._foreach_add_(steps, 1.0)
    numbers = [step.item() for step in steps]
    # (The op reads them on the device.)
    counters = {n: params[0].new_full((), n, dtype=torch.float32) for n in {*numbers}}
    update = _torch._fused_adamw_ if decoupled_weight_decay else _torch._fused_adam_
    update(
        # (Its schema has gradients as written, for scales that are none here: their versions stay.)
        params, [grad.data for grad in grads], means, squares, largest,
        [counters[n] for n in numbers],
        lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay, eps=eps, amsgrad=amsgrad,
        maximize=maximize, grad_scale=None, found_inf=None,
    )  # fmt: skip
