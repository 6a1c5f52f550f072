"""Which implementation torch's optimizers take where they record.

torch.optim has two of each: a loop over the parameters, its default on the CPU, and one that calls
ops over lists of them (``foreach=True``), its default on accelerators. The second calls from Python
once for all parameters; what it calls is recorded tensor by tensor
(csrc/record/special/tensor_lists.cpp) and runs as groups. So where neither ``foreach`` nor
``fused`` is given, it is the default here too: for optimizers whose two implementations give the
same bits, and parameters that are small, where calls cost more than arithmetic. (With SGD the
loop's few calls cost less than what goes before a call over lists; what lists keep between their
calls, of large parameters, has to be written.)

Lists are handed to it in portions: a window of recorded ops should hold all that is done to a
parameter, which is then one group and goes over the parameter's memory once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import _foreach_supported_types as _optimizers_types
from torch.utils._foreach_utils import _foreach_supported_types as _other_types

from lazyeng import _C
from lazyeng.tensor import LazyTensor
from lazyeng.torch_patches._patching import inside_block, when_imported

_SAME_BITS = ("adam", "adamw", "adamax", "rprop")  # modules of torch.optim

_SMALL = 16384  # elements of a parameter, on average

# A portion is full with so many parameters of so many elements. (A window may end in the middle of
# one; of what it then holds of a large parameter, memory is gone over twice.)
_FULL = ((4, 262144), (8, 65536), (16, 8192))
_ONE = 16  # parameters that are always one portion

TYPES = (torch.Tensor, torch.nn.Parameter, LazyTensor)
_DTYPES = (torch.float32, torch.float64)  # (of others last bits would differ)

_Function = Callable[..., Any]


def install() -> None:
    """Puts our choice in front of torch's. Once per process, at import."""
    # On accelerators lists are torch's default, and lists of lazy tensors are such lists.
    for types in (_optimizers_types, _other_types):
        types.append(LazyTensor)
    for name in _SAME_BITS:
        module: Any = importlib.import_module(f"torch.optim.{name}")
        one_by_one: Any = getattr(module, f"_single_tensor_{name}", None)
        _replace(module, "_default_to_fused_or_foreach", _choice)
        _replace(module, f"_multi_tensor_{name}", lambda lists, one=one_by_one: _over(lists, one))


def _replace(module: Any, name: str, ours: Callable[[_Function], _Function]) -> None:
    if hasattr(module, name):
        torchs = getattr(module, name)
        replaced = functools.wraps(torchs)(ours(torchs))
        setattr(module, name, replaced)
        when_imported("torch._dynamo", lambda dynamo: _trace(dynamo, torchs, replaced))


def _trace(dynamo: Any, torchs: _Function, replaced: _Function) -> None:
    """What is compiled has torch's own choice, which our frame, as it is not traced, would not
    know to be asked for."""
    with contextlib.suppress(ValueError):  # it was told already: the module is loaded again
        dynamo.decorators.substitute_in_graph(replaced, skip_signature_check=True)(torchs)


class _Choice(threading.local):
    ours = False  # not the program's, of the implementation over lists that is called next


_chosen = _Choice()


def _choice(torchs: _Function) -> _Function:
    def choose(
        params: list[torch.Tensor], differentiable: bool, use_fused: bool = False
    ) -> tuple[bool, bool]:
        if differentiable or use_fused or not _pays(params):
            return torchs(params, differentiable, use_fused)
        _chosen.ours = True
        return False, True

    return choose


def _over(torchs: _Function, one_by_one: _Function) -> _Function:
    """The implementation over lists; but that of one parameter at a time where it is only our
    choice, and there is a number among its options that is a tensor, of which lists want none."""

    def step(*lists: Any, **options: Any) -> None:
        params = lists[0]
        ours, _chosen.ours = _chosen.ours, False
        if ours and any(isinstance(option, torch.Tensor) for option in options.values()):
            return one_by_one(*lists, **options)
        if len(params) <= _ONE or not _pays(params):
            return torchs(*lists, **options)
        for portion in _portions(params):
            parts = [x[portion] if isinstance(x, list) else x for x in lists]
            torchs(*parts, **options)
            for whole, part in zip(lists, parts, strict=True):
                if isinstance(whole, list) and whole:
                    whole[portion] = part  # (an implementation may put state there)

    return step


def _portions(params: list[torch.Tensor]) -> Iterator[slice]:
    begin, elements = 0, 0
    for i, p in enumerate(params):
        if any(i - begin >= count and elements >= least for count, least in _FULL):
            yield slice(begin, i)
            begin, elements = i, 0
        elements += p.numel()
    yield slice(begin, len(params))


def are_recorded(params: list[torch.Tensor]) -> bool:
    """Whether a step of theirs is recorded, and one step of each (one that is there twice has two,
    in this order)."""
    recorded = params and (inside_block() or all(_C.is_lazy(p) for p in params))
    return bool(recorded) and len({id(p) for p in params}) == len(params)


def _pays(params: list[torch.Tensor]) -> bool:
    """Whether their step is recorded, has the same bits by both implementations, and is small."""
    if not are_recorded(params):
        return False
    elements = 0
    for p in params:
        if type(p) not in TYPES or not p.is_cpu or p.dtype not in _DTYPES:
            return False
        elements += p.numel()
    return elements < _SMALL * len(params)
