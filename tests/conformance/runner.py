"""Spreads entries over worker processes; one that crashes or hangs is replaced by a new one."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol

from . import server
from .known import DEVICE

# Enough for the slowest entry on a busy machine; a hang must not cost more than this.
DEFAULT_TIMEOUT = 120.0
# Importing PyTorch's data bases takes some seconds before the first entry.
START_TIMEOUT = 120.0
Process = subprocess.Popen[str] | server.Forked
# Of a result that belongs to no entry: the process ended before it had begun one.
NO_NAME = "(no entry)"


class Job(Protocol):
    """What a worker process is started for."""

    @property
    def worker(self) -> str: ...  # the module that it runs
    @property
    def forked(self) -> bool: ...  # by server.py: it needs PyTorch's data bases
    @property
    def timeout(self) -> float: ...  # for one name
    def environment(self) -> dict[str, str]: ...
    def request(self, names: list[str]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Plan:
    """One suite in one mode."""

    suite: str
    mode: str
    how: str = "wrap"  # "wrap": LazyTensors outside any block; "block": plain tensors in lazy(mode)
    limit: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    dtype: str = "default"  # float32, or the first that an operator has
    fusion: str = "auto"  # LAZYENG_FUSION

    @property
    def what(self) -> dict[str, Any]:
        """What its results have in common."""
        return {
            "suite": self.suite, "dtype": self.dtype, "mode": self.mode, "how": self.how,
            "fusion": self.fusion, "limit": self.limit,
        }  # fmt: skip


@dataclass(frozen=True)
class Shared:
    """Plans of one suite and dtype in one process: each sample is made, and run eagerly, once."""

    plans: tuple[Plan, ...]
    worker = "tests.conformance.worker"
    forked = DEVICE == "cpu"  # (a process that has asked for CUDA cannot give it to a fork)

    @property
    def timeout(self) -> float:
        return self.plans[0].timeout * len(self.plans)

    def environment(self) -> dict[str, str]:
        first = self.plans[0]
        return {"LAZYENG_MODE": first.mode, "LAZYENG_FUSION": first.fusion}

    def request(self, names: list[str]) -> dict[str, Any]:
        first = self.plans[0]
        settings = [{"mode": p.mode, "how": p.how, "fusion": p.fusion} for p in self.plans]
        common = {"suite": first.suite, "dtype": first.dtype, "limit": first.limit}
        return common | {"settings": settings, "names": names}


STDERR = 2  # (in a test sys.stderr may be no file)


def names_of(suites: list[str]) -> dict[str, list[str]]:
    """Asked in another process: PyTorch's data bases are large, and importing them has effects."""
    process = server.start("tests.conformance.names_worker", {}, STDERR)
    send(process, suites)
    found = process.stdout.read()
    if status := process.wait():
        raise RuntimeError(f"no names: exit {status}")
    return json.loads(found.splitlines()[-1])


def run(
    plan: Plan, names: list[str], jobs: int, progress: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Results in the order of `names`; `progress` sees each one as it comes."""
    return run_together((plan,), names, jobs, progress)


def run_together(
    plans: tuple[Plan, ...],
    names: list[str],
    jobs: int,
    progress: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Of plans of one suite and dtype; by plan, each in the order of `names`."""
    shards = [names[i::jobs] for i in range(jobs)]
    results: dict[tuple[Plan, str], dict[str, Any]] = {}

    def work(shard: list[str]) -> None:
        for plan, result in run_shard(plans, shard):
            results[plan, result["name"]] = result
            progress(result)

    threads = [threading.Thread(target=work, args=(shard,)) for shard in shards if shard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = itertools.product(plans, names)
    return [results[which] for which in every if which in results]


def run_shard(plans: tuple[Plan, ...], names: list[str]) -> Iterator[tuple[Plan, dict[str, Any]]]:
    left = list(names)
    while left:
        for result in run_process(Shared(plans), list(left)):
            left.remove(result["name"])
            yield from apart(plans, result)


def apart(plans: tuple[Plan, ...], result: dict[str, Any]) -> Iterator[tuple[Plan, dict[str, Any]]]:
    """The result of each plan. Where the process of several was lost, each gets one of its own."""
    each = result.pop("each", [result] if len(plans) == 1 else None)
    if each is None:
        for plan in plans:
            yield from run_shard((plan,), [result["name"]])
        return
    for plan, own in zip(plans, each, strict=True):
        yield plan, result | own | plan.what


def run_process(job: Job, names: list[str]) -> Iterator[dict[str, Any]]:
    """Until all are done or the process is lost; then the last result says what it died of.

    A worker may name what it runs itself; then `names` becomes that.
    """
    with tempfile.TemporaryFile("w+") as stderr:
        process = start(job, names, stderr)
        try:
            yield from watch(process, job, names, stderr)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def start(job: Job, names: list[str], stderr: IO[str]) -> Process:
    if job.forked:
        process = server.start(job.worker, job.environment(), stderr)
    else:
        process = subprocess.Popen(
            [sys.executable, "-m", job.worker],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
            env=os.environ | job.environment(),
        )  # fmt: skip
    send(process, job.request(names))
    return process


def send(process: Process, request: Any) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # died at import: watch() sees it end
        with process.stdin:
            json.dump(request, process.stdin)


def watch(
    process: Process, job: Job, names: list[str], stderr: IO[str]
) -> Iterator[dict[str, Any]]:
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=pump, args=(process.stdout, lines), daemon=True).start()
    current: str | None = None
    done = 0
    while True:
        try:
            line = lines.get(timeout=job.timeout if current else START_TIMEOUT)
        except queue.Empty:
            process.send_signal(signal.SIGABRT)  # faulthandler writes all stacks
            time.sleep(0.5)
            name = current or name_at(names, done)
            yield lost(name, "hang", f"no answer; {tail(stderr)}")
            return
        if line is None:
            break
        try:
            message = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut off by a crash
        if "names" in message:
            names[:] = message["names"]
        elif "start" in message:
            current = message["start"]
        else:
            current, done = None, done + 1
            yield message
    code = process.wait()
    if current is not None or done < len(names) or (code and not names):
        how = f"exit {code}" if code >= 0 else signal.Signals(-code).name
        yield lost(current or name_at(names, done), "crash", f"{how}; {tail(stderr)}")
    elif code:
        # All entries were reported and then the exit failed: the last one gets it.
        yield_name = names[-1]
        print(f"worker failed after {yield_name}: exit {code}: {tail(stderr)}", file=sys.stderr)


def pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def name_at(names: list[str], index: int) -> str:
    return names[index] if index < len(names) else NO_NAME


def lost(name: str, status: str, detail: str) -> dict[str, Any]:
    return {
        "name": name, "samples": 0, "different": 1, "status": status, "detail": detail,
        "seconds": 0.0,
    }  # fmt: skip


def tail(stderr: IO[str], lines: int = 6) -> str:
    stderr.seek(0)
    kept = [line.strip() for line in stderr.read().splitlines() if line.strip()]
    fatal = next((i for i, line in enumerate(kept) if line.startswith("Fatal Python")), None)
    kept = kept[fatal : fatal + lines * 2] if fatal is not None else kept[-lines:]
    return " | ".join(kept)[:1500]
