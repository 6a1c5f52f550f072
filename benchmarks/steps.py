"""Steps of whole programs (benchmarks/workloads.py), small ones (small_programs.py), single
operators of some size (medium_programs.py), and recurrent layers (recurrent_programs.py) against
eager, in one run.

Method. Eager and lazy run in processes of their own, so that threads of one do not slow the other:
the eager one does not even import lazyeng. Each warms up for 30 steps without reads and as many
with, eager and lazy alike: lazyeng's trials (which ops run on one core, which functions may be
fused) are over by then. They take turns in bursts of steps (about `--burst`
seconds of eager work), so that drift of a shared machine hits both; the figure is the median over
rounds of eager's time by lazy's: above 1 lazy is faster. A burst of lazy steps runs inside one
lazy() block, and ends when all of it is done. "read" is the same with `loss.item()` after every
step, in eager too.
"line" is the median time, in nanoseconds, in which a cache line came from one core to another just
before the rounds and after them: on some machines that varies, and with it what small steps take.
"first" is the first step of a fresh process by eager's in another fresh process; "start" the time
from the start of the process, with all imports, to the end of that step, likewise; "memory" what 21
steps add to the process's peak memory, by what eager's add (or 1 MiB, if that is more); "peak" that
peak itself, likewise.
With `--compile`, "compile" is eager's time by that of torch.compile of the whole step, in turns
with the others, "over it" how many times faster lazy is, "first s" the seconds of its first
step. It has `--limit` seconds to be warm, and for each burst; "-" where it is not, or fails: why
stands below the table.
With `--beside N` so many other processes want a core each all the time, as on a shared machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.bursts import NoAnswerError, Runner, first
from benchmarks.medium_programs import MEDIUM_PROGRAMS
from benchmarks.recurrent_programs import RECURRENT_PROGRAMS
from benchmarks.small_programs import SMALL_PROGRAMS
from benchmarks.workloads import WORKLOADS

TARGETS = {
    "1,000 tiny ops": 1.8, "the same, with products": 1.3, "MLP, AdamW": 1.4, "DLRM, batch 1": 1.5,
    "DLRM, batch 128": 1.5, "SAC, twin critics": 1.4, "LSTM": 1.1, "LSTM, packed": 1.0,
    "small CNN": 1.0, "ResNet-18": 1.0, "BERT-tiny": 1.0, "GPT-2-tiny": 1.0,
}  # fmt: skip

SHORT = SMALL_PROGRAMS | MEDIUM_PROGRAMS | RECURRENT_PROGRAMS
SETS = {"whole": [*WORKLOADS], "small": [*SMALL_PROGRAMS], "medium": [*MEDIUM_PROGRAMS],
        "recurrent": [*RECURRENT_PROGRAMS]}  # fmt: skip

Figures = dict[str, float]


class Comparison:
    """The runners of one program: eager, lazy and, where it runs, compile."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self._options = options
        self.why_not = ""
        self._runners = {kind: Runner(name, kind) for kind in ("eager", "lazy")}
        if options.compile:
            with self._may_fail():
                self._runners["compile"] = Runner(name, "compile", limit=options.limit)
        self._count = self._steps_of_a_burst()
        self._rounds: list[dict[tuple[str, bool], float]] = []

    def run(self) -> Figures:
        lines = [self._runners["lazy"].cache_line()]
        for _ in range(self._options.rounds):
            self._rounds.append(self._round())
            lines.append(self._runners["lazy"].cache_line())
        for runner in self._runners.values():
            runner.end()
        ms = statistics.median(times["eager", False] for times in self._rounds) / self._count * 1e3
        figures = {
            "eager ms": ms,
            "lazy": self._ratio("lazy", False),
            "read": self._ratio("lazy", True),
            "line": statistics.median(lines),
        }
        if "compile" in self._runners:
            figures["compile"] = self._ratio("compile", False)
            figures["over it"] = self._ratio("lazy", False, "compile")
            figures["first s"] = float(self._runners["compile"].answer)
        return figures

    def _steps_of_a_burst(self) -> int:
        once = [self._runners["eager"].burst(1, False) for _ in range(5)]
        return max(2, int(self._options.burst / min(once)))

    def _round(self) -> dict[tuple[str, bool], float]:
        times: dict[tuple[str, bool], float] = {}
        for kind in tuple(self._runners):
            for read in (False, True) if kind != "compile" else (False,):
                time.sleep(0.02)  # helper threads of the other process spin for a while
                if kind != "compile":
                    times[kind, read] = self._runners[kind].burst(self._count, read)
                    continue
                with self._may_fail():
                    times[kind, read] = self._runners[kind].burst(self._count, read)
        return times

    @contextlib.contextmanager
    def _may_fail(self) -> Iterator[None]:
        try:
            yield
        except NoAnswerError as why:
            self.why_not = str(why)
            self._runners.pop("compile", None)

    def _ratio(self, kind: str, read: bool, over: str = "eager") -> float:
        return statistics.median(times[over, read] / times[kind, read] for times in self._rounds)


