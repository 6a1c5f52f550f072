"""Which threads of a step on a GPU are busy: the one that records, or the one that launches.

Method. Each way to run a program (benchmarks/gpu.py) runs a burst of steps, warm, in one block.
"us" is the wall time of a step, "alone" the CPU time that its recording takes by itself (mode
deferred, nothing runs meanwhile); the others are CPU time of threads within the burst, by
/proc/self/task/*/schedstat, in microseconds a step: the program's thread, the busiest that launches
(lazyeng-dev-...), the busiest of autograd's. "ops" are recorded, "starts" are kernels and graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lazyeng
from benchmarks.workloads import Step

Burst = Callable[[int], float]

THREADS = ("python", "lazyeng-dev", "pt_autograd")  # what their names begin with


def cpu_times() -> dict[tuple[str, str], float]:
    """Seconds that each thread of the process has run, by its name and number."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            found[name, task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # it has ended
            continue
    return found


def recording_alone(step: Step, steps: int) -> float:
    """Seconds of the program's thread a step, the best of a few blocks."""
    best = float("inf")
    for _ in range(4):
        with lazyeng.lazy("deferred"):
            step()
            start = time.thread_time()
            for _ in range(steps):
                step()
            best = min(best, (time.thread_time() - start) / steps)
        lazyeng.synchronize()
    return best


def row(burst: Burst, steps: int) -> str:
    burst(steps)
    times, stats = cpu_times(), lazyeng.engine_stats()
    seconds = burst(steps)
    spent = {key: now - times.get(key, 0.0) for key, now in cpu_times().items()}
    cells = [seconds]
    for beginning in THREADS:
        cells.append(max((s for (n, _), s in spent.items() if n.startswith(beginning)), default=0))
    counts = [lazyeng.engine_stats()[name] - stats[name] for name in ("recorded", "launches")]
    text = "".join(f"{cell / steps * 1e6:10.0f}" for cell in cells)
    return text + "".join(f"{count / steps:8.1f}" for count in counts)


def table(programs: dict[str, tuple[Callable[[], Step], dict[str, Burst]]],
          steps: int) -> Iterator[str]:  # fmt: skip
    """Rows, of programs that are warm: how a model is made, and its bursts."""
    titles = ("us", "program", "launching", "autograd")
    yield (
        f"{'':30}" + "".join(f"{title:>10}" for title in titles) + f"{'ops':>8}{'starts':>8}"
        f"{'alone':>10}"
    )
    for name, (make, bursts) in programs.items():
        for way, burst in bursts.items():
            alone = f"{recording_alone(make(), steps) * 1e6:10.0f}" if way == "lazy" else ""
            yield f"{name:20}{way:10}{row(burst, steps)}{alone}"
