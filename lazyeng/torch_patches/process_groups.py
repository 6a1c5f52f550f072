"""Process groups: what a program does to them directly, past torch's dispatcher, keeps its place
among the collectives that are recorded (csrc/record/special/collectives.cpp). And how
DistributedDataParallel makes its buckets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed
import torch.nn.parallel

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
    # The buckets of gradients are made here, and views of them, which are to be plain, too: what
    # looks at them later comes through no kernel of ours (csrc/record/special/reducers.h).
    data_parallel: Any = torch.nn.parallel.DistributedDataParallel
    if hasattr(data_parallel, "_ddp_init_helper"):
        data_parallel._ddp_init_helper = _outside(data_parallel._ddp_init_helper)


def _begin_at_the_call() -> None:
    _C.set_collectives_at_the_call(True)


def _end_at_the_call() -> None:
    _C.set_collectives_at_the_call(False)


def _outside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return _C.call_outside(original, args, kwargs)

    return method


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
