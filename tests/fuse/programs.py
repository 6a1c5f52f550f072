"""Random programs, recorded and planned, for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

import lazyeng
from lazyeng import _C
from lazyeng.fuse.description import Planned, Plans, planned
from tests.fusion_programs import FLOATS, Dag


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Nothing in it runs, all that can be fused is, and nothing of it is left afterwards."""
    _C.set_inexact_fusion(True)
    try:
        with lazyeng.lazy("deferred"):
            yield
    finally:
        _C.set_inexact_fusion(False)
        lazyeng.synchronize()


def plans_of(function: Callable[..., object], *tensors: torch.Tensor) -> Plans:
    """The plans for function(*tensors), all of whose results are needed."""
    with recording():  # the first call of some ops runs them, and what was recorded before
        function(*(lazyeng.wrap(tensor.clone()) for tensor in tensors))
    with recording():
        results = function(*map(lazyeng.wrap, tensors))
        plans = planned()
        del results
    return plans


def random_plans(seed: int, steps: int, exact: bool, floats=FLOATS, rows: bool = False) -> Plans:
    if rows:  # (the first call of some ops runs what was recorded before)
        with recording():
            Dag(seed, exact, lazyeng.wrap, floats, rows).run(steps)
    with recording():
        pool = Dag(seed, exact, lazyeng.wrap, floats, rows).run(steps)
        plans = planned()
        del pool
    return plans


def groups_of(plans: Plans) -> list[Planned]:
    return [op for op in plans.ops if op.program is not None]
