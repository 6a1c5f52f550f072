"""`tensor.as_subclass(cls)`, which results of a user's tensor class go through.

A LazyTensor has its class already, and torch gives no tensor a second one. So what becomes another
class is plain, a view of the same memory, as in eager: the call waits.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from lazyeng import _C, errors
from lazyeng.compiled import _inside


def install() -> None:
    """Puts the waiting method in place of torch's. Once per process, at import."""
    original: Any = torch.Tensor.as_subclass

    @functools.wraps(original)
    @errors.boundary
    def as_subclass(self: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
        plain = not _C.is_lazy(self) and not _inside()
        if plain or not isinstance(cls, type) or isinstance(self, cls):
            return original(self, cls)
        view = _C.plain_view(self) if _C.is_lazy(self) else self
        return _C.call_outside(original, (view, cls), {})

    torch.Tensor.as_subclass = as_subclass
