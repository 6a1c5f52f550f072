"""The table of PyTorch's device-generic tests, and why each of them failed."""

from __future__ import annotations

import re
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from .known import GENERIC
from .report import DOCS, GENERIC_HEADING

LOST = ("failed", "crash", "hang")
# "expected failure": marked so for the CPU, by its name; the mark does not hold for lazyeng.
LOST_ON_CPU = (*LOST, "expected failure")
COLUMNS = (
    "run",
    "passed",
    "skipped",
    "failed",
    "failed on cpu too",
    "explained",
    "without a reason",
)


def key(result: dict[str, Any]) -> str:
    """The same for both devices."""
    return f"{result['file']}:{name_on_cpu(result['name'])}"


def name_on_cpu(name: str) -> str:
    """The names of devices stand in those of class and test."""
    cls, _, test = name.partition(".")
    cls = re.sub("(CPU|PRIVATEUSE1|LAZYENG)$", "CPU", cls)
    return f"{cls}.{test.replace('_lazyeng', '_cpu')}"


def reason_of(result: dict[str, Any]) -> str | None:
    text = f"{result['file']}:{result['name']}: {result['detail']}"
    return next((reason for pattern, reason in GENERIC.items() if re.search(pattern, text)), None)


def failures(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What failed with lazyeng, with `verdict` and `reason`."""
    cpu = {key(r): r for r in results if r["device"] == "cpu"}
    found = []
    for result in results:
        if result["device"] == "cpu" or result["status"] not in LOST:
            continue
        baseline = cpu.get(key(result), {"status": "not run"})["status"]
        reason = reason_of(result)
        if baseline in LOST_ON_CPU:
            verdict = "failed on cpu too"
        else:
            verdict = "explained" if reason else "without a reason"
        found.append(result | {"verdict": verdict, "reason": reason or first_line(result)})
    return found


def unexplained(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [f for f in failures(results) if f["verdict"] == "without a reason"]


def first_line(result: dict[str, Any]) -> str:
    """Of the exception; numbers are left out, so that equal causes are equal."""
    text = re.sub(r" @ \S+$", "", result["detail"])
    text = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
    return f"{result['status']}: {text}" if result["status"] != "failed" else text


def devices(results: list[dict[str, Any]]) -> list[str]:
    return [d for d in dict.fromkeys(r["device"] for r in results) if d != "cpu"]


def rows(results: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Per file, and the total last; of one device."""
    table: dict[str, dict[str, int]] = {}
    verdicts = failures(results)
    for file in dict.fromkeys(r["file"] for r in results if r["device"] != "cpu"):
        status = Counter(r["status"] for r in results if r["file"] == file and r["device"] != "cpu")
        verdict = Counter(f["verdict"] for f in verdicts if f["file"] == file)
        passed = status["passed"] + status["expected failure"]
        failed = sum(status[s] for s in LOST)
        cells = (passed + failed, passed, status["skipped"], failed)
        table[file] = dict(zip(COLUMNS, [*cells, *(verdict[c] for c in COLUMNS[4:])], strict=True))
    table["all"] = {c: sum(row[c] for row in table.values()) for c in COLUMNS}
    return table


def grouped(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By reason, the most frequent first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for failure in found:
        groups.setdefault(failure["reason"], []).append(failure)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def only(device: str, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of a device and of its baseline."""
    return [r for r in results if r["device"] in (device, "cpu")]


def show(results: list[dict[str, Any]]) -> None:
    for device in devices(results):
        print(f"==== {device}")
        show_device(only(device, results))


def show_device(results: list[dict[str, Any]]) -> None:
    for verdict in ("explained", "without a reason"):
        found = [f for f in failures(results) if f["verdict"] == verdict]
        print(f"== {verdict}: {len(found)}")
        for reason, group in grouped(found).items():
            print(f"\n{len(group)} x {reason}")
            for failure in group if verdict == "without a reason" else group[:3]:
                where = failure["detail"].rpartition(" @ ")[2]
                print(f"    {failure['name']} ({where[:120]})")
    print(f"\n{'file':30s}" + "".join(f"{c:>{max(9, len(c) + 2)}s}" for c in COLUMNS))
    for file, row in rows(results).items():
        print(f"{file:30s}" + "".join(f"{n:{max(9, len(c) + 2)}d}" for c, n in row.items()))


def short_name(failure: dict[str, Any]) -> str:
    """Without class, device and dtype."""
    return failure["name"].partition(".")[2].replace("_lazyeng", "_cpu").partition("_cpu")[0]


TITLES = {
    "lazyeng": "The device `lazyeng`",
    "block": "The classes for `cpu`, each test inside `lazyeng.lazy()`",
}


def section(results: list[dict[str, Any]], note: str = "") -> str:
    modes = "/".join(dict.fromkeys(r["mode"] for r in results if r["device"] != "cpu"))
    lines = [
        GENERIC_HEADING,
        "",
        "Generated by `python -m tests.conformance.generic --tests DIR --docs` on",
        f"{time.strftime('%Y-%m-%d')}, PyTorch {torch.__version__}, mode {modes}: the classes of",
        "PyTorch's test files, as",
        '`instantiate_device_type_tests(..., only_for=("lazyeng",))` makes them, beside the same',
        "for `cpu`. An expected failure counts as passed.",
        *textwrap.wrap(note, 96),
    ]
    for device in devices(results):
        lines += ["", f"### {TITLES[device]}", "", *device_section(only(device, results))]
    return "\n".join(lines) + "\n"


def device_section(results: list[dict[str, Any]]) -> list[str]:
    lines = [f"| file | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for file, row in rows(results).items():
        lines.append(f"| {file} | {' | '.join(map(str, row.values()))} |")
    lost = sum(r["status"] == "not run" for r in results if r["device"] != "cpu")
    if lost:
        lines += ["", f"Not run, out of time: {lost}."]
    found = [f for f in failures(results) if f["verdict"] != "failed on cpu too"]
    if not found:
        return [*lines, "", "No failure that `cpu` does not have."]
    lines += [
        "",
        "Failures that `cpu` does not have:",
        "",
        "| tests | reason | which |",
        "|---|---|---|",
    ]
    for reason, group in grouped(found).items():
        note = "" if group[0]["verdict"] == "explained" else "without a reason: "
        names = ", ".join(f"`{n}`" for n in dict.fromkeys(short_name(f) for f in group))
        lines.append(f"| {len(group)} | {note}{reason.replace('|', '/')} | {names} |")
    return lines


def write_docs(results: list[dict[str, Any]], note: str = "") -> Path:
    before = DOCS.read_text().partition(GENERIC_HEADING)[0].rstrip()
    DOCS.write_text(f"{before}\n\n{section(results, note)}")
    return DOCS
