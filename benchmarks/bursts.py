"""Processes of benchmarks/steps.py and requests.py: each runs one program in one way, in bursts of
steps, or step by step with pauses.

`Runner` is the measuring side; `python -m benchmarks.bursts` the measured one. Before its first
burst a process warms up for `WARM_UP` steps without reads and as many with: by then lazyeng's
trials of widths and of functions that may be fused (csrc/run/cores/width.h,
csrc/fuse/bits/trials.h) are over, as are torch.compile's compilations; eager code runs as many.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks.medium_programs import MEDIUM_PROGRAMS
from benchmarks.recurrent_programs import RECURRENT_PROGRAMS
from benchmarks.request_programs import REQUEST_PROGRAMS
from benchmarks.small_programs import SMALL_PROGRAMS
from benchmarks.workloads import WORKLOADS, Step

WARM_UP = 30


def steps(step: Step, count: int, read: bool) -> None:
    for _ in range(count):
        result = step()
        if read:
            result.item()


def burst(step: Step, count: int, kind: str, read: bool) -> float:
    start = time.perf_counter()
    if kind == "lazy":
        lazyeng = importlib.import_module("lazyeng")
        with lazyeng.lazy():
            steps(step, count, read)
            lazyeng.synchronize()
    else:
        steps(step, count, read)
    return time.perf_counter() - start


def requests(step: Step, count: int, kind: str, pause: float) -> float:
    """The median of their seconds, each with a read, and in a block of its own."""
    times = []
    for _ in range(count):
        if pause:
            time.sleep(pause)
        times.append(burst(step, 1, kind, True))
    return statistics.median(times)


def prepare(name: str, kind: str) -> Step:
    if kind == "lazy":
        importlib.import_module("lazyeng")
    torch.manual_seed(0)
    programs = WORKLOADS | SMALL_PROGRAMS | MEDIUM_PROGRAMS | RECURRENT_PROGRAMS
    programs |= {f"request: {name}": program for name, program in REQUEST_PROGRAMS.items()}
    step = programs[name]()
    compiled: Step = torch.compile(step) if kind == "compile" else step
    return compiled


def serve(name: str, kind: str) -> None:
    """Warms up, says how many seconds the first step took, then runs bursts when told to by a line
    "steps read", and answers the seconds; to "requests count pause" those of one; to "cache line"
    nanoseconds (a lazy process)."""
    step = prepare(name, kind)
    first = burst(step, 1, kind, True)
    for read in (False, True):
        burst(step, WARM_UP, kind, read)
    print(first, flush=True)
    for line in sys.stdin:
        if line == "cache line\n":
            print(importlib.import_module("lazyeng._C").time_cache_line() or "nan", flush=True)
            continue
        if line.startswith("requests "):
            _, count, pause = line.split()
            print(requests(step, int(count), kind, float(pause)), flush=True)
            continue
        count, read = map(int, line.split())
        print(burst(step, count, kind, bool(read)), flush=True)


def first_step(name: str, kind: str, began: float) -> None:
    """Milliseconds of the first step, and since the process began; mebibytes that 21 steps add to
    the peak, and that."""
    step = prepare(name, kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = burst(step, 1, kind, True)
    since_start = time.monotonic() - began
    burst(step, 20, kind, False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {"first": seconds * 1e3, "start": since_start * 1e3}
    figures |= {"memory": (peak - before) / 1024, "peak": peak / 1024}
    print(json.dumps(figures))


class NoAnswerError(Exception):
    """The process has ended, or took too long; says why."""


class Runner:
    """A process with one kind of steps, ready to run bursts of them when it is made.

    It has `limit` seconds until then, and for each burst.
    """

    def __init__(self, name: str, kind: str, part: str = "serve", limit: float = 600) -> None:
        self._limit = limit
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bursts", part, name, kind, str(time.monotonic())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=os.environ | ({} if kind == "lazy" else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
            start_new_session=kind == "compile",  # its compilers end with it
        )  # fmt: skip
        self._group = self._process.pid if kind == "compile" else None
        self.answer = self._read()

    def burst(self, count: int, read: bool) -> float:
        return self._ask(f"{count} {int(read)}")

    def requests(self, count: int, pause: float) -> float:
        return self._ask(f"requests {count} {pause}")

    def cache_line(self) -> float:
        """Nanoseconds from core to core, now; of a lazy process."""
        return self._ask("cache line")

    def end(self) -> None:
        self._process.communicate()

    def _ask(self, question: str) -> float:
        assert self._process.stdin
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], self._limit)
        if not ready:
            self._kill()
            raise NoAnswerError(f"not done within {self._limit:g} s")
        answer = self._process.stdout.readline()
        if not answer:
            self._process.communicate()
            raise NoAnswerError(self._last_error())
        return answer

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line] or lines
        return errors[-1].strip() if errors else f"ended with status {self._process.returncode}"

    def _kill(self) -> None:
        if self._group:
            os.killpg(self._group, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.communicate()


def first(name: str, kind: str) -> dict[str, float]:
    runner = Runner(name, kind, "first")
    runner.end()
    return json.loads(runner.answer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Started by benchmarks.steps.")
    parser.add_argument("part", choices=("serve", "first"))
    parser.add_argument("name")
    parser.add_argument("kind", choices=("eager", "lazy", "compile"))
    parser.add_argument("began", type=float)
    options = parser.parse_args()
    if options.part == "serve":
        serve(options.name, options.kind)
    else:
        first_step(options.name, options.kind, options.began)


if __name__ == "__main__":
    main()
