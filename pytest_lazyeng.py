"""pytest plugin: `--lazyeng-sync=error` fails each test that waits for the engine unexpectedly.

A module of its own, next to the package: pytest loads its plugins in every run, and lazyeng, which
imports torch, is only imported if the option is given.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lazyeng").addoption(
        "--lazyeng-sync",
        choices=("off", "warn", "error"),
        default="off",
        help="lazyeng.set_sync_debug_mode while a test runs: 'error' fails a test that waits "
        "outside lazyeng.allow_sync(reason); fixtures may wait (default: off)",
    )


@pytest.hookimpl(hookwrapper=True)  # (not `wrapper`, which is an error where pluggy is older)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, None]:
    mode: Any = item.config.getoption("--lazyeng-sync")  # one of the choices
    if mode == "off":
        yield
        return
    from lazyeng.sync_debug import get_sync_debug_mode, set_sync_debug_mode

    before = get_sync_debug_mode()
    set_sync_debug_mode(mode)
    try:
        yield
    finally:
        set_sync_debug_mode(before)
