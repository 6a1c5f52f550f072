"""Runs the device-generic tests of one file of PyTorch's in this process; a line of JSON for each.

Started by generic.py with a request on stdin: the file, and the names to run (None: all that match
`select`). What is run comes back first. The device is chosen by
PYTORCH_TESTING_DEVICE_ONLY_FOR, which does what `instantiate_device_type_tests(..., only_for=...)`
does.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import os
import re
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import lazyeng


def generic_classes(module: Any) -> list[type[unittest.TestCase]]:
    """The classes that `instantiate_device_type_tests` made, not those of no device."""
    from torch.testing._internal.common_device_type import DeviceTypeTestBase

    found = [value for value in vars(module).values() if isinstance(value, type)]
    return [
        cls
        for cls in found
        if issubclass(cls, DeviceTypeTestBase) and cls.__module__ == module.__name__
    ]


def tests_of(module: Any) -> Iterator[unittest.TestCase]:
    loader = unittest.TestLoader()
    for cls in generic_classes(module):
        for name in loader.getTestCaseNames(cls):
            yield cls(name)


def inside_block(test: unittest.TestCase, mode: str) -> None:
    """Lets the test method run in ``lazy(mode)``, without what is around it."""
    method = getattr(test, test._testMethodName)

    @functools.wraps(method)
    def run() -> None:
        with lazyeng.lazy(mode):
            method()

    setattr(test, test._testMethodName, run)


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__qualname__}.{test._testMethodName}"


class Reporter(unittest.TestResult):
    """Writes what happens as it happens: what was written last tells where a process was lost."""

    def __init__(self, out: IO[str], folder: str) -> None:
        super().__init__()
        self.out = out
        self.folder = folder
        self.started = 0.0
        self.outcome: dict[str, Any] = {}

    def say(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self.out, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self.started = time.perf_counter()
        self.outcome = {"status": "passed", "detail": ""}
        self.say({"start": name_of(test)})

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        seconds = round(time.perf_counter() - self.started, 3)
        self.say({"name": name_of(test), "seconds": seconds} | self.outcome)

    def fail(self, error: Any) -> None:
        self.outcome = {"status": "failed", "detail": self.describe(error)}

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        if isinstance(test, unittest.TestCase):
            self.fail(err)
        else:  # setUpClass: no test of that class runs, and none is reported
            traceback.print_exception(*err)
            os._exit(1)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.fail(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.fail(err)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.outcome = {"status": "skipped", "detail": reason}

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.outcome = {"status": "expected failure", "detail": self.describe(err)}

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        self.outcome = {"status": "failed", "detail": "unexpected success"}

    def describe(self, error: Any) -> str:
        """Type and first line of the exception, and the line of the test that raised it."""
        kind, value, trace = error
        if kind is RuntimeError and str(value).startswith("Comparing") and value.__cause__:
            value = value.__cause__  # (assertEqual wraps what was raised by what it compares)
            kind = type(value)
        lines = [line for line in str(value).splitlines() if line.strip()] or [""]
        here = [f for f in traceback.extract_tb(trace) if f.filename.startswith(self.folder)]
        where = f" @ {os.path.basename(here[-1].filename)}:{here[-1].lineno}" if here else ""
        return f"{kind.__name__}: {lines[0][:300]}{where}"


def main() -> None:
    request = json.load(sys.stdin)
    faulthandler.enable()  # SIGSEGV and the watchdog's SIGABRT tell where
    warnings.simplefilter("ignore")
    # Results go out on a descriptor of their own: tests may print.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    file = Path(request["file"]).resolve()
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file)]
    module = importlib.import_module(file.stem)
    tests = {name_of(test): test for test in tests_of(module)}
    wanted = request["names"]
    if wanted is None:
        names = [name for name in tests if re.search(request["select"], name)]
    else:
        names = [name for name in wanted if name in tests]
    print(json.dumps({"names": names}), file=out, flush=True)
    if request["block"]:
        for test in tests.values():
            inside_block(test, request["block"])
    unittest.TestSuite(tests[name] for name in names).run(Reporter(out, str(file.parent)))


if __name__ == "__main__":
    main()
