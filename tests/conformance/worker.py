"""Runs entries one after another in this process and reports each as a line of JSON.

Started by runner.py with a request on stdin; a crash or a hang here loses one entry only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
import traceback
import warnings
from typing import Any

import torch

import lazyeng

from .compare import difference, error_at_the_read, observe_eager, observe_lazy, to_lazy
from .suites import Entry, Sample, first_samples
from .variants import entries


def run_sample(sample: Sample, mode: str, how: str) -> tuple[str | None, str | None]:
    """How the lazy run differs from the eager one, in words; None if it does not. And the error
    that the read raised, where that is so."""
    expected = observe_eager(sample.build(lambda x: x))
    if how == "block":
        program, block = sample.build(lambda x: x), lambda: lazyeng.lazy(mode)
    else:  # the mode came with LAZYENG_MODE: LazyTensors record outside any block too
        program, block = sample.build(wrapped), contextlib.nullcontext
    got = observe_lazy(program, block, expected)
    return difference(expected, got, program.values), error_at_the_read(got)


def wrapped(obj: Any) -> Any:
    return lazyeng.wrap(obj) if isinstance(obj, torch.nn.Module) else to_lazy(obj)


def run_entry(entry: Entry, mode: str, how: str, limit: int | None) -> dict[str, Any]:
    """Every sample; the first difference is kept, the others are counted."""
    start = time.perf_counter()
    result: dict[str, Any] = {"samples": 0, "different": 0, "detail": "", "late": []}
    try:
        for sample in first_samples(entry, limit):
            result["samples"] += 1
            try:
                words, late = run_sample(sample, mode, how)
            except Exception as error:
                # The harness itself stumbled, e.g. wrap() raised.
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
                words = f"harness: {type(error).__name__} at {where}: {str(error)[:160]}"
                late = None
            if late and late not in result["late"]:
                result["late"].append(late)
            if words:
                result["different"] += 1
                result["detail"] = result["detail"] or f"sample {sample.label}: {words}"
    except Exception as error:
        # (torch 2.11 makes samples of _scaled_mm_v2 by a call that has no kernel on the CPU.)
        no_kernel = isinstance(error, NotImplementedError) and not result["samples"]
        result["different"] += not no_kernel
        result["detail"] = f"samples: {type(error).__name__}: {str(error)[:160]}"
    if not result["samples"] and not result["different"]:
        status = "n/a"
    else:
        status = "different" if result["different"] else "equal"
    return result | {"status": status, "seconds": round(time.perf_counter() - start, 3)}


def main() -> None:
    request = json.load(sys.stdin)
    faulthandler.enable()  # SIGSEGV and the watchdog's SIGABRT tell where
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Results go out on a descriptor of their own: operators may print.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    wanted = request["names"]
    by_name = {entry.name: entry for entry in entries(request["suite"], request["dtype"])}
    for name in wanted:
        print(json.dumps({"start": name}), file=out, flush=True)
        result = run_entry(by_name[name], request["mode"], request["how"], request["limit"])
        print(json.dumps({"name": name} | result), file=out, flush=True)


if __name__ == "__main__":
    main()
