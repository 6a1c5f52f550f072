"""`plain.resize_(...)` outside of blocks, which may free the memory that the tensor leaves.

The engine may be reading that memory, or be about to: it is done with it first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C
from lazyeng.torch_patches._patching import put_method

_METHODS = ("resize_", "resize_as_")


def install() -> None:
    """Puts methods that wait in the place of torch.Tensor's. Once per process, at import."""
    for name in _METHODS:
        put_method(name, _after_uses(getattr(torch.Tensor, name)))


def _after_uses(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def resize(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        _C.finish_uses(self)
        return original(self, *args, **kwargs)

    return resize
