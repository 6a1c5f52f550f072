"""python -m lazyeng.report: sums up a trace that lazyeng.profile made, and draws it as HTML."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lazyeng._command import escape_unknown_letters, run_command
from lazyeng._timeline import timeline_html

Event = dict[str, Any]


@dataclass(slots=True)
class Trace:
    """The ranges of a trace by category, and what its threads are called. Times in microseconds."""

    duration: float = 0.0
    threads: dict[int, str] = field(default_factory=dict)
    ranges: dict[str, list[Event]] = field(default_factory=dict)

    def of(self, *categories: str) -> list[Event]:
        return [event for category in categories for event in self.ranges.get(category, [])]


def read(path: str) -> Trace:
    """Reads a file that `lazyeng.profile` wrote.

    Raises:
        ValueError: the file is no trace of lazyeng.
    """
    with open(path) as file:
        try:
            trace = _trace_of(json.load(file)["traceEvents"])
        # (Somebody else's.)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            trace = Trace()
    whole = trace.ranges.pop("profile", None)
    if not whole:
        raise ValueError(f"{path}: expected a trace written by lazyeng.profile")
    trace.duration = whole[0]["dur"]
    return trace


# What the tables ask of ranges of these categories.
_ARGS = {"group": ("members",), "wait": ("line", "op", "reason")}


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a time, got {value}")
    return number


def _trace_of(events: Iterable[Event]) -> Trace:
    trace = Trace()
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name":
            trace.threads[event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            event["ts"], event["dur"] = _number(event["ts"]), _number(event["dur"])
            for name in _ARGS.get(event["cat"], ()):
                event["args"][name]  # a KeyError if it is not there
            trace.ranges.setdefault(event["cat"], []).append(event)
            trace.threads.setdefault(event["tid"], f"thread {event['tid']}")
    return trace


# ---- tables


def table_of_ops(trace: Trace) -> list[list[str]]:
    """Per op, the most time running first: how often, recording and running; groups stand alone."""
    recording: dict[str, list[float]] = {}
    running: dict[str, list[float]] = {}
    for event in trace.of("record"):
        recording.setdefault(event["name"], []).append(event["dur"])
    for event in trace.of("run", "group"):
        running.setdefault(_what_ran(event), []).append(event["dur"])
    total = sum(map(sum, running.values())) or 1.0
    rows = []
    for name in sorted(
        recording.keys() | running.keys(), key=lambda n: (-sum(running.get(n, [])), n)
    ):
        recorded, ran = recording.get(name, []), running.get(name, [])
        rows.append([
            name, str(len(recorded)), _mean(recorded), str(len(ran)), _mean(ran),
            f"{sum(ran) / 1000:.3f}", f"{100 * sum(ran) / total:.1f} %",
        ])  # fmt: skip
    head = ["op", "recorded", "us each", "run", "us each", "ms in all", "of running"]
    return [head, *rows]


def _what_ran(event: Event) -> str:
    """An op, or the ops of a group in their order: `group: mul add x2`."""
    if event["cat"] != "group":
        return event["name"]
    names: list[list[Any]] = []
    for member in event["args"]["members"]:
        name = member.split("#")[0].removeprefix("aten::").split(".")[0]
        if names and names[-1][0] == name:
            names[-1][1] += 1
        else:
            names.append([name, 1])
    text = " ".join(name if count == 1 else f"{name} x{count}" for name, count in names)
    return "group: " + (text if len(text) <= 60 else text[:57] + "...")


def _mean(durations: list[float]) -> str:
    return f"{sum(durations) / len(durations):.1f}" if durations else ""


def table_of_waits(trace: Trace) -> list[list[str]]:
    """Per place where the program waited, the longest first."""
    sites: dict[tuple[str, str, str], list[float]] = {}
    for event in trace.of("wait"):
        args = event["args"]
        sites.setdefault((args["line"], args["op"], args["reason"]), []).append(event["dur"])
    rows = [
        [line, op or "several", str(len(waits)), f"{sum(waits) / 1000:.3f}", reason]
        for (line, op, reason), waits in sorted(sites.items(), key=lambda item: -sum(item[1]))
    ]
    return [["wait at", "for", "times", "ms in all", "because"], *rows]


def table_of_threads(trace: Trace) -> list[list[str]]:
    """Per thread, or stream: what of the profile's time it ran, recorded, waited, and was idle."""
    rows = []
    for thread, name in sorted(trace.threads.items(), key=lambda item: (item[1], item[0])):
        if thread == 0:
            continue
        mine = [
            event
            for event in trace.of("record", "run", "group", "wait", "device")
            if event["tid"] == thread
        ]
        busy = _covered(mine)
        row = [name]
        for categories in (("run", "group", "device"), ("record",), ("wait",)):
            time = _covered([event for event in mine if event["cat"] in categories])
            row.append(f"{time / 1000:.3f}")
        idle = max(trace.duration - busy, 0.0)
        rows.append([*row, f"{idle / 1000:.3f}", f"{100 * idle / (trace.duration or 1):.1f} %"])
    return [["thread", "run ms", "record ms", "wait ms", "else ms", "else"], *rows]


def _covered(events: Iterable[Event]) -> float:
    """Time within any of the ranges, which may lie in each other."""
    total = until = 0.0
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def show(table: list[list[str]], most: int) -> str:
    """The first `most` rows as text, numbers to the right; says how many were left out."""
    rows = table[: most + 1]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [all(_is_number(row[i]) for row in rows[1:]) for i in range(len(widths))]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
    if len(table) > len(rows):
        lines.append(f"... and {len(table) - len(rows)} more (--top)")
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return not cell or cell.removesuffix(" %").replace(".", "", 1).isdigit()


# ---- the command


def _rows(text: str) -> int:
    """An argument of the command line; argparse says what is wrong with it."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of rows, got {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """``python -m lazyeng.report TRACE``: prints tables of a trace, and draws it as a page.

    The tables: time per operator, per place where the program waited, and per thread. ``--top N``:
    rows per table, 20 by default. ``--html FILE``: where the page goes, by default beside the
    trace, with the ending ``.html``.

    Args:
        arguments: those of the command line; None: the program's own.

    Returns:
        The exit status: 2 for a file that is no trace, or a page that cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m lazyeng.report",
        description="Sums up a trace written by lazyeng.profile: time per op, per place where the "
        "program waited, and per thread; and draws it as one self-contained HTML page.",
    )
    parser.add_argument("trace", help="the file that lazyeng.profile wrote")
    parser.add_argument("--top", type=_rows, default=20, help="rows per table (default 20)")
    parser.add_argument("--html", help="the page to write (default: the trace's name with .html)")
    options = parser.parse_args(arguments)
    escape_unknown_letters()
    page = options.html or os.path.splitext(options.trace)[0] + ".html"
    try:
        trace = read(options.trace)
        _write_page(page, options.trace, trace)
    except (OSError, ValueError) as error:
        print(f"lazyeng.report: {error}", file=sys.stderr)
        return 2
    print(f"{options.trace}: {trace.duration / 1000:.3f} ms")
    for table in (table_of_ops(trace), table_of_waits(trace), table_of_threads(trace)):
        print()
        print(show(table, options.top))
    print(f"\ntimeline: {page}")
    return 0


def _write_page(page: str, path: str, trace: Trace) -> None:
    if os.path.exists(page) and os.path.samefile(page, path):
        raise ValueError(f"{page} is the trace; expected another file for the page (--html)")
    ranges = trace.of("record", "run", "group", "wait", "device")
    text = timeline_html(os.path.basename(path), trace.threads, ranges, trace.duration)
    with open(page, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(run_command(main))
