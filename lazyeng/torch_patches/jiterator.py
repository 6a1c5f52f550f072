"""Functions of ``torch.cuda.jiterator`` launch their kernel without torch's dispatcher: they get
plain tensors, whose values are there, and what they return is wrapped."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.cuda.jiterator as _torchs

from lazyeng import _C
from lazyeng.torch_patches._patching import inside_block
from lazyeng.wrapping import unwrap, wrap


def install() -> None:
    """Puts the unwrapping call in front of torch's. Once per process, at import."""
    original = _torchs._JittedFunction.__call__

    @functools.wraps(original)
    def call(self: Any, *tensors: torch.Tensor, **kwargs: Any) -> Any:
        if not inside_block() and not any(_C.is_lazy(tensor) for tensor in tensors):
            return original(self, *tensors, **kwargs)
        return wrap(original(self, *unwrap(tensors), **kwargs))

    setattr(_torchs._JittedFunction, "__call__", call)  # noqa: B010
