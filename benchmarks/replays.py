"""How many ops of a loop a step plan replays (docs/internals/fusion.md, Step plans).

For each program of benchmarks/workloads.py, in mode async, without reads and with one in each step:
ops a step, and the share of them in replayed windows, in the first steps and in as many later ones.
(What a worker fetches alone, one op at a time, needs no plan, and is not replayed.)

    python -m benchmarks.replays [--ops 100000] [program ...]
"""

from __future__ import annotations

import argparse

import torch

import lazyeng
from benchmarks.workloads import WORKLOADS, Step


def run(step: Step, steps: int, read: bool) -> tuple[int, float]:
    """Ops recorded, and the share of them that was replayed."""
    before = lazyeng.engine_stats()
    for _ in range(steps):
        result = step()
        if read:
            result.item()
    lazyeng.synchronize()
    now = lazyeng.engine_stats()
    recorded = now["recorded"] - before["recorded"]
    return recorded, (now["replayed"] - before["replayed"]) / max(recorded, 1)


def shares(name: str, ops: int, read: bool) -> str:
    torch.manual_seed(0)
    step = WORKLOADS[name]()
    with lazyeng.lazy():
        a_step, _ = run(step, 1, read)
        steps = max(10, ops // max(a_step, 1))
        first = run(step, steps, read)[1]
        later = run(step, steps, read)[1]
    return f"{name:26}{'read' if read else '':6}{a_step:10}{steps:8}{first:8.2f}{later:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ops", type=int, default=100_000, help="of the first steps")
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(WORKLOADS))
    options = parser.parse_args()
    print(f"{'replayed share of':26}{'':6}{'ops a step':>10}{'steps':>8}{'first':>8}{'later':>8}")
    for name in options.programs or WORKLOADS:
        for read in (False, True):
            print(shares(name, options.ops, read), flush=True)


if __name__ == "__main__":
    main()
