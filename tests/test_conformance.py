"""A sample of op_db, module_db and optim_db. All of it: `python -m tests.conformance`."""

import os

import pytest

from .conformance.known import KNOWN, METADATA_ONLY
from .conformance.report import row, unexpected
from .conformance.runner import Plan, names_of, run

JOBS = min(2, os.cpu_count() or 1)

# What is run here, sized for three minutes on two cores together: (plan, one entry of so many).
SAMPLES = [
    (Plan("op", "async", "wrap", limit=2), 1),
    (Plan("op", "async", "block", limit=1), 2),
    (Plan("op", "deferred", "wrap", limit=2), 1),
    (Plan("op", "sync", "wrap", limit=1), 2),
    (Plan("module", "async", "wrap", limit=2), 1),
    (Plan("module", "deferred", "block", limit=1), 1),
    (Plan("optim", "async", "wrap", limit=3), 1),
    (Plan("optim", "deferred", "block", limit=3), 1),
    (Plan("inplace", "async", "wrap", limit=1), 1),
    (Plan("out", "async", "wrap", limit=1), 1),
    (Plan("error", "async", "wrap", limit=3), 1),
]


@pytest.fixture(scope="module")
def names():
    return names_of(["op", "module", "optim", "inplace", "out", "error"])


@pytest.mark.limit(600)
@pytest.mark.parametrize(
    "plan, every",
    SAMPLES,
    ids=lambda p: getattr(p, "suite", None) and f"{p.suite}-{p.mode}-{p.how}",
)
def test_sample(plan, every, names):
    results = run(plan, names[plan.suite][::every], JOBS, lambda result: None)
    wrong = unexpected(results)
    assert not wrong, "\n".join(row(result) for result in wrong)


def test_the_data_bases_are_complete(names):
    """702 operators in torch 2.13; another torch has some more or fewer, but not half."""
    assert len(names["op"]) > 600 and len(names["module"]) > 100 and len(names["optim"]) >= 14


def test_exceptions_name_entries_that_exist(names):
    present = {f"{suite}:{name}" for suite, found in names.items() for name in found}
    assert KNOWN.keys() | METADATA_ONLY.keys() <= present
    assert all(len(reason) > 10 for reason in [*KNOWN.values(), *METADATA_ONLY.values()])


def test_at_most_twelve_operators_are_excepted():
    """At least 690 of 702 are equal; three have nothing to run on a CPU."""
    assert sum(key.startswith("op:") for key in KNOWN) <= 3
