"""Which implementation torch's optimizers take where they record.

torch.optim has two of each: a loop over the parameters, its default on the CPU, and one that calls
ops over lists of them (``foreach=True``), its default on accelerators. The second calls from Python
once for all parameters; what it calls is recorded tensor by tensor (csrc/record/tensor_lists.cpp)
and runs as groups. So where neither ``foreach`` nor ``fused`` is given, it is the default here too:
for optimizers whose two implementations give the same bits, and parameters that are small, where
calls cost more than arithmetic. (The window of recorded ops does not hold all that is done to
one of many parameters; memory is then gone over more often.)
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C
from lazyeng.compiled import _inside
from lazyeng.tensor import LazyTensor

_SAME_BITS = ("adam", "adamw", "adamax", "rprop")  # modules of torch.optim

_SMALL = 512  # elements of a parameter, on average
_FEW, _SMALL_ALL = 16, 2**20  # parameters whose whole step the window holds; their elements

_TYPES = (torch.Tensor, torch.nn.Parameter, LazyTensor)  # (of complex ones last bits would differ)

_Choice = Callable[..., tuple[bool, bool]]


def install() -> None:
    """Puts our choice in front of torch's. Once per process, at import."""
    for name in _SAME_BITS:
        module: Any = importlib.import_module(f"torch.optim.{name}")
        if hasattr(module, "_default_to_fused_or_foreach"):
            module._default_to_fused_or_foreach = _in_front_of(module._default_to_fused_or_foreach)


def _in_front_of(torchs_choice: _Choice) -> _Choice:
    @functools.wraps(torchs_choice)
    def choose(
        params: list[torch.Tensor], differentiable: bool, use_fused: bool = False
    ) -> tuple[bool, bool]:
        if torch.compiler.is_compiling() or differentiable or use_fused or not _pays(params):
            return torchs_choice(params, differentiable, use_fused)
        return False, True

    return choose


def _pays(params: list[torch.Tensor]) -> bool:
    if not params or not (_inside() or all(_C.is_lazy(p) for p in params)):
        return False
    # One that is there twice has two steps, in this order.
    if len({id(p) for p in params}) < len(params):
        return False
    elements = 0
    for p in params:
        if type(p) not in _TYPES or not p.is_cpu or not p.is_floating_point():
            return False
        elements += p.numel()
    return elements < _SMALL * len(params) or (len(params) <= _FEW and elements < _SMALL_ALL)
