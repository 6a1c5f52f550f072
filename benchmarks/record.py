"""What recording an op costs, against eager's cost of the same expression in the same run.

Method. For each expression, rounds of four interleaved bursts: eager, deferred, eager, async. A
burst is `--burst` evaluations in a `for` loop; its results are dropped one by one, as in a program
that overwrites its names. In mode "deferred" nothing runs meanwhile: the burst's time is recording
alone; the synchronize that runs the work is outside the timed region. In mode "async" the engine
runs beside it. The ratio is the median over rounds of (lazy burst / eager burst of the same round),
so that drift of a shared machine cancels. Creation stacks are on (LAZYENG_STACKS=user). The empty
loop costs the same on both sides and is not subtracted: ratios come out a little less extreme.

Inputs have two elements (matrices 2 x 2), so that eager's time is overhead too. Targets are per
group: the median of its ratios, and each expression, are shown against 0.70, 1.15, 1.15.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__":  # (for no test that imports this, and what it starts)
    os.environ.setdefault("LAZYENG_STACKS", "user")  # read at import

import torch
import torch.nn.functional as F

import lazyeng


@dataclass(frozen=True)
class Group:
    title: str
    target: float
    expressions: tuple[str, ...]


OPERATORS = (
    "x + y", "x - y", "x * y", "x / y", "-x", "x < y", "x == y", "m @ n", "x += y", "x *= y",
    "x + 1", "x - 1.5", "1 - x", "2 * x", "x / 3.0", "x ** 2", "x > 0", "x += 1", "x *= 0.5",
)  # fmt: skip

FUNCTIONS = (
    "x.relu()", "torch.relu(x)", "x.sum()", "m.mean(1)", "torch.add(x, y)",
    "torch.add(x, y, out=o)",
    "x.add_(y)", "x.exp()", "x.tanh()", "torch.sigmoid(x)", "F.gelu(x)", "F.linear(m, n, x)",
    "torch.mm(m, n)", "torch.addmm(x, m, n)", "torch.cat([x, y])", "torch.stack([x, y])",
    "F.softmax(m, -1)", "F.layer_norm(m, (2,))", "x.clone()", "torch.where(x > 0, x, y)",
    "x.clamp(0, 1)", "torch.maximum(x, y)", "m.sum(0, keepdim=True)", "m.amax(1)", "m.argmax(1)",
    "x.to(torch.float64)", "torch.zeros_like(x)", "x.copy_(y)", "x.fill_(1.0)",
    "F.mse_loss(x, y)", "F.dropout(x, 0.5)", "x[i]", "m.std()", "torch.addcmul(x, x, y)",
)  # fmt: skip

VIEWS = (
    "m.view(-1)", "m.view(4)", "m[0]", "m[0:1]", "m[:, 0]", "m[..., None]", "m.t()", "m.T",
    "m.transpose(0, 1)", "x.unsqueeze(0)", "x.expand(3, 2)", "m.permute(1, 0)", "m.reshape(4)",
    "m.narrow(0, 0, 1)", "m.chunk(2)", "m.split(1)", "m.unbind(0)", "x.detach()", "m.flatten()",
    "m.squeeze(0)", "m.select(0, 1)", "m.diagonal()", "x.view_as(y)",
)  # fmt: skip

WITH_GRAD = (
    "x + y", "x * y", "2 * x", "x ** 2", "m @ n", "x.relu()", "x.exp()", "x.sum()",
    "F.linear(m, n, x)",
    "F.softmax(m, -1)", "F.layer_norm(m, (2,))", "torch.cat([x, y])", "m.view(-1)", "m[0]", "m.t()",
)  # fmt: skip

GROUPS = (
    Group("operators, between tensors and with scalars", 0.70, OPERATORS),
    Group("other methods and functions", 1.15, FUNCTIONS),
    Group("views", 1.15, VIEWS),
)
# No target is set for these; autograd's own bookkeeping is the same on both sides.
GRAD_GROUP = Group("with requires_grad (forward only, no target)", float("inf"), WITH_GRAD)


@dataclass(frozen=True)
class Row:
    expression: str
    eager_ns: float
    deferred_ns: float
    async_ns: float
    deferred_ratio: float
    async_ratio: float


def inputs(requires_grad: bool) -> dict[str, torch.Tensor]:
    values = {
        "x": torch.tensor([0.5, -1.5]),
        "y": torch.tensor([1.25, 2.0]),
        "m": torch.tensor([[0.5, 1.0], [-0.25, 0.75]]),
        "n": torch.tensor([[1.0, -0.5], [0.5, 0.25]]),
    }
    if requires_grad:
        values = {k: v.requires_grad_() for k, v in values.items()}
    return values | {"o": torch.zeros(2), "i": torch.tensor([1, 0])}


def wrapped(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    # Copies: eager and lazy bursts must not write the same memory.
    return {
        k: lazyeng.wrap(v.detach().clone()).requires_grad_(v.requires_grad)
        for k, v in values.items()
    }


BURST = """
def burst(count, x, y, m, n, o, i):
    start = clock()
    for _ in range(count):
        {statement}
    return clock() - start
