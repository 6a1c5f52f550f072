"""`plain.data`, also assigned to, as module.to(...) inside lazy() does with its parameters.

Assigning `data` keeps the object, which optimizers hold and which layers may share, and gives it
other memory. A plain tensor cannot take up what is not computed yet, so the assignment waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C, errors
from lazyeng.torch_patches._patching import as_builtin_of, inside_block

_original: Any = torch.Tensor.data  # a descriptor, whatever its stub says


def install() -> None:
    """Puts the waiting setter in place of torch.Tensor's. Once per process, at import."""
    data = property(_get_data, _set_data, _original.__delete__, doc=_original.__doc__)
    setattr(torch.Tensor, "data", data)  # noqa: B010
    name = "_has_compatible_shallow_copy_type"
    compatible = getattr(torch, name)
    setattr(torch, name, as_builtin_of(compatible, _of_plain_ones(compatible)))


def _get_data(tensor: torch.Tensor) -> torch.Tensor:
    """Writes through it move no counter of `tensor`: those who read the memory look at its own."""
    alias = _original.__get__(tensor)
    _C.note_alias(tensor, alias)
    return alias


@errors.boundary
def _set_data(tensor: torch.Tensor, value: Any) -> None:
    # (A lazy tensor's own setter calls torch's, which finds this one while a function mode is on.)
    if isinstance(value, torch.Tensor) and _C.is_lazy(value) and not _C.is_lazy(tensor):
        value = _C.plain(value)
    _original.__set__(tensor, value)


def _of_plain_ones(compatible: Callable[..., bool]) -> Callable[..., bool]:
    """Whether `tensor.data = value` is possible; torch.nn.Module.to makes new parameters if not."""

    @functools.wraps(compatible)
    def call(tensor: torch.Tensor, value: torch.Tensor) -> bool:
        if not inside_block():  # module.to("lazyeng") is to make lazy parameters
            return compatible(tensor, value)
        return compatible(_plain_one(tensor), _plain_one(value))

    return call


def _plain_one(tensor: torch.Tensor) -> torch.Tensor:
    return _C.call_outside(_empty_like, (tensor,), {}) if _C.is_lazy(tensor) else tensor


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device)
