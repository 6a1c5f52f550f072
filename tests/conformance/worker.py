"""Runs entries one after another in this process and reports each as a line of JSON.

Started by runner.py with a request on stdin; a crash or a hang here loses one entry only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

import lazyeng
from lazyeng import _C
from lazyeng.config import MODES

from .compare import Observed, difference, error_at_the_read, observe_eager, observe_lazy, to_lazy
from .suites import Entry, Sample, first_samples
from .variants import entries

# What is set in this process is the first setting's at the first sample, the second's at the next,
# and so on: what a setting finds that runs first is found in each of them.
turns = itertools.count()


@dataclass
class Setting:
    """One of those in which each sample is run, and what was found of an entry so far."""

    mode: str
    how: str
    fusion: str
    found: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> None:
        self.found = {"different": 0, "detail": "", "late": [], "seconds": 0.0}

    def apply(self) -> None:
        """As LAZYENG_MODE and LAZYENG_FUSION would."""
        _C.set_default_mode(MODES.index(self.mode))
        _C.set_fusion(self.fusion != "off")
        _C.set_inexact_fusion(self.fusion == "on")

    def differs(self, words: str) -> None:
        self.found["different"] += 1
        self.found["detail"] = self.found["detail"] or words

    def run(self, sample: Sample, expected: Observed) -> None:
        """The first difference is kept, the others are counted."""
        start = time.perf_counter()
        try:
            self.apply()
            words, late = self.compare(sample, expected)
        except Exception as error:
            words, late = stumbled(error), None
        if late and late not in self.found["late"]:
            self.found["late"].append(late)
        if words:
            self.differs(f"sample {sample.label}: {words}")
        self.found["seconds"] += time.perf_counter() - start

    def compare(self, sample: Sample, expected: Observed) -> tuple[str | None, str | None]:
        """How the lazy run differs from the eager one, in words; None if it does not. And the
        error that the read raised, where that is so."""
        if self.how == "block":
            program, block = sample.build(lambda x: x), lambda: lazyeng.lazy(self.mode)
        else:  # LazyTensors record outside any block too
            program, block = sample.build(wrapped), contextlib.nullcontext
        got = observe_lazy(program, block, expected)
        return difference(expected, got, program.values), error_at_the_read(got)


def stumbled(error: Exception) -> str:
    """The harness itself, e.g. wrap() raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"harness: {type(error).__name__} at {where}: {str(error)[:160]}"


def run_sample(sample: Sample, settings: list[Setting]) -> None:
    try:
        expected = observe_eager(sample.build(lambda x: x))
    except Exception as error:
        for setting in settings:
            setting.differs(f"sample {sample.label}: {stumbled(error)}")
        return
    first = next(turns) % len(settings)
    for setting in settings[first:] + settings[:first]:
        setting.run(sample, expected)


def wrapped(obj: Any) -> Any:
    return lazyeng.wrap(obj) if isinstance(obj, torch.nn.Module) else to_lazy(obj)


def run_entry(entry: Entry, settings: list[Setting], limit: int | None) -> dict[str, Any]:
    """Every sample in each setting."""
    start = time.perf_counter()
    samples = 0
    for setting in settings:
        setting.begin()
    try:
        for sample in first_samples(entry, limit):
            samples += 1
            run_sample(sample, settings)
    except Exception as error:
        # (torch 2.11 makes samples of _scaled_mm_v2 by a call that has no kernel on the CPU.)
        no_kernel = isinstance(error, NotImplementedError) and not samples
        for setting in settings:
            setting.found["different"] += not no_kernel
            setting.found["detail"] = f"samples: {type(error).__name__}: {str(error)[:160]}"
    own = sum(setting.found["seconds"] for setting in settings)
    common = (time.perf_counter() - start - own) / len(settings)
    return {"samples": samples, "each": [rounded(s.found, samples, common) for s in settings]}


def rounded(found: dict[str, Any], samples: int, common: float) -> dict[str, Any]:
    """With the status, and a share of what was done for all settings together."""
    if not samples and not found["different"]:
        status = "n/a"
    else:
        status = "different" if found["different"] else "equal"
    return found | {"status": status, "seconds": round(found["seconds"] + common, 3)}


def main() -> None:
    request = json.load(sys.stdin)
    faulthandler.enable()  # SIGSEGV and the watchdog's SIGABRT tell where
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Results go out on a descriptor of their own: operators may print.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    wanted = request["names"]
    settings = [Setting(**setting) for setting in request["settings"]]
    by_name = {entry.name: entry for entry in entries(request["suite"], request["dtype"])}
    for name in wanted:
        print(json.dumps({"start": name}), file=out, flush=True)
        result = run_entry(by_name[name], settings, request["limit"])
        print(json.dumps({"name": name} | result), file=out, flush=True)


if __name__ == "__main__":
    main()
