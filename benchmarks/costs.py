"""What ops cost on one core and on all, beside the table by which lazyeng decides between the two.

The table (csrc/run/cores/width.cpp) has three rates: multiplications and additions of a product of
matrices, bytes of an op that goes over its elements or rows, lookups. An op that one core does in
less than `worth all cores` microseconds by that table runs on one core, if a trial shows eager's
bits there.

Method. Each op runs in bursts on one core and on all, in turns; the median of the rounds is taken.
The helper threads of "all" are awake, as in eager code that runs one op after another; while a
program records they may have to be woken, which costs some 50 microseconds more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from lazyeng import _C

# Microseconds; kWorthAllCores in csrc/run/cores/width.h.
WORTH_ALL_CORES = 150

Op = tuple[str, str, Callable[..., torch.Tensor], Callable[[int], Sequence[torch.Tensor]]]


def _lookups(n: int) -> list[torch.Tensor]:
    return [torch.rand(10_000, 64), torch.randint(10_000, (n,))]


# name, schema, the call, its tensors for a size
OPS: dict[str, tuple[Op, tuple[int, ...]]] = {
    "product [n, n] x [n, n]": (
        ("aten::mm", "", torch.mm, lambda n: [torch.rand(n, n), torch.rand(n, n)]),
        (16, 32, 64, 128, 256, 512),
    ),
    "x + y, n elements": (
        ("aten::add", "Tensor", torch.add, lambda n: [torch.rand(n), torch.rand(n)]),
        (1 << 14, 1 << 15, 1 << 16, 1 << 18, 1 << 20, 1 << 22),
    ),
    "softmax [n, 256]": (
        ("aten::_softmax", "", lambda x: torch.softmax(x, -1), lambda n: [torch.rand(n, 256)]),
        (16, 64, 256, 1024, 4096),
    ),
    "embedding, n rows of 64": (
        ("aten::embedding", "", lambda w, i: F.embedding(i, w), _lookups),
        (64, 512, 4096, 32768),
    ),
}


def burst(
    call: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor], threads: int, seconds: float
) -> float:
    """Microseconds a call."""
    torch.set_num_threads(threads)
    for _ in range(3):
        call(*tensors)
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        call(*tensors)
        count += 1
    return (now - begin) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a burst")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads; microseconds")
    print(f"worth all cores: {WORTH_ALL_CORES}")
    print(f"{'':26s} {'n':>8s} {'table':>9s} {'one core':>9s} {'all':>9s} {'one/all':>8s}  taken")
    for name, ((schema, overload, call, make), sizes) in OPS.items():
        for n in sizes:
            tensors = list(make(n))
            table = _C.microseconds_on_one_core(
                schema, overload, [*tensors, call(*tensors)], len(tensors)
            )
            times: dict[int, list[float]] = {1: [], threads: []}
            for _ in range(options.rounds):
                for count, measured in times.items():
                    measured.append(burst(call, tensors, count, options.seconds))
            torch.set_num_threads(threads)
            one, every = (statistics.median(measured) for measured in (times[1], times[threads]))
            taken = "one core" if table < WORTH_ALL_CORES else "all"
            times_text = f"{table:9.1f} {one:9.1f} {every:9.1f} {one / every:8.2f}"
            print(f"{name:26s} {n:8d} {times_text}  {taken}")


if __name__ == "__main__":
    main()
