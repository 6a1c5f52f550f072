"""lazyeng.profile: what was recorded, run and waited for, on which thread and when.

The C++ core keeps the ranges of recording and running (csrc/run/traces/trace.h), sync_debug tells
of waits. Here they become a trace in Chrome's format, which Perfetto and chrome://tracing show:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar, cast

from lazyeng import _C, sync_debug
from lazyeng._arguments import as_path, check_function
from lazyeng.decorated import in_blocks

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Wait:
    thread: int
    begin: int
    end: int
    wait: sync_debug.Wait


class profile:  # noqa: N801 (as torch.profiler.profile)
    """Context manager, or decorator, that writes a trace of all threads to a file.

    Around a generator or a coroutine function it traces a call from its first step to its end.

    At its end it waits for everything recorded so far, so that all of it is in the trace; failures
    are not raised there, but as always where a result is read. A process forked meanwhile is not
    traced.

    The file is Chrome's trace format, for ui.perfetto.dev or chrome://tracing. Each thread of the
    program and of the engine is a row, with ranges of the categories ``record`` (an operator was
    recorded; ``line`` is the program's), ``run`` (it ran), ``group`` (operators that ran fused,
    ``members``) and ``wait`` (the program waited; ``line``, ``op``, ``reason``). Each stream of a
    GPU is one too, with ranges ``device``: when it did what an operator launched. Arrows lead from
    record to run. The counters are the operators recorded and not run yet, and the bytes they will
    allocate. ``python -m lazyeng.report`` sums such a file up.

    Args:
        path: the file to write; an older one is replaced when the block ends.

    Raises:
        TypeError: `path` is not a str or a path.
        RuntimeError: another profile is being made, in whichever thread. (When the block begins.)
        OSError: the file cannot be written. (When the block begins, if that can be told then.)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path("profile", path)
        self._waits: list[_Wait] = []
        self._names: dict[int, str] = {}  # of threads that waited
        self._begin = 0
        self._process = 0

    def __enter__(self) -> profile:
        if not _C.start_trace():
            raise RuntimeError("lazyeng.profile: another profile is being made; end that one first")
        try:
            self._file = open(self.path, "a", encoding="utf-8")
        except BaseException:
            _C.stop_trace()
            raise
        self._waits, self._names = [], {}
        self._process = os.getpid()
        self._begin = time.perf_counter_ns()
        sync_debug.listeners.append(self._note_wait)
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:
            return  # a forked child has left the block: the trace is its parent's
        with self._file as file:
            try:
                sync_debug.listeners.remove(self._note_wait)
                with sync_debug.allow_sync("the profile is complete when its block ends"):
                    _C.wait_for_all()
            finally:  # (Who interrupts what hangs wants to know what there was until then.)
                end = time.perf_counter_ns()
                logs = _C.stop_trace()
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    file.truncate(0)
                _write(file, _trace_events(logs, self._waits, self._names, self._begin, end))

    def __call__(self, function: F) -> F:
        check_function("profile", function)
        return cast(F, in_blocks(function, whole=lambda: self))

    def _note_wait(self, wait: sync_debug.Wait, begin: int, end: int) -> None:
        thread = threading.get_native_id()
        if thread not in self._names:  # (it may have ended when the profile does)
            self._names[thread] = threading.current_thread().name
        self._waits.append(_Wait(thread, begin, end, wait))


def _write(file: TextIO, events: Iterator[str]) -> None:
    """(In parts: whole it takes several times its memory.)"""
    file.write('{"displayTimeUnit":"ms","traceEvents":[')
    separator = ""
    while part := [*itertools.islice(events, 1000)]:
        file.write(separator + ",".join(part))
        separator = ","
    file.write("]}")


def _trace_events(
    logs: list[_C.ThreadLog], waits: list[_Wait], waited: dict[int, str], begin: int, end: int
) -> Iterator[str]:
    """Each event as JSON."""
    texts = _Texts(os.getpid(), begin)
    yield texts.metadata(0, "process_name", "lazyeng")
    names = {thread: name for thread, name, _ in logs}
    events_of = {thread: events for thread, _, events in logs}
    names |= {wait.thread: "" for wait in waits if wait.thread not in names}
    ours = waited | {thread.native_id: thread.name for thread in threading.enumerate()}
    for thread, name in names.items():
        engine = name.startswith("lazyeng-")
        yield texts.metadata(thread, "thread_name", name if engine else ours.get(thread, name))
        stream = any(event[0] == "device" for event in events_of.get(thread, ()))
        yield texts.metadata(thread, "thread_sort_index", 2 if stream else int(engine))
    runs: dict[int, tuple[int, _C.TraceEvent]] = {}
    for thread, _, events in logs:
        for event in events:
            for number in _runs_of(event):
                runs[number] = thread, event
    for thread, _, events in logs:
        for event in events:
            yield texts.range(event, thread)
            if event[0] == "record" and event[2] in runs:
                yield texts.arrow(event, thread, *runs[event[2]])
    for wait in waits:
        yield texts.wait(wait)
    yield from _counters(logs, runs, texts)
    yield texts.whole(end)


