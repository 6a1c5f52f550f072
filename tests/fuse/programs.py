"""Random programs, recorded and planned, for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import lazyeng
from lazyeng import _C
from lazyeng.fuse.description import Planned, Plans, planned
from lazyeng.fuse.source import Source, source_of
from tests.programs.fusion_programs import DEEPEST, FLOATS, Dag, widest
from tests.programs.fusion_steps import exact_of_integers


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


def random_plans(seed: int, depth: int, exact: bool, floats=FLOATS, rows: bool = False) -> Plans:
    """Those of a random program, all of whose results are needed. Those with functions take the
    further steps of tests/programs/fusion_steps.py; exact ones those of integers: a GPU's
    functions, and its zeros, are not those of torch's loops."""

    def record() -> tuple[list[torch.Tensor], Plans]:
        dag = Dag(seed, lazyeng.wrap, exact, floats, rows, more=not exact and not rows)
        dag.makers = [_widest if maker is widest else maker for maker in dag.makers]
        dag.makers += [exact_of_integers] * (2 * exact)
        return dag.run(depth), planned()

    with recording():  # the first call of some ops runs what was recorded before
        record()
    with recording():
        return record()[1]


def _widest(dag: Dag) -> torch.Tensor:
    """Which of 0.0 and -0.0 is the larger one depends on the place in a vector, and GPUs have none.
    So all are 0.0."""
    return widest(dag, lambda x: x + 0.0 if x.is_floating_point() else x)


def groups_of(plans: Plans) -> list[Planned]:
    return [op for op in plans.ops if op.program is not None]


def can_run(op: Planned) -> bool:
    """Whether it would be planned like this on a GPU, and no number must not come to a kernel."""
    assert op.program is not None
    if any(step.operation == "rows_on_cpu" for step in op.program.steps):
        return False  # (of short rows)
    rows = zip(op.program.parameters, op.parameters, strict=True)
    return not any(p.no_nan and number != number for p, number in rows)


@dataclass(frozen=True)
class Sample:
    """Random programs. Of those with `rows` only groups with rows count."""

    share: int  # in PARTS, of all groups
    exact: bool
    floats: tuple[torch.dtype, ...] = FLOATS
    rows: bool = False
    deepest: int = DEEPEST  # (compiling functions and rows takes minutes where they are deep)

    def plans(self, groups: int) -> Iterator[tuple[Plans, list[tuple[Planned, Source]]]]:
        """Programs until there are this sample's share of so many groups, and what is new in each:
        groups of another source than all before."""
        known: set[str] = set()
        seed = 0
        while len(known) < groups // PARTS * self.share:
            depth = self.deepest - seed * 7 % self.deepest
            plans = random_plans(seed, depth, self.exact, self.floats, self.rows)
            new = {}
            for op in groups_of(plans):
                if not can_run(op) or (self.rows and not op.program.row):
                    continue
                source = source_of(op.program, op.ops)
                if source.text not in known:
                    new[source.text] = op, source
            known |= new.keys()
            seed += 1
            yield plans, list(new.values())


# What is interpreted (test_source.py) is compiled as well (test_compiler.py).
PARTS = 8
SAMPLES = {
    "exact": Sample(4, True),
    "functions": Sample(1, False, FLOATS[:2], deepest=10),
    "functions of narrow dtypes": Sample(1, False, FLOATS[2:], deepest=10),
    "rows": Sample(1, False, FLOATS[:2], True, deepest=6),
    "rows of narrow dtypes": Sample(1, False, FLOATS[2:], True, deepest=6),
}
