"""python -m tests.conformance: see --help."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from . import log, report
from .runner import DEFAULT_TIMEOUT, Plan, names_of, run_together

MODES = ("async", "deferred", "sync")
SUITES = ("op", "module", "optim")
MORE_SUITES = (
    "foreach",
    "no_grad",
    "fused",
    "inplace",
    "inplace_forms",
    "out",
    "out_forms",
    "error",
    "module_error",
    "optim_error",
    "dtype",
    "offset",
)
DTYPES = ("default", "float64", "bfloat16", "float16", "int64", "bool", "complex64")
FUSION = ("auto", "on", "off", "exact")
# What is run of what no option names.
USUAL: dict[str, tuple[str, ...]] = {
    "suite": SUITES,
    "dtype": ("default",),
    "fusion": ("auto",),
    "mode": MODES,
    "how": ("wrap",),
}
FULL: dict[str, tuple[str, ...]] = {
    "suite": SUITES + MORE_SUITES,
    "dtype": ("default", "float64", "bfloat16", "int64", "bool", "complex64"),
    "fusion": ("auto", "on", "off"),
    "mode": MODES,
    "how": ("wrap", "block"),
}
# PyTorch chooses the dtypes itself.
WITHOUT_DTYPE = ("error", "module_error", "optim_error", "dtype")
FULL_LOG = "build/conformance-full.jsonl"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Of the command line, or these."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Compares lazyeng with eager over PyTorch's op_db, module_db and optim_db. "
        "Exit status 1 if an entry differs that tests/conformance/known.py does not list.",
    )
    add = parser.add_argument
    add("--mode", nargs="+", choices=MODES)
    add("--suite", nargs="+", choices=SUITES + MORE_SUITES)
    add("--how", nargs="+", choices=("wrap", "block"),
        help="wrap: LazyTensors outside any block; block: plain tensors in lazy(mode)")  # fmt: skip
    add("--dtype", nargs="+", choices=DTYPES,
        help="default: float32, or the first that an operator has")  # fmt: skip
    add("--fusion", nargs="+", choices=FUSION, help="LAZYENG_FUSION")
    add("--full", action="store_true",
        help="where no option above says less: all suites, six dtypes, three modes, fusion auto, "
        "on and off, wrap and block; takes hours (docs/conformance.md), and logs to "
        f"{FULL_LOG}")  # fmt: skip
    add("--limit", type=int, help="at most this many samples of an entry")
    add("--every", type=int, default=1, metavar="N", help="one entry of N")
    add("--op", nargs="+", help="only these entries (exact names)")
    add("--jobs", type=int, default=1, help="worker processes")
    add("--timeout", type=float, default=DEFAULT_TIMEOUT, help="seconds for one entry")
    add("--log", help="each result is appended to this file as it comes, a line of JSON; what it "
        "holds already is not run again")  # fmt: skip
    add("--from", dest="logs", nargs="+", metavar="LOG",
        help="run nothing: report what these logs hold, of each entry the latest")  # fmt: skip
    add("--docs", action="store_true", help="write docs/conformance.md")
    add("--quiet", action="store_true", help="no line per entry while it runs")
    add("-v", "--verbose", action="store_true", help="list equal entries too")
    args = parser.parse_args(words)
    for name, values in (FULL if args.full else USUAL).items():
        setattr(args, name, getattr(args, name) or list(values))
    if args.full:
        args.log = args.log or FULL_LOG
    return args


def plans(args: argparse.Namespace) -> Iterator[Plan]:
    every = itertools.product(args.suite, args.dtype, args.fusion, args.mode, args.how)
    for suite, dtype, fusion, mode, how in every:
        if args.full and suite in WITHOUT_DTYPE and dtype != "default":
            continue
        yield Plan(suite, mode, how, args.limit, args.timeout, dtype, fusion)


def run_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    names = {suite: found[:: args.every] for suite, found in names_of(args.suite).items()}
    if args.op:
        names = {suite: [n for n in found if n in args.op] for suite, found in names.items()}
    if not any(names.values()):
        sys.exit(f"no entry is called {' '.join(args.op)}")
    done = report.groups(log.read([args.log])) if args.log else {}
    results: list[dict[str, Any]] = []

    def progress(result: dict[str, Any]) -> None:
        result |= log.stamp()
        if args.log:
            log.append(args.log, result)
        if not args.quiet and result["status"] not in ("equal", "n/a"):
            print(report.row(result), file=sys.stderr, flush=True)

    for number, together in enumerate(todo := shared(plans(args)), 1):
        before = {plan: earlier(plan, done) for plan in together}
        wanted = names[together[0].suite]
        missing: dict[tuple[Plan, ...], list[str]] = {}
        for name in wanted:
            missing.setdefault(tuple(p for p in together if name not in before[p]), []).append(name)
        missing.pop((), None)
        for plans_without, lacking in missing.items():
            for result in run_together(plans_without, lacking, args.jobs, progress):
                before[plan_of(result, together)][result["name"]] = result
        for plan in together:
            found = [before[plan][n] for n in wanted if n in before[plan]]
            if args.full and not args.quiet:
                words = f"{number}/{len(todo)} {report.total(group_of(plan), found)}"
                print(words, file=sys.stderr, flush=True)
            results += found
    return results


def shared(every: Iterable[Plan]) -> list[tuple[Plan, ...]]:
    """Those that one process can run beside one eager run."""
    found: dict[tuple[str, str], list[Plan]] = {}
    for plan in every:
        found.setdefault((plan.suite, plan.dtype), []).append(plan)
    return [tuple(together) for together in found.values()]


def group_of(plan: Plan) -> tuple[Any, ...]:
    return tuple(plan.what[part] for part in report.GROUP)


def plan_of(result: dict[str, Any], together: tuple[Plan, ...]) -> Plan:
    what = tuple(result[part] for part in report.GROUP)
    return next(plan for plan in together if group_of(plan) == what)


def earlier(
    plan: Plan, done: dict[tuple[Any, ...], list[dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    return {result["name"]: result for result in done.get(group_of(plan), [])}


def main(words: list[str] | None = None) -> int:
    args = arguments(words)
    start = time.perf_counter()
    results = log.read(args.logs) if args.logs else run_all(args)
    report.show(results, args.verbose)
    if args.full:
        print("\n".join(["", *report.summary(results)]))
    print(f"{time.perf_counter() - start:.0f} s")
    if args.docs:
        print("wrote", report.write_docs(results))
    return 1 if report.unexpected(results) else 0


if __name__ == "__main__":
    sys.exit(main())
