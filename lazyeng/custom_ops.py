"""Custom ops: each is recorded as one op from its first call on.

The dispatcher's registration listener (csrc/record/library.cpp) hears of an op when it is defined,
before it has kernels; here lazyeng is told when kernels have come.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.library
from torch._library import custom_ops as definitions

from lazyeng import _C


def install() -> None:
    """Puts the telling functions in place of torch's own. Once per process, at import."""
    torch.library.Library.impl = _then_adopt(torch.library.Library.impl)
    torch.library.Library._destroy = _after_what_is_recorded(torch.library.Library._destroy)
    torch.ops.load_library = _then_adopt(torch.ops.load_library)
    definitions.increment_version = _announced(definitions.increment_version)


def _then_adopt(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _C.adopt_ops_with_kernels()
        return result

    return register


def _after_what_is_recorded(destroy: Callable[..., Any]) -> Callable[..., Any]:
    """Defining a custom op of the same name again first takes back the old one: calls of that one
    that have not run would find the new kernel."""

    @functools.wraps(destroy)
    def destroy_library(self: Any) -> None:
        if not _C.in_custom_kernel():
            _C.wait_for_all()
        destroy(self)

    return destroy_library


def _announced(increment: Callable[[Any], None]) -> Callable[[Any], None]:
    """An op made by custom_op moves the version counters of what it writes before its kernel is
    called (those of aten do so afterwards): see csrc/run/own_writes.h."""

    @functools.wraps(increment)
    def increment_version(value: Any) -> None:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                _C.announce_own_write(item)
        increment(value)

    return increment_version
