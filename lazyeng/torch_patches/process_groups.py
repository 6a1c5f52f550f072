"""Process groups: what a program does to them directly, past torch's dispatcher, keeps its place
among the collectives that are recorded (csrc/record/special/collectives.cpp)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed

from lazyeng import _C


def install() -> None:
    """Puts the ordering methods in place of torch's own. Once per process, at import."""
    if not torch.distributed.is_available():
        return
    group: Any = torch.distributed.ProcessGroup
    # What is recorded needs the group. (Not so abort, which ends what does not end by itself.)
    group.shutdown = _after(_C.wait_for_all, group.shutdown)
    # In between, a backend joins collectives to one, whose Work only the end returns.
    if hasattr(group, "_start_coalescing"):
        started = _then_if_done(group._start_coalescing, _begin_at_the_call)
        group._start_coalescing = _after(_C.wait_for_all, started)
        group._end_coalescing = _then(group._end_coalescing, _end_at_the_call)


def _begin_at_the_call() -> None:
    _C.set_collectives_at_the_call(True)


def _end_at_the_call() -> None:
    _C.set_collectives_at_the_call(False)


def _after(first: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        first()
        return original(*args, **kwargs)

    return method


def _then_if_done(original: Callable[..., Any], last: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        last()
        return result

    return method


def _then(original: Callable[..., Any], last: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            last()

    return method
