"""What capturing a creation stack costs, alone and as part of recording an op.

Alone: `capture` is called many times in C++ from one Python stack of the given depth: the whole
stack was seen before, and is found again. For stacks that are new, generated functions call it
from many different lines; the time of the first capture at each line counts, less what reading the
clock costs (measured in the same run). Beside them stands eager's `x + y`, measured between these
bursts: on a shared machine only ratios of one run count. With an op: recording `x + y` in mode
"deferred" with stacks on and off, interleaved, each in a process of its own, as LAZYENG_STACKS is
read at import; the difference of the medians.

    python -m benchmarks.stacks [--depth 20]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SEEN_TARGET, NEW_TARGET = 60.0, 600.0  # ns, at depth 20
_BURST = 4000


def at_depth(depth: int, function: Callable[[], Any]) -> Any:
    """Calls the function with `depth` Python frames on the stack."""
    return function() if depth <= 1 else at_depth(depth - 1, function)


def outer_depth() -> int:
    frame, depth = sys._getframe(1), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def seen_ns(depth: int, rounds: int = 60) -> list[tuple[float, float]]:
    """(a capture, an eager `x + y`) of each round."""
    import torch

    from lazyeng import _C

    x, y = torch.ones(2), torch.ones(2)

    def measure() -> float:
        return _C.time_capture(10_000)[1]

    def eager() -> float:
        start = time.perf_counter_ns()
        for _ in range(1000):
            x + y
        return (time.perf_counter_ns() - start) / 1000

    return [(at_depth(depth - outer_depth() - 1, measure), eager()) for _ in range(rounds)]


def new_ns(depth: int, lines: int = 4000) -> list[float]:
    """Of stacks that differ in their innermost line only, as those of one function do."""
    from lazyeng import _C

    body = "".join("    add(time(0)[0])\n" for _ in range(lines))
    scope: dict[str, Any] = {"time": _C.time_capture}
    exec(compile(f"def f(add):\n{body}", "<generated>", "exec"), scope)
    times: list[float] = []
    at_depth(depth - outer_depth() - 1, lambda: scope["f"](times.append))
    return times


def clock_ns() -> float:
    """What `time_capture` measures if there is nothing to capture: the clock."""
    from lazyeng import _C

    _C.set_stack_mode(0)
    times = [_C.time_capture(0)[0] for _ in range(2000)]
    _C.set_stack_mode(1)
    return statistics.median(times)


def record_ns(depth: int) -> float:
    """Median over bursts of recording one `x + y`, in this process."""
    import torch

    import lazyeng

    x, y = lazyeng.wrap(torch.ones(2)), lazyeng.wrap(torch.ones(2))

    def burst() -> float:
        start = time.perf_counter_ns()
        for _ in range(_BURST):
            x + y
        return (time.perf_counter_ns() - start) / _BURST

    times = []
    for _ in range(25):
        with lazyeng.lazy("deferred"):
            times.append(at_depth(depth - outer_depth() - 1, burst))
        lazyeng.synchronize()
    return statistics.median(times)


def added_to_an_op(depth: int, rounds: int = 5) -> tuple[float, float]:
    """(ns of recording without stacks, ns that stacks add): medians of interleaved processes."""

    def process(stacks: str) -> float:
        command = [sys.executable, "-m", "benchmarks.stacks", "--record", "--depth", str(depth)]
        environment = {**os.environ, "LAZYENG_STACKS": stacks}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return float(done.stdout)

    pairs = [(process("off"), process("user")) for _ in range(rounds)]
    off = statistics.median(pair[0] for pair in pairs)
    return off, statistics.median(user - without for without, user in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        print(record_ns(options.depth))
        return
    clock = clock_ns()
    seen, new = seen_ns(options.depth), new_ns(options.depth)
    off, added = added_to_an_op(options.depth)
    captures = [capture for capture, _ in seen]
    quartiles = statistics.quantiles(captures, n=4)
    eager = statistics.median(eager for _, eager in seen)
    ratio = statistics.median(capture / eager for capture, eager in seen)
    print(f"Python {sys.version.split()[0]}, depth {options.depth}, ns a capture")
    print(f"seen before: median {statistics.median(captures):.0f}, quartiles {quartiles[0]:.0f} to "
          f"{quartiles[2]:.0f}, best {min(captures):.0f} (target {SEEN_TARGET:.0f}); eager x + y: "
          f"median {eager:.0f}, ratio {ratio:.3f}")  # fmt: skip
    print(f"new:         median {statistics.median(new) - clock:.0f}, mean "
          f"{statistics.fmean(new) - clock:.0f}, the clock's {clock:.0f} taken off "
          f"(target {NEW_TARGET:.0f})")  # fmt: skip
    print(f"recorded op: {off:.0f} ns without stacks, {added:+.0f} ns with them")


if __name__ == "__main__":
    main()
