"""What the bounds of windows cost and save, and what a new batch size costs.

A new batch size: a chain of 20 pointwise ops over [n, 64], for each n that was not there before the
first call (recording, new metadata, a new plan, running, the wait) less what the next calls of the
same n take.

Bounds: a window is held while it grows, up to so many nodes; an idle worker looks so often whether
recording has paused, and takes it then (docs/internals/fusion.md, What is held). Each program runs
with each pair of bounds, in turns; the figures are its least time by that with the usual bounds.

    python -m benchmarks.windows [--rounds 9] [--sizes 200]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import lazyeng
from lazyeng import _C

USUAL = (256, 50)  # nodes, microseconds
NODES, LOOKS = (64, 256, 1024), (20, 50, 200)
CHAIN = 20


def chain(x: Any, steps: int = CHAIN) -> Any:
    for i in range(steps // 2):
        x = x * 1.01 + i
    return x


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# ---- a new batch size


def new_sizes(mode: str, sizes: range) -> tuple[list[float], list[float]]:
    """Microseconds of the first call of each size, and of later ones (the median of each size)."""
    first, later = [], []

    def call(x: torch.Tensor) -> None:
        with lazyeng.lazy(mode):
            chain(x).wait()

    for n in sizes:
        x = lazyeng.wrap(torch.randn(n, 64))
        first.append(1e6 * seconds(lambda x=x: call(x)))
        later.append(1e6 * statistics.median(seconds(lambda x=x: call(x)) for _ in range(9)))
    skipped = len(sizes) // 10  # (until metadata and kernels are warm)
    return first[skipped:], later[skipped:]


def eager_sizes(sizes: int) -> list[float]:
    made = []
    for n in range(8, 8 + sizes):
        x = torch.randn(n, 64)
        made.append(1e6 * statistics.median(seconds(lambda x=x: chain(x)) for _ in range(9)))
    return made


def show_new_sizes(sizes: int) -> None:
    print(f"A chain of {CHAIN} ops over [n, 64], microseconds, medians of {sizes} sizes "
          "(quartiles of what is added):")  # fmt: skip
    print("| mode | first call of a size | later calls | added | an op |\n|---|---|---|---|---|")
    for i, mode in enumerate(("async", "deferred")):  # (sizes that the other has not seen)
        first, later = new_sizes(mode, range(8 + i * sizes, 8 + (i + 1) * sizes))
        added = [a - b for a, b in zip(first, later, strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        print(f"| {mode} | {statistics.median(first):.0f} | {statistics.median(later):.0f} | "
              f"{middle:.0f} ({low:.0f} to {high:.0f}) | {middle / CHAIN:.1f} |")  # fmt: skip
    print(f"Eager takes {statistics.median(eager_sizes(sizes)):.0f}.")


# ---- bounds


def waited(function: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with lazyeng.lazy():
            function().wait()

    return run


def with_pauses(x: torch.Tensor) -> torch.Tensor:
    """A program that does something else for 100 us after every tenth op."""
    for _ in range(10):
        x = chain(x, 10)
        end = time.perf_counter() + 100e-6
        while time.perf_counter() < end:
            pass
    return x


def many_small(x: torch.Tensor) -> torch.Tensor:
    made = [chain(x, 4) for _ in range(250)]
    return made[-1]


def with_products(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = torch.tanh(chain(x, 4) @ x)
    return x


def programs() -> dict[str, Callable[[], None]]:
    small, medium, large = (lazyeng.wrap(torch.randn(n, 1024)) for n in (1, 256, 16384))
    larger = lazyeng.wrap(torch.randn(4096, 1024))
    square = lazyeng.wrap(torch.randn(64, 64) / 8)
    return {
        "1,000 ops of 4 KiB": waited(lambda: many_small(small)),
        "20-op chain, 1 MiB": waited(lambda: chain(medium)),
        "20-op chain, 64 MiB": waited(lambda: chain(large)),
        "300-op chain, 16 MiB": waited(lambda: chain(larger, 300)),
        "pauses of 100 us, 1 MiB": waited(lambda: with_pauses(medium)),
        "chains and products, 16 KiB": waited(lambda: with_products(square)),
    }


def show_bounds(rounds: int) -> None:
    bounds = list(itertools.product(NODES, LOOKS))
    print("Least time by that with the usual bounds; a column: nodes held, microseconds of a look")
    print("| program | usual, ms | " + " | ".join(f"{n}, {us}" for n, us in bounds) + " |")
    print("|" + "---|" * (len(bounds) + 2))
    for name, run in programs().items():
        times: dict[tuple[int, int], list[float]] = {pair: [] for pair in bounds}
        for _ in range(3):
            run()
        for _ in range(rounds):
            for pair in bounds:
                _C.set_window_bounds(*pair)
                run()
                times[pair].append(min(seconds(run) for _ in range(5)))
        _C.set_window_bounds(*USUAL)
        usual = min(times[USUAL])
        shown = [f"{min(times[pair]) / usual:.2f}" for pair in bounds]
        print(f"| {name} | {1e3 * usual:.2f} | " + " | ".join(shown) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, default=200)
    options = parser.parse_args()
    show_new_sizes(options.sizes)
    show_bounds(options.rounds)


if __name__ == "__main__":
    main()
