"""TorchScript saves what its parameters hold: not before recorded writes to them have run.

(It reads their memory in C++, where plain tensors with a write to come refuse.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C

_SAVERS = ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile")


def install() -> None:
    """Puts waiting methods in place of torch's. Once per process, at import."""
    for name in _SAVERS:
        if original := getattr(torch._C.ScriptModule, name, None):
            setattr(torch._C.ScriptModule, name, _waiting(original))


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        _C.wait_for_plain_writes()
        return original(*args, **kwargs)

    return save
