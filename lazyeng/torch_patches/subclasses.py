"""`tensor.as_subclass(cls)`, which results of a user's tensor class go through, and `cls(tensor)`.

A LazyTensor has its class already, and torch gives no tensor a second one. So what becomes another
class is plain, a view of the same memory, as in eager: the call waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from lazyeng import _C, errors
from lazyeng.tensor import LazyTensor
from lazyeng.torch_patches._patching import inside_block, put_method
from lazyeng.torch_patches.parameters import of_class


def install() -> None:
    """Puts the waiting methods in place of torch's. Once per process, at import."""
    original: Any = torch.Tensor.as_subclass

    @functools.wraps(original)
    @errors.boundary
    def as_subclass(self: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
        lazy = _C.is_lazy(self)
        if not (lazy or inside_block()) or not isinstance(cls, type):
            return original(self, cls)
        if cls is torch.Tensor or (lazy and isinstance(self, cls)):
            return original(self, cls)
        if lazy and issubclass(cls, UninitializedTensorMixin):  # a buffer has been moved
            return of_class(cls, self, self.requires_grad)
        view = _C.plain_view(self) if lazy else self
        return _C.call_outside(original, (view, cls), {})

    put_method("as_subclass", as_subclass)
    torch.Tensor.__new__ = staticmethod(_new_like(torch.Tensor.__new__))


def _new_like(original: Callable[..., Any]) -> Callable[..., Any]:
    """The constructor that tensor classes inherit, or call: it gives an alias another class."""

    @functools.wraps(original)
    @errors.boundary
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else None
        if cls is torch.Tensor or not (_C.is_lazy(data) or inside_block()):
            return original(cls, *args, **kwargs)
        if issubclass(cls, LazyTensor):
            return original(cls, *args, **kwargs)
        if isinstance(data, torch.Tensor) and len(args) == 1 and not kwargs:
            return data.as_subclass(cls)
        return _C.call_outside(original, (cls, *args), kwargs)

    return new
