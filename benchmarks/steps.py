"""Steps of whole programs (benchmarks/workloads.py) and small ones (small_programs.py) against
eager, in one run.

Method. Eager and lazy run in processes of their own, so that threads of one do not slow the other:
the eager one does not even import lazyeng. They take turns in bursts of steps (about `--burst`
seconds of eager work), so that drift of a shared machine hits both; the figure is the median over
rounds of eager's time by lazy's: above 1 lazy is faster. A burst of lazy steps runs inside one
lazy() block, and ends when all of it is done. "read" is the same with `loss.item()` after every
step, in eager too.
"first" is the first step of a fresh process by eager's in another fresh process; "start" the time
from the start of the process, with all imports, to the end of that step, likewise; "memory" what 21
steps add to the process's peak memory, by what eager's add (or 1 MiB, if that is more); "peak" that
peak itself, likewise. torch.compile of the whole step is shown where it runs (`--compile`). With
`--beside N` so many other processes want a core each all the time, as on a shared machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.small_programs import SMALL_PROGRAMS
from benchmarks.workloads import WORKLOADS, Step

TARGETS = {
    "1,000 tiny ops": 1.8, "the same, with products": 1.3, "MLP, AdamW": 1.4, "DLRM, batch 1": 1.5,
    "DLRM, batch 128": 1.5, "SAC, twin critics": 1.4, "LSTM": 1.1, "ResNet-18": 1.0,
    "BERT-tiny": 1.0, "GPT-2-tiny": 1.0,
}  # fmt: skip


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


def prepare(name: str, kind: str) -> Step:
    if kind == "lazy":
        importlib.import_module("lazyeng")
    torch.manual_seed(0)
    step = (WORKLOADS | SMALL_PROGRAMS)[name]()
    compiled: Step = torch.compile(step) if kind == "compile" else step
    return compiled


def serve(name: str, kind: str) -> None:
    """A process that runs bursts when told to by a line "steps read", and answers the seconds."""
    step = prepare(name, kind)
    for read in (False, True):
        burst(step, 5, kind, read)
    for line in sys.stdin:
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


def new_process(name: str, kind: str, part: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.steps", "--part", part, "--only", name, "--kind", kind,
         "--began", str(time.monotonic())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | ({} if kind == "lazy" else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    )  # fmt: skip


class Runner:
    """A process with one kind of steps, ready to run bursts of them."""

    def __init__(self, name: str, kind: str) -> None:
        self._process = new_process(name, kind, "serve")

    def burst(self, count: int, read: bool) -> float:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{count} {int(read)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return float(answer) if answer else sys.exit("a measuring process has ended")

    def end(self) -> None:
        self._process.communicate()


def compare(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Ratios of eager's time to lazy's, and eager's milliseconds per step."""
    kinds = ["eager", "lazy"] + (["compile"] if options.compile else [])
    runners = {kind: Runner(name, kind) for kind in kinds}
    for runner in runners.values():  # one after another, until each is warm
        once = [runner.burst(1, False) for _ in range(5)]
        if runner is runners["eager"]:
            count = max(2, int(options.burst / min(once)))
    times: dict[tuple[str, bool], list[float]] = {
        (kind, read): [] for kind in kinds for read in (False, True)
    }
    for _ in range(options.rounds):
        for (kind, read), found in times.items():
            time.sleep(0.02)  # helper threads of the other process spin for a while
            found.append(runners[kind].burst(count, read))
    for runner in runners.values():
        runner.end()

    def ratio(kind: str, read: bool) -> float:
        pairs = zip(times["eager", read], times[kind, read], strict=True)
        return statistics.median(eager / other for eager, other in pairs)

    figures = {"ms": statistics.median(times["eager", False]) / count * 1e3}
    figures |= {"lazy": ratio("lazy", False), "read": ratio("lazy", True)}
    if options.compile:
        figures["compile"] = ratio("compile", False)
    return figures


def first(name: str, kind: str) -> dict[str, float]:
    process = new_process(name, kind, "first")
    answer, _ = process.communicate()
    return json.loads(answer) if answer else sys.exit("a measuring process has ended")


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    figures = compare(name, options)
    firsts = [[first(name, kind) for kind in ("eager", "lazy")] for _ in range(3)]
    for figure in ("first", "start", "memory", "peak"):
        figures[figure] = statistics.median(
            lazy[figure] / max(eager[figure], 1.0 if figure == "memory" else 0.0)
            for eager, lazy in firsts
        )
    return figures


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--burst", type=float, default=0.1)
    parser.add_argument("--only", choices=[*WORKLOADS, *SMALL_PROGRAMS, "small"])
    parser.add_argument("--compile", action="store_true", help="torch.compile beside it (minutes)")
    parser.add_argument("--beside", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--part", choices=("serve", "first"), help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "serve":
        return serve(options.only, options.kind)
    if options.part == "first":
        return first_step(options.only, options.kind, options.began)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; eager's time by lazy's")
    wanted = [options.only] if options.only else [*WORKLOADS, *SMALL_PROGRAMS]
    if options.only == "small":
        wanted = list(SMALL_PROGRAMS)
    with busy_processes(options.beside):
        print_workloads([name for name in wanted if name in WORKLOADS], options)
        print_small_programs([name for name in wanted if name in SMALL_PROGRAMS], options)


def print_workloads(names: list[str], options: argparse.Namespace) -> None:
    if not names:
        return
    compile_title = f"{'compile':>9}" if options.compile else ""
    print(f"{'':25}{'eager ms':>9}{'lazy':>7}{'target':>8}{'read':>7}{compile_title}"
          f"{'first':>7}{'start':>7}{'memory':>8}{'peak':>6}")  # fmt: skip
    for name in names:
        f = measure(name, options)
        compile_ratio = f"{f['compile']:9.2f}" if options.compile else ""
        print(f"{name:25}{f['ms']:9.2f}{f['lazy']:7.2f}{TARGETS[name]:8.1f}{f['read']:7.2f}"
              f"{compile_ratio}{f['first']:7.2f}{f['start']:7.2f}{f['memory']:8.2f}{f['peak']:6.2f}",
              flush=True)  # fmt: skip


def print_small_programs(names: list[str], options: argparse.Namespace) -> None:
    if not names:
        return
    print(f"{'':25}{'eager us':>9}{'lazy':>7}{'read':>7}")
    for name in names:
        f = compare(name, options)
        print(f"{name:25}{f['ms'] * 1e3:9.0f}{f['lazy']:7.2f}{f['read']:7.2f}", flush=True)


if __name__ == "__main__":
    main()
