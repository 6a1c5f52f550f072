"""PyTorch's device-generic tests for the device "lazyeng", beside those for "cpu".

    python -m tests.conformance.generic --tests ~/pytorch/test --file test_view_ops.py

`--tests` is the folder `test` of a checkout of PyTorch of the installed version. Each file runs in
processes of its own (generic_worker.py); a test that crashes or hangs costs that test only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .generic_report import LOST, name_on_cpu, show, unexplained, write_docs
from .runner import NO_NAME, run_process

# What this is compared with is "cpu": where lazyeng's tensors are, without lazyeng. "block" is the
# tests of cpu, each inside lazy(mode): no test fails there for the name of a device.
DEVICES = ("lazyeng", "cpu", "block")
FILES = (
    "test_view_ops.py", "test_indexing.py", "test_shape_ops.py", "test_type_promotion.py",
    "test_tensor_creation_ops.py", "test_sort_and_select.py", "test_reductions.py",
    "test_binary_ufuncs.py", "test_unary_ufuncs.py", "test_torch.py", "test_nn.py",
    "test_autograd.py",
)  # fmt: skip


@dataclass(frozen=True)
class FileJob:
    """One file's tests for one device."""

    path: Path
    device: str
    mode: str
    timeout: float
    select: str = ""
    worker = "tests.conformance.generic_worker"
    forked = False  # which devices there are is asked when PyTorch's tests are imported

    def environment(self) -> dict[str, str]:
        only_for = "lazyeng" if self.device == "lazyeng" else "cpu"
        return {"LAZYENG_MODE": self.mode, "PYTORCH_TESTING_DEVICE_ONLY_FOR": only_for}

    def request(self, names: list[str]) -> dict[str, Any]:
        block = self.mode if self.device == "block" else None
        request = {"file": str(self.path), "names": names or None, "select": self.select}
        return request | {"block": block}


def run_file(
    job: FileJob, limit: float, names: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """A result of every test, or of these; of those after `limit` seconds, that they were not
    run."""
    end = time.perf_counter() + limit
    left = names
    while left is None or (left and time.perf_counter() < end):
        names = list(left or [])
        done = set()
        for result in run_process(job, names):
            if result["status"] in ("crash", "hang"):
                words = f"{result['status']}: {result['name']}: {result['detail']}"
                print(words, file=sys.stderr, flush=True)
            if result["name"] == NO_NAME:
                return
            done.add(result["name"])
            yield result
            if time.perf_counter() > end:
                break
        left = [name for name in names if name not in done]
    for name in left:
        yield {"name": name, "status": "not run", "detail": "out of time", "seconds": 0.0}


def run(
    paths: list[Path], args: argparse.Namespace, earlier: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The earlier results, with those of these files and devices replaced."""
    results = earlier
    for path in paths:
        for device in sorted(args.device, key=lambda d: d == "cpu"):
            job = FileJob(path, device, args.mode, args.timeout, args.select)
            names = None if device != "cpu" else lost_elsewhere(results, path.name)
            found = [
                r | {"file": path.name, "device": device, "mode": args.mode}
                for r in run_file(job, args.limit, names)
            ]
            counts = Counter(r["status"] for r in found)
            words = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            print(f"{path.name} {device}: {words or 'no test'}", file=sys.stderr, flush=True)
            ran = {(path.name, device, r["name"]) for r in found}
            results = [r for r in results if (r["file"], r["device"], r["name"]) not in ran] + found
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))
    return results


def lost_elsewhere(results: list[dict[str, Any]], file: str) -> list[str]:
    """What has to be run on cpu: the tests that failed on another device."""
    lost = [
        r for r in results if r["file"] == file and r["device"] != "cpu" and r["status"] in LOST
    ]
    return sorted({name_on_cpu(result["name"]) for result in lost})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.generic",
        description="Runs the device-generic test classes of PyTorch's own test files for the "
        'device "lazyeng" and for "cpu". Exit status 1 if a test fails that neither fails on cpu '
        "nor has a reason in tests/conformance/known.py.",
    )
    add = parser.add_argument
    add("--tests", type=Path, required=True, metavar="DIR",
        help="the folder `test` of a checkout of PyTorch of the installed version")  # fmt: skip
    add("--file", nargs="+", default=list(FILES), help="test files in that folder")
    add("--device", nargs="+", default=["lazyeng", "cpu"], choices=DEVICES,
        help="of cpu, what failed on another device")  # fmt: skip
    add("--mode", default="async", choices=("async", "deferred", "sync"))
    add("--select", default="", metavar="REGEX", help="only tests with this in their name")
    add("--timeout", type=float, default=120, help="seconds for one test")
    add("--limit", type=float, default=3600, help="seconds for one file and device")
    add("--json", type=Path, help="results are added to this file; the report is about all of it")
    add("--docs", action="store_true", help="write them into docs/conformance.md")
    add("--note", default="", help="a sentence for the docs: where the files are from")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    missing = [name for name in args.file if not (args.tests / name).is_file()]
    if missing:
        sys.exit(f"not in {args.tests}: {', '.join(missing)}")
    earlier = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    results = run([args.tests / name for name in args.file], args, earlier)
    show(results)
    if args.docs:
        print("wrote", write_docs(results, args.note))
    return 1 if unexplained(results) else 0


if __name__ == "__main__":
    sys.exit(main())
