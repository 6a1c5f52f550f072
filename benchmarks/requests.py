"""Requests as of a service, or of somebody at a keyboard: a model or an operator, a read of its
result, then a pause. Against eager, in one run.

Method. Eager and lazy have a process of their own for each program, and take turns; neither knows
of the other. After 30 requests in a row that are not measured, each serves `--requests` with each
pause; the time of one, without the pause, is the median of these. A lazy request is a lazy() block
of its own. Of a round's times the ratio is eager's by lazy's: above 1 lazy is faster; the figure is
the median of `--rounds` such ratios.

After a pause of some milliseconds threads sleep, and the helpers of OpenMP have to be woken in
eager code, too: hence other times than in a row.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.bursts import Runner
from benchmarks.request_programs import REQUEST_PROGRAMS

PAUSES = (0.0, 0.005, 0.03)  # seconds


def served(runner: Runner, requests: int, pause: float) -> float:
    time.sleep(0.05)  # helper threads of the other process spin for a while
    return runner.requests(requests, pause)


def row(name: str, requests: int, rounds: int) -> str:
    runners = {kind: Runner(f"request: {name}", kind) for kind in ("eager", "lazy")}
    cells = []
    for pause in PAUSES:
        times = [
            {kind: served(runner, requests, pause) for kind, runner in runners.items()}
            for _ in range(rounds)
        ]
        eager = statistics.median(each["eager"] for each in times) * 1e3
        ratio = statistics.median(each["eager"] / each["lazy"] for each in times)
        cells.append(f"{eager:9.2f}{ratio:7.2f}")
    line = runners["lazy"].cache_line()
    for runner in runners.values():
        runner.end()
    return f"{name:16}" + "".join(cells) + f"{line:6.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=REQUEST_PROGRAMS)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; eager's time by lazy's")
    print(f"{'pause':16}" + "".join(f"{f'{pause * 1e3:.0f} ms':>16}" for pause in PAUSES))
    print(f"{'':16}" + f"{'eager ms':>9}{'lazy':>7}" * len(PAUSES) + f"{'line':>6}")
    for name in [options.only] if options.only else REQUEST_PROGRAMS:
        print(row(name, options.requests, options.rounds), flush=True)


if __name__ == "__main__":
    main()
