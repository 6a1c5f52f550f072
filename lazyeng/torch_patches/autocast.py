"""`torch.autocast` tells lazyeng when it begins and ends (csrc/record/special/autocast.h)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C


def install() -> None:
    """Once per process."""
    for name in ("__enter__", "__exit__"):
        setattr(torch.autocast, name, _then_follow(getattr(torch.autocast, name)))


def _then_follow(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any) -> Any:
        try:
            return original(*args)
        finally:
            _C.follow_autocast()

    return method