"""


def compiled(expression: str) -> Callable[..., float]:
    """A function of (count, tensors): runs the expression `count` times, returns the seconds."""
    # `x += y` is a statement already; its target is a local, as in a user's function.
    in_place = any(sign in expression for sign in (" += ", " *= "))
    statement = expression if in_place else f"r = {expression}"
    scope: dict[str, Any] = {"torch": torch, "F": F, "clock": time.perf_counter}
    exec(compile(BURST.format(statement=statement), f"<{expression}>", "exec"), scope)
    return scope["burst"]


def measure(expression: str, grad: bool, burst: int, rounds: int) -> Row:
    run = compiled(expression)
    eager = inputs(grad)
    lazy = wrapped(eager)
    bursts: dict[str, list[float]] = {"eager": [], "deferred": [], "async": []}
    ratios: dict[str, list[float]] = {"deferred": [], "async": []}
    for i in range(rounds + 2):
        for mode in ("deferred", "async"):
            eager_s = run(burst, **eager)
            with lazyeng.lazy(mode):
                lazy_s = run(burst, **lazy)
                lazyeng.synchronize()  # not timed: the work itself
            if i >= 2:  # the first two warm caches, allocator and branch predictors
                bursts["eager"].append(eager_s)
                bursts[mode].append(lazy_s)
                ratios[mode].append(lazy_s / eager_s)
    ns = {k: statistics.median(v) / burst * 1e9 for k, v in bursts.items()}
    return Row(
        expression, ns["eager"], ns["deferred"], ns["async"],
        statistics.median(ratios["deferred"]), statistics.median(ratios["async"]),
    )  # fmt: skip


def measure_all(expressions: list[str], grad: bool, burst: int, rounds: int) -> list[Row]:
    gc.collect()
    gc.disable()  # a collection falls into one side's burst by chance
    try:
        return [measure(expression, grad, burst, rounds) for expression in expressions]
    finally:
        gc.enable()


def verdict(ratio: float, target: float) -> str:
    if target == float("inf"):
        return ""
    return "ok" if ratio <= target else "over"


def show(group: Group, rows: list[Row]) -> None:
    limit = "" if group.target == float("inf") else f", target {group.target:.2f}"
    print(f"\n{group.title}{limit}")
    print(
        f"{'':28s} {'eager':>9s} {'deferred':>9s} {'async':>9s}   "
        f"{'def/eager':>9s}  {'async/eager':>11s}"
    )
    for r in rows:
        print(
            f"{r.expression:28s} {r.eager_ns:6.0f} ns {r.deferred_ns:6.0f} ns {r.async_ns:6.0f} ns"
            f"   {r.deferred_ratio:9.2f}  {r.async_ratio:11.2f}  "
            f"{verdict(r.deferred_ratio, group.target)}"
        )
    median = statistics.median(r.deferred_ratio for r in rows)
    worst = max(rows, key=lambda r: r.deferred_ratio)
    over = sum(r.deferred_ratio > group.target for r in rows)
    print(
        f"{'median of the group':28s} {median:51.2f}  "
        f"{statistics.median(r.async_ratio for r in rows):11.2f}  {verdict(median, group.target)}"
        f"   worst {worst.deferred_ratio:.2f} ({worst.expression}); {over} of {len(rows)} over"
        if limit
        else f"{'median of the group':28s} {median:51.2f}"
    )


def machine() -> dict[str, Any]:
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        model = next(
            (line.split(":")[1].strip() for line in file if line.startswith("model name")), model
        )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lazyeng": getattr(lazyeng, "__version__", "unknown"),
        "stacks": os.environ.get("LAZYENG_STACKS", "user"),
        "load": os.getloadavg()[0],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--burst", type=int, default=500, help="evaluations in a burst")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", help="expressions that contain this text")
    parser.add_argument("--json", help="write the rows to this file")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    print(f"burst {args.burst}, rounds {args.rounds}; ns are medians, ratios medians of rounds")
    report: dict[str, Any] = {"machine": about, "groups": []}
    for group, grad in [*((g, False) for g in GROUPS), (GRAD_GROUP, True)]:
        chosen = [e for e in group.expressions if not args.only or args.only in e]
        if not chosen:
            continue
        rows = measure_all(chosen, grad, args.burst, args.rounds)
        show(group, rows)
        report["groups"].append(
            {"title": group.title, "target": group.target, "rows": [vars(r) for r in rows]}
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
