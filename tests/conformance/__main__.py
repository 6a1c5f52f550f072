"""python -m tests.conformance: see --help."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from . import report
from .runner import DEFAULT_TIMEOUT, Plan, names_of, run

MODES = ("async", "deferred", "sync")
SUITES = ("op", "module", "optim")
MORE_SUITES = ("inplace", "out", "error")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Compares lazyeng with eager over PyTorch's op_db, module_db and optim_db. "
        "Exit status 1 if an entry differs that tests/conformance/known.py does not list.",
    )
    add = parser.add_argument
    add("--mode", nargs="+", default=list(MODES), choices=MODES)
    add("--suite", nargs="+", default=list(SUITES), choices=SUITES + MORE_SUITES)
    add("--how", nargs="+", default=["wrap"], choices=("wrap", "block"),
        help="wrap: LazyTensors outside any block; block: plain tensors in lazy(mode)")  # fmt: skip
    add("--limit", type=int, help="at most this many samples of an entry")
    add("--op", nargs="+", help="only these entries (exact names)")
    add("--jobs", type=int, default=1, help="worker processes")
    add("--timeout", type=float, default=DEFAULT_TIMEOUT, help="seconds for one entry")
    add("--json", help="write all results to this file")
    add("--docs", action="store_true", help="write docs/conformance.md")
    add("--quiet", action="store_true", help="no line per entry while it runs")
    add("-v", "--verbose", action="store_true", help="list equal entries too")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    names = names_of(args.suite)
    results: list[dict[str, Any]] = []
    start = time.perf_counter()

    def progress(result: dict[str, Any]) -> None:
        if not args.quiet and result["status"] not in ("equal", "n/a"):
            print(report.row(result), file=sys.stderr, flush=True)

    for suite in args.suite:
        wanted = [n for n in names[suite] if not args.op or n in args.op]
        for mode in args.mode:
            for how in args.how:
                plan = Plan(suite, mode, how, args.limit, args.timeout)
                results += run(plan, wanted, args.jobs, progress)
    if not results:
        sys.exit(f"no entry is called {' '.join(args.op)}")
    report.show(results, args.verbose)
    print(f"{time.perf_counter() - start:.0f} s")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    if args.docs:
        print("wrote", report.write_docs(results, args.limit))
    return 1 if report.unexpected(results) else 0


if __name__ == "__main__":
    sys.exit(main())