def _runs_of(event: _C.TraceEvent) -> list[int]:
    """Numbers of the nodes that the event runs."""
    kind, _, number, *_, members = event
    if kind == "group":
        return [member for _, member in members]
    return [number] if kind == "run" and number else []


class _Texts:
    """Events as JSON. Those of each operator are put together by hand, as dicts take longer.

    Times are microseconds since the profile began, of whole nanoseconds.
    """

    def __init__(self, pid: int, begin: int) -> None:
        self.pid = pid
        self.begin = begin
        self.quoted = functools.cache(json.dumps)  # names and lines come again and again

    def metadata(self, thread: int, what: str, value: str | int) -> str:
        key = "sort_index" if what.endswith("index") else "name"
        return _json({"ph": "M", "name": what, "pid": self.pid, "tid": thread,
                      "args": {key: value}})  # fmt: skip

    def range(self, event: _C.TraceEvent, thread: int) -> str:
        kind, op, number, begin, end, _, failed, line, members = event
        args: list[str] = []
        if number:
            args.append(f'"number":{number}')
        if line:
            args.append(f'"line":{self.quoted(line)}')
        if members:
            listed = ",".join(json.dumps(f"{name}#{member}") for name, member in members)
            args.append(f'"members":[{listed}]')
        if failed:
            args.append('"failed":true')
        name = self.quoted(op or f"group of {len(members)}")
        return (
            f'{{"ph":"X","name":{name},"cat":"{kind}","pid":{self.pid},"tid":{thread},'
            f'"ts":{(begin - self.begin) / 1000:.3f},"dur":{(end - begin) / 1000:.3f},'
            f'"args":{{{",".join(args)}}}}}'
        )

    def arrow(self, record: _C.TraceEvent, thread: int, runner: int, run: _C.TraceEvent) -> str:
        """From where an op was recorded to where it ran: two events."""
        same = f'"name":"runs","cat":"flow","id":{record[2]},"pid":{self.pid}}}'
        return (
            f'{{"ph":"s","tid":{thread},"ts":{(record[3] - self.begin) / 1000:.3f},{same},'
            f'{{"ph":"f","bp":"e","tid":{runner},"ts":{(run[3] - self.begin) / 1000:.3f},{same}'
        )

    def wait(self, wait: _Wait) -> str:
        site = wait.wait
        args = {
            "line": f"{os.path.basename(site.filename)}:{site.lineno}",
            "op": site.op,
            "reason": site.reason,
        }
        return _json({"ph": "X", "name": "wait", "cat": "wait", "pid": self.pid,
                      "tid": wait.thread, "ts": (wait.begin - self.begin) / 1000,
                      "dur": (wait.end - wait.begin) / 1000, "args": args})  # fmt: skip

    def counters(self, ops: int, pending: int, time: int, of_both: bool) -> str:
        """One event, or two."""
        same = f'"ph":"C","pid":{self.pid},"ts":{(time - self.begin) / 1000:.3f}}}'
        text = f'{{"name":"pending ops","args":{{"ops":{ops}}},{same}'
        if of_both:
            text += f',{{"name":"pending bytes","args":{{"bytes":{pending}}},{same}'
        return text

    def whole(self, end: int) -> str:
        return _json({"ph": "X", "name": "profile", "cat": "profile", "pid": self.pid, "tid": 0,
                      "ts": 0.0, "dur": (end - self.begin) / 1000})  # fmt: skip


def _json(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _counters(
    logs: list[_C.ThreadLog], runs: dict[int, tuple[int, _C.TraceEvent]], texts: _Texts
) -> Iterator[str]:
    """Ops recorded and not run, and their bytes; what was skipped does not count."""
    steps: list[tuple[int, int, int]] = []
    for _, _, events in logs:
        for kind, _, number, _, end, size, *_ in events:
            if kind == "record" and number in runs:
                steps.append((end, -1, size))
                steps.append((max(end, runs[number][1][4]), 1, -size))
    ops = pending = 0
    for at, order, size in sorted(steps, key=operator.itemgetter(0, 1)):
        ops, pending = ops - order, pending + size
        yield texts.counters(ops, pending, at, size != 0)


def _end_in_child() -> None:
    _C.stop_trace()
    sync_debug.listeners.clear()


os.register_at_fork(after_in_child=_end_in_child)