def memory_and_first_steps(name: str) -> Figures:
    firsts = [[first(name, kind) for kind in ("eager", "lazy")] for _ in range(3)]
    return {
        figure: statistics.median(
            lazy[figure] / max(eager[figure], 1.0 if figure == "memory" else 0.0)
            for eager, lazy in firsts
        )
        for figure in ("first", "start", "memory", "peak")
    }


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Each in a session of its own, as programs of other people are."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def columns_of(options: argparse.Namespace) -> dict[str, int]:
    """With their widths."""
    compiled = {"compile": 9, "over it": 9, "first s": 9} if options.compile else {}
    return {"eager ms": 9, "lazy": 7, "target": 8, "read": 7, "line": 6, **compiled, "first": 7,
            "start": 7, "memory": 8, "peak": 6}  # fmt: skip


def row(name: str, figures: Figures, columns: dict[str, int]) -> str:
    def cell(column: str, width: int) -> str:
        if column not in figures:
            return f"{'-':>{width}}"
        digits = {"target": 1, "first s": 1, "line": 0}.get(column, 2)
        return f"{figures[column]:{width}.{digits}f}"

    return f"{name:25}" + "".join(cell(column, width) for column, width in columns.items())


def print_workloads(names: list[str], options: argparse.Namespace) -> None:
    columns = columns_of(options)
    print(f"{'':25}" + "".join(f"{column:>{width}}" for column, width in columns.items()))
    reasons = {}
    for name in names:
        comparison = Comparison(name, options)
        figures = comparison.run() | memory_and_first_steps(name) | {"target": TARGETS[name]}
        print(row(name, figures, columns), flush=True)
        if comparison.why_not:
            reasons[name] = comparison.why_not
    for name, reason in reasons.items():
        print(f"torch.compile of {name}: {reason}")


def print_short_programs(names: list[str], options: argparse.Namespace) -> None:
    print(f"{'':25}{'eager us':>9}{'lazy':>7}{'read':>7}{'line':>6}")
    for name in names:
        f = Comparison(name, options).run()
        ratios = f"{f['lazy']:7.2f}{f['read']:7.2f}{f['line']:6.0f}"
        print(f"{name:25}{f['eager ms'] * 1e3:9.0f}{ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--burst", type=float, default=0.1)
    parser.add_argument("--only", choices=[*WORKLOADS, *SHORT, *SETS])
    parser.add_argument("--compile", action="store_true", help="torch.compile beside it (minutes)")
    parser.add_argument("--limit", type=float, default=240, help="seconds for torch.compile")
    parser.add_argument("--beside", type=int, default=0, help="busy processes beside it")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; eager's time by lazy's")
    wanted = SETS.get(options.only, [options.only] if options.only else [*WORKLOADS])
    if not options.only:
        wanted += SHORT
    with busy_processes(options.beside):
        if whole := [name for name in wanted if name in WORKLOADS]:
            print_workloads(whole, options)
        options.compile = False
        if short := [name for name in wanted if name in SHORT]:
            print_short_programs(short, options)


if __name__ == "__main__":
    main()
