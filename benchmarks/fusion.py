"""Fused groups on the CPU against eager, torch.compile and a bare copy, in one run.

Method. Each program is run `--rounds` times by each runner (eager, lazy, compiled, unit) in turn,
so that drift of a shared machine hits all alike, and in another order in each round, since each
leaves caches and helper threads to the next; a figure is the median of the rounds' ratios to the
unit or to eager. The unit is a copy (`out.copy_(x)` into memory that is there); of a program
that only reads two large tensors it is one reading of both (`torch.dot` of their bytes taken as
float32, eager's fastest: it adds nothing and writes nothing). A round of small tensors repeats the
program until about a millisecond has passed. Lazy results are waited for within the timed region.
torch.compile is left out with `--no-compile`, and where it does not run; its compilation is not in
the figures.

The peak memory of a chain is what the buffer pool has lent out at most, in units of one tensor, the
input included. The time to the first result is that of the chain's first call in a new process, for
eager and lazy in turn; of as many processes each, the median.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

if __name__ == "__main__":  # (for no test that imports this, and what it starts)
    # Also what is only within the tolerance. (torch loads lazyeng, which reads it.)
    os.environ.setdefault("LAZYENG_FUSION", "on")

import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import _C

Program = Callable[..., torch.Tensor]


def chain(x: torch.Tensor) -> torch.Tensor:
    """20 pointwise ops."""
    for i in range(4):
        x = (x * 1.01 + 0.5 - i) * 0.25
        x = x.clamp(-2, 2)
    return x


def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y).square().mean()


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x * 0.5 + 0.1, -1)


def softmax_of_layers(x: torch.Tensor) -> torch.Tensor:
    """As over the classes of each place of an image."""
    return F.softmax(x.view(-1, 8, COLUMNS // 8) * 0.5 + 0.1, 1)


def loss_over_vocabulary(x: torch.Tensor) -> torch.Tensor:
    """Rows of 65,536 elements, where there are so many."""
    logits = x.view(max(2, x.numel() >> 16), -1)
    return F.cross_entropy(logits * 0.5 + 0.1, torch.arange(logits.shape[0]))


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x), x.shape[-1:])


def largest(x: torch.Tensor) -> torch.Tensor:
    """A chain that ends in what has eager's bits in any order."""
    return ((x * 1.01 + 0.5) * 0.25).amax()


def columns(x: torch.Tensor) -> torch.Tensor:
    """As a bias gets its gradient."""
    return ((x * 1.01 + 0.5) * 0.25).sum(0)


def count(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 > 1).sum(0)


def norm_backward(x: torch.Tensor) -> torch.Tensor:
    mean, rstd = x[:, :1], x[:, 1:2]
    weight = x[0]
    made = torch.ops.aten.native_layer_norm_backward(
        x * 2, x, x.shape[-1:], mean, rstd, weight, weight, [True, True, True]
    )
    return made[0]


def copied(x: torch.Tensor) -> Callable[[], object]:
    out = torch.empty_like(x)
    return lambda: out.copy_(x)


