"""Steps of whole programs (benchmarks/workloads.py) against eager, in one run.

Method. Each program runs in a process of its own. Eager and lazy take turns in bursts of steps
(about `--burst` seconds of eager work), so that drift of a shared machine hits both; the figure is
the median over rounds of eager's time by lazy's: above 1 lazy is faster. A burst of lazy steps runs
inside one lazy() block, and ends when all of it is done. "read" is the same with `loss.item()`
after every step, in eager too.
"first" is the first step of a fresh process by eager's in another fresh process, from after the
import; "memory" what the steps add to the process's peak memory, by what eager's add (or 1 MiB, if
that is more). torch.compile of the whole step is shown where it runs (`--compile`).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

import lazyeng
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


def burst(step: Step, count: int, lazily: bool, read: bool) -> float:
    start = time.perf_counter()
    with lazyeng.lazy() if lazily else nullcontext():
        steps(step, count, read)
        if lazily:
            lazyeng.synchronize()
    return time.perf_counter() - start


def compiled(step: Step) -> Step:
    whole: Callable[[], torch.Tensor] = torch.compile(step)
    return whole


def compare(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Ratios of eager's time to lazy's, and eager's milliseconds per step."""
    torch.manual_seed(0)
    runners: dict[str, Step] = {"eager": WORKLOADS[name](), "lazy": WORKLOADS[name]()}
    if options.compile:
        runners["compile"] = compiled(WORKLOADS[name]())
    for kind, step in runners.items():
        for read in (False, True):
            burst(step, 5, kind == "lazy", read)
    once = min(burst(runners["eager"], 1, False, False) for _ in range(5))
    count = max(2, int(options.burst / once))
    times: dict[tuple[str, bool], list[float]] = {
        (kind, read): [] for kind in runners for read in (False, True)
    }
    for _ in range(options.rounds):
        for (kind, read), found in times.items():
            found.append(burst(runners[kind], count, kind == "lazy", read))

    def ratio(kind: str, read: bool) -> float:
        pairs = zip(times["eager", read], times[kind, read], strict=True)
        return statistics.median(eager / other for eager, other in pairs)

    figures = {"ms": statistics.median(times["eager", False]) / count * 1e3}
    figures |= {"lazy": ratio("lazy", False), "read": ratio("lazy", True)}
    if options.compile:
        figures["compile"] = ratio("compile", False)
    return figures


def first_step(name: str, lazily: bool) -> dict[str, float]:
    """Milliseconds of the first step, and mebibytes that 20 steps add to the peak."""
    torch.manual_seed(0)
    step = WORKLOADS[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = burst(step, 1, lazily, True)
    burst(step, 20, lazily, False)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"ms": seconds * 1e3, "mib": (after - before) / 1024}


def in_new_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.steps", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, passed_on: list[str]) -> dict[str, float]:
    figures = in_new_process("--part", "compare", "--only", name, *passed_on)
    firsts = [
        [in_new_process("--part", "first", "--only", name, *way) for way in ([], ["--lazily"])]
        for _ in range(3)
    ]
    figures["first"] = statistics.median(lazy["ms"] / eager["ms"] for eager, lazy in firsts)
    figures["memory"] = statistics.median(
        lazy["mib"] / max(eager["mib"], 1.0) for eager, lazy in firsts
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--burst", type=float, default=0.1)
    parser.add_argument("--only", choices=WORKLOADS)
    parser.add_argument("--compile", action="store_true", help="torch.compile beside it (minutes)")
    parser.add_argument("--part", choices=("compare", "first"), help=argparse.SUPPRESS)
    parser.add_argument("--lazily", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "compare":
        return print(json.dumps(compare(options.only, options)))
    if options.part == "first":
        return print(json.dumps(first_step(options.only, options.lazily)))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; eager's time by lazy's")
    compile_title = f"{'compile':>9}" if options.compile else ""
    print(f"{'':25}{'eager ms':>9}{'lazy':>7}{'target':>8}{'read':>7}{compile_title}"
          f"{'first':>7}{'memory':>8}")  # fmt: skip
    passed_on = [f"--rounds={options.rounds}", f"--burst={options.burst}"]
    passed_on += ["--compile"] if options.compile else []
    for name in [options.only] if options.only else WORKLOADS:
        f = measure(name, passed_on)
        compile_ratio = f"{f['compile']:9.2f}" if options.compile else ""
        print(f"{name:25}{f['ms']:9.2f}{f['lazy']:7.2f}{TARGETS[name]:8.1f}{f['read']:7.2f}"
              f"{compile_ratio}{f['first']:7.2f}{f['memory']:8.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
