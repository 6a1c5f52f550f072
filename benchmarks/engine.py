"""What a worker takes to run a recorded small op, beyond the op's kernel.

Method. Ops on tensors of a few elements are recorded in mode "deferred" with fusion off, so each is
an op of the engine. They are pushed while an op in front holds the only worker; then the worker
has them all to itself, and no other thread has anything to do: "worker" is its time for each, with
completion, dropping of results and all that belongs to it. "kernel" is the same kernel of torch
called directly, from C++, in a loop, with memory from the same pool; "dispatcher" with arguments on
a stack through torch's dispatcher, as TorchScript's interpreter calls it (its own figure, for a
graph of 100 such ops, stands beside it). All without autograd. What is beyond the kernel is wanted
to be at most 0.6 us. "empty" is an op of the engine that does nothing, with two reads and a write.
Rounds go over all in turn; figures are medians. All threads are kept to one core: on a shared
machine two cores are not equally fast at a time. LAZYENG_STACKS is off: stacks are recording's
(benchmarks/stacks.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable

if __name__ == "__main__":  # (for no test that imports this, and what it starts)
    os.environ.setdefault("LAZYENG_STACKS", "off")  # read at import

import torch

import lazyeng
from lazyeng import _C

WANTED_NS = 600
Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CALLS: dict[str, Call] = {
    "aten::add": lambda x, y: x + y,
    "aten::mul_": lambda x, y: x.mul_(y),
    "aten::relu": lambda x, y: x.relu(),
    "aten::mm": lambda x, y: x @ y,
}
SCRIPTED = {"aten::add": "r + y", "aten::mul_": "r.mul_(y)", "aten::relu": "r.relu()",
            "aten::mm": "r @ y"}  # fmt: skip


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(2, 2), torch.ones(2, 2)


def on_worker(call: Call, chain: bool, count: int) -> float:
    x, y = map(lazyeng.wrap, inputs())
    with lazyeng.lazy("deferred"):
        lazyeng.synchronize()
        result = x
        for _ in range(count):
            result = call(result if chain else x, y)
        del result
        return _C.time_window() / count


def scripted(expression: str) -> Callable[[], float]:
    """A function that returns the nanoseconds of one op in TorchScript's interpreter."""
    ops = 100
    body = "\n".join([f"    r = {expression}"] * ops)
    unit = torch.jit.CompilationUnit(f"def f(x, y):\n    r = x\n{body}\n    return r\n")
    x, y = inputs()

    def measure() -> float:
        with torch.no_grad():
            start = time.perf_counter()
            for _ in range(20):
                unit.f(x, y)
            return (time.perf_counter() - start) / (20 * ops) * 1e9

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--ops", type=int, default=1000, help="in a round")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    lazyeng.set_num_workers(1)
    _C.set_fusion(False)
    scripts = {name: scripted(text) for name, text in SCRIPTED.items()}
    rounds: dict[str, list[float]] = {}
    for _ in range(options.rounds + 2):
        for name, call in CALLS.items():
            kernel, boxed = _C.time_kernel(name, *inputs(), options.ops)
            figures = {
                "kernel": kernel, "dispatcher": boxed, "TorchScript": scripts[name](),
                "worker": on_worker(call, False, options.ops),
                "chain": on_worker(call, True, options.ops),
            }  # fmt: skip
            for column, ns in figures.items():
                rounds.setdefault(f"{name} {column}", []).append(ns)
        rounds.setdefault("empty", []).append(_C.time_empty_ops(options.ops))
    median = {name: statistics.median(found[2:]) for name, found in rounds.items()}
    columns = ("kernel", "dispatcher", "TorchScript", "worker", "chain")
    print(f"torch {torch.__version__}; nanoseconds an op, medians of {options.rounds} rounds")
    print(f"{'':12}" + "".join(f"{c:>12}" for c in columns) + f"{'beyond':>12}{'in a chain':>12}")
    for name in CALLS:
        ns = {c: median[f"{name} {c}"] for c in columns}
        beyond = [ns[c] - ns["kernel"] for c in ("worker", "chain")]
        print(f"{name:12}" + "".join(f"{ns[c]:12.0f}" for c in columns)
              + "".join(f"{b:12.0f}" for b in beyond))  # fmt: skip
    print(f"{'empty':12}{'':36}{median['empty']:12.0f}    (wanted beyond the kernel: {WANTED_NS})")


if __name__ == "__main__":
    main()