def both_read(x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    first, second = (t.view(-1).view(torch.float32) for t in (x, y))
    return lambda: torch.dot(first, second)


@dataclass(frozen=True, slots=True)
class Case:
    """A program of so many tensors of one size, and in units of what its time is told."""

    program: Program
    inputs: int = 1
    unit: Callable[..., Callable[[], object]] = copied
    of_unit: str = "copies"


COLUMNS = 1024
PROGRAMS = {
    "chain, amax()": Case(largest),
    "chain, sum(0)": Case(columns),
    "(x*2>1).sum(0)": Case(count),
    "layer_norm backward": Case(norm_backward),
    "20-op chain": Case(chain),
    "(x-y).square().mean()": Case(difference, 2, both_read, "reads "),
    "softmax(x*a+b)": Case(softmax),
    "softmax(x*a+b, 1)": Case(softmax_of_layers),
    "cross_entropy(x*a+b)": Case(loss_over_vocabulary),
    "layer_norm(gelu(x))": Case(norm),
}


def lazily(program: Program) -> Program:
    def run(*inputs: torch.Tensor) -> torch.Tensor:
        return lazyeng.unwrap(program(*(lazyeng.wrap(x) for x in inputs)))

    return run


def compiled(program: Program, inputs: int) -> Program | None:
    torch._dynamo.reset()
    function = torch.compile(program)
    try:
        function(*(torch.ones(2, COLUMNS) for _ in range(inputs)))
    except Exception as error:
        print(f"torch.compile does not run here: {type(error).__name__}")
        return None
    return function


def seconds(function: Callable[[], object], least: float = 1e-3) -> float:
    """Of one call, on average over enough calls to be measured."""
    calls, start = 0, time.perf_counter()
    while True:
        function()
        calls += 1
        now = time.perf_counter()
        if now - start >= least:
            return (now - start) / calls


def compare(runners: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runners}
    for function in runners.values():
        function()
    order, shuffle = list(runners), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            times[name].append(seconds(runners[name]))
    return times


def ratio(times: dict[str, list[float]], of: str, to: str) -> float:
    return statistics.median(a / b for a, b in zip(times[of], times[to], strict=True))


def measure(name: str, case: Case, nbytes: int, dtype: torch.dtype, options) -> None:
    shape = (nbytes // dtype.itemsize // COLUMNS, COLUMNS)
    inputs = [torch.rand(shape).to(dtype) for _ in range(case.inputs)]
    lazily_run = lazily(case.program)
    runners = {
        "eager": lambda: case.program(*inputs),
        "lazy": lambda: lazily_run(*inputs),
        "unit": case.unit(*inputs),
    }
    fast = compiled(case.program, case.inputs) if options.compile else None
    if fast is not None:
        runners["compiled"] = lambda: fast(*inputs)
    times = compare(runners, options.rounds)
    figures = [f"{name} {ratio(times, name, 'unit'):8.2f}" for name in runners if name != "unit"]
    size = f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"
    kind = str(dtype).removeprefix("torch.")
    print(f"{name:24} {kind:9} {size:>8}  {case.of_unit}: {'  '.join(figures)}  "
          f"lazy/eager {ratio(times, 'lazy', 'eager'):.2f}", flush=True)  # fmt: skip


PEAK = """
import torch, lazyeng
n = 1 << 24
with lazyeng.lazy({mode!r}):
    x = torch.ones(n)
    y = x * 1.0
    for i in range(30): y = y * 1.01 if i % 2 else y + 1
    y.wait()
print(1 + lazyeng.engine_stats()["peak_bytes"] / (4 * n))
"""

FIRST = """
import time, torch
from benchmarks.fusion import chain, lazily
x = torch.rand({rows}, 1024)
program = {program}
start = time.perf_counter(); program(x)
print(time.perf_counter() - start)
"""


def in_new_process(script: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def first_result(rows: int, rounds: int) -> float:
    """Lazy's time by eager's, for the first call in a process."""
    times: dict[str, list[float]] = {"chain": [], "lazily(chain)": []}
    for _ in range(rounds):
        for program, found in times.items():
            found.append(in_new_process(FIRST.format(rows=rows, program=program)))
    eager, lazy = map(statistics.median, times.values())
    return lazy / eager


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--largest", type=int, default=256, help="MiB")
    parser.add_argument("--only", default="", help="programs whose name has this in it")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    options = parser.parse_args()
    _C.set_ops_before_trials(0)  # what joins groups after trials does so from the start
    sizes = [
        s for s in (4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20) if s <= options.largest << 20
    ]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ratios to out.copy_(x), "
          "or to one reading of both inputs")  # fmt: skip
    for name, case in PROGRAMS.items():
        if options.only not in name:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            for nbytes in sizes:
                measure(name, case, nbytes, dtype, options)
    if options.only:
        return
    for mode in ("async", "deferred"):
        peak = in_new_process(PEAK.format(mode=mode))
        print(f"peak of a 30-op chain on 64 MiB, {mode}: {peak:.1f} buffers")
    for rows, size in ((1024, "4 MiB"), (16384, "64 MiB")):
        first = first_result(rows, options.rounds)
        print(f"first result of the chain, {size}: {first:.2f} of eager's")


if __name__ == "__main__":
    main()
