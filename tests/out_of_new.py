"""python -m tests.out_of_new: a training step in which lazyeng's own allocations fail.

As tests.out_of_memory, which lets those of tensors fail; here it is `operator new` in lazyeng._C
(failing_new.cpp is preloaded): what calls are recorded in, the engine's and the fusion's tables,
failures themselves. A step raises MemoryError or RuntimeError, at the call or at the read, or it
comes out right all the same; the process lives; each parameter, buffer and optimizer state has a
value that it has after some op of the eager step; the next step gives eager's bits.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import lazyeng
from tests.out_of_memory import (
    MODES,
    EachOp,
    Eager,
    Training,
    be_reproducible,
    built,
    lazily,
    leaves,
    run_preloaded,
)

SHIM = Path(__file__).parent / "support" / "failing_new.cpp"
WORDS = ("bad_alloc", "out of memory", "not enough memory", "Unable to allocate")


def set_failing(first: int, many: int, every: int = 1) -> tuple[int, int]:
    """How many calls there were and how many failed, since the last time."""
    memory = ctypes.CDLL(None)
    before = memory.seen_new(), memory.failed_new()
    memory.fail_new(ctypes.c_long(first), ctypes.c_long(many), ctypes.c_long(every))
    return before


def describes_it(error: BaseException) -> bool:
    """Of a failure that failed itself there may be nothing left but this."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in WORDS)


class Check:
    def __init__(self, mode: str, optimizer: str, lazy_model: bool) -> None:
        self.mode, self.lazy_model = mode, lazy_model
        self.eager = _eager(optimizer)
        self.training = Training(optimizer)
        if lazy_model:
            lazyeng.wrap(self.training.model)
        self.kind = f"{mode}, {optimizer}, {'lazy' if lazy_model else 'plain'} parameters"
        self.errors = self.right = 0
        self.step()  # (so that plans and tables are there, and another step makes nothing of these)

    def step(self) -> float:
        return lazily(self.training, self.mode)

    def allocations(self) -> int:
        self.training.restore(self.training.begin)
        set_failing(1 << 40, 1)
        self.step()
        lazyeng.synchronize()
        return set_failing(0, 0)[0]

    def once(self, first: int, many: int, every: int) -> None:
        training, eager = self.training, self.eager
        where = f"{self.kind}: {many} from {first}, each {every}th"
        print(where, file=sys.stderr, flush=True)
        training.restore(training.begin)
        set_failing(first, many, every)
        loss = error = None
        try:
            loss = self.step()
        except Exception as caught:
            error = caught.with_traceback(None)
        set_failing(0, 0)
        try:
            lazyeng.synchronize()
        except Exception as caught:
            error = error or caught.with_traceback(None)
        if error is None:
            assert (loss, training.snapshot()) == (eager.loss, eager.end), f"{where}: wrong result"
            self.right += 1
        else:
            self.errors += 1
            for leaf in leaves(error):
                assert isinstance(leaf, MemoryError | RuntimeError), f"{where}: {leaf!r}"
                assert describes_it(leaf), f"{where}: {leaf!r}"
            if self.lazy_model:
                training.restore(training.begin)
            for name, value in training.snapshot().items():
                assert value in eager.seen[name], f"{where}: {name} is corrupt after {error!r}"
        after = training.copied()
        expected = eager.next_step(after)
        torch.set_rng_state(after[2])
        got = self.step(), training.snapshot()
        assert got == expected, f"{where}: the next step differs, after {error!r}"
        lazyeng.synchronize()
        assert lazyeng.engine_stats()["pending_ops"] == 0, f"{where}: something is left"

    def report(self) -> str:
        return f"{self.kind}: {self.errors} errors, {self.right} steps that came out right"


def check_looks(rng: random.Random, count: int) -> str:
    """Where `graph()` fails, which plans groups, what it has looked at runs as if it had not."""
    x = torch.rand(64)
    expected = ((x * 2 + 1).relu() - x).exp()
    errors = 0
    for first in rng.sample(range(1, 200), min(count, 199)):
        with lazyeng.lazy("deferred"):
            y = ((x * 2 + 1).relu() - x).exp()
            set_failing(first, 1)
            try:
                lazyeng.graph()
            except (MemoryError, RuntimeError) as error:
                assert describes_it(error), repr(error)
                errors += 1
            set_failing(0, 0)
            assert torch.equal(y, expected), f"wrong after the failure of allocation {first}"
    assert errors, "no allocation of graph() failed"
    return f"graph(): {errors} of {count} failed, and nothing else did"


def _eager(optimizer: str) -> Eager:
    """(Without its run of failing allocations of tensors.)"""
    eager = Eager.__new__(Eager)
    eager.training = training = Training(optimizer)
    training.restore(training.begin)
    eager.loss, eager.end = training.step(), training.snapshot()
    training.restore(training.begin)
    eager.seen = {k: {v} for k, v in training.snapshot().items()}
    with EachOp(eager.look):
        training.step()
    return eager


def samples(total: int, count: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """One that fails; each of some hundred; all from one on."""
    for n in sorted(rng.sample(range(1, total + 1), min(count, total))):
        yield n, 1, 1
    for _ in range(count // 4):
        yield rng.randint(1, total), 1 << 40, rng.choice((1, 7, 50, 300))


def run(mode: str, count: int, *, seconds: float = 170) -> str:
    """`count` places of each kind, of a mode, in a process of its own; what it printed. Raises as
    run_preloaded."""
    library = built(SHIM, "c++", "-std=c++17")
    arguments = ("--mode", mode, "--count", str(count))
    return run_preloaded(library, "-m", "tests.out_of_new", *arguments, seconds=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.out_of_new", description=__doc__)
    parser.add_argument("--mode", choices=MODES, help="in this process, with the shim preloaded")
    parser.add_argument("--count", type=int, default=1000, help="places of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.mode is None:
        for each in MODES:
            print(run(each, options.count, seconds=3600), end="", flush=True)
        return
    be_reproducible()
    rng = random.Random(options.seed)
    for optimizer, lazy_model in (("adamw", False), ("momentum", True)):
        check = Check(options.mode, optimizer, lazy_model)
        total = check.allocations()
        for first, many, every in samples(total, options.count, rng):
            check.once(first, many, every)
        print(f"{check.report()}; a step makes {total} allocations", flush=True)
    print(check_looks(rng, options.count), flush=True)


if __name__ == "__main__":
    main()
