"""set_sync_debug_mode: tells where the program waits for the engine.

Waits are measured in C++ (csrc/record/sync_debug.h), which calls `report` after each.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, TypeVar

from lazyeng import _C
from lazyeng._arguments import check_function
from lazyeng.decorated import in_blocks
from lazyeng.errors import is_internal_frame

_Function = TypeVar("_Function", bound=Callable[..., Any])

SYNC_DEBUG_MODES = ("off", "warn", "error")


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait.

    ``filename``, ``lineno``: the user's line; ``op``: the operator waited for, such as "aten.mm",
    "" if there are several; ``reason``: why; ``microseconds``: how long.
    """

    filename: str
    lineno: int
    op: str
    reason: str
    microseconds: float

    def __str__(self) -> str:
        what = self.op or "all that was recorded"
        place = f"{os.path.basename(self.filename)}:{self.lineno}"
        return f"{place} waited {self.microseconds:.0f} us for {what}: {self.reason}"


class SyncWarning(UserWarning):
    """The program waited; ``wait`` has the details. A subclass of ``UserWarning``."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait)
        self.wait = wait


class SyncError(RuntimeError):
    """The program waited where it must not; ``wait`` has the details.

    A subclass of ``RuntimeError``.
    """

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait)
        self.wait = wait


class _Thread(threading.local):
    mode: Literal["off", "warn", "error"] = "off"
    allowed = 0  # allow_sync blocks around the caller


_thread = _Thread()


def set_sync_debug_mode(mode: Literal["off", "warn", "error"]) -> None:
    """Sets what is reported where the calling thread really waits for the engine.

    Reading what is ready is no wait. The wait itself takes place in any case, and what it waited
    for is complete when the error is raised.

    Args:
        mode: ``"off"``: nothing; ``"warn"``: a `SyncWarning` of the line that waits; ``"error"``: a
            `SyncError` there.

    Raises:
        ValueError: an unknown mode.
    """
    if mode not in SYNC_DEBUG_MODES:
        expected = ", ".join(SYNC_DEBUG_MODES)
        raise ValueError(f"set_sync_debug_mode: unknown mode {mode!r}, expected one of {expected}")
    _thread.mode = mode
    _tell_core()


def get_sync_debug_mode() -> Literal["off", "warn", "error"]:
    """What `set_sync_debug_mode` has set in the calling thread; ``"off"`` at first."""
    return _thread.mode


def allow_sync(reason: str) -> _Allowed:
    """A context manager, or decorator, in which the calling thread may wait: nothing is reported.

    If it decorates a generator or coroutine function, waits are allowed while that runs, and not
    while it is suspended.

    Args:
        reason: why this wait is intended; for readers of the code.

    Raises:
        TypeError: `reason` is not a string.
        ValueError: `reason` is empty.
    """
    if not isinstance(reason, str):
        raise TypeError(f"allow_sync: reason must be a string, got {type(reason).__name__}")
    if not reason.strip():
        raise ValueError("allow_sync: say why this wait is meant to be")
    return _Allowed()


class _Allowed:
    """Nests, and can be entered again."""

    def __enter__(self) -> None:
        _thread.allowed += 1
        _tell_core()

    def __exit__(self, *_exception: object) -> None:
        _thread.allowed -= 1
        _tell_core()

    def __call__(self, function: _Function) -> _Function:
        check_function("allow_sync", function)
        return in_blocks(function, _Allowed)  # type: ignore[return-value]


def _tell_core() -> None:
    _C.set_reports_waits(_thread.mode != "off" and _thread.allowed == 0)


# Called with (wait, begin, end), the times in ns of time.perf_counter_ns, after each wait of any
# thread (lazyeng.profile).
listeners: list[Callable[[Wait, int, int], None]] = []


def report(op: str, reason: str, begin: int, end: int) -> BaseException | None:
    """For the C++ core: warns of a wait of this thread, or returns the exception to raise."""
    caller = sys._getframe().f_back
    frame, entry = _users_frame(caller) if caller else (None, "")
    place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("<no Python code>", 0)
    reason = f"{entry}: {reason}" if entry else reason
    wait = Wait(*place, op, reason, (end - begin) / 1000)
    for listener in listeners:
        listener(wait, begin, end)
    if _thread.mode == "off" or _thread.allowed or frame is None:
        return None
    if _thread.mode == "error":
        return SyncError(wait)
    try:
        warnings.warn_explicit(
            SyncWarning(wait), None, wait.filename, wait.lineno,
            module=frame.f_globals.get("__name__", "<string>"),  # (of None nothing is shown)
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )  # fmt: skip
    except SyncWarning as error:  # the program turns warnings into errors
        return error.with_traceback(None)
    return None


_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def _of_standard_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file


def _users_frame(frame: FrameType) -> tuple[FrameType, str]:
    """The innermost frame that is the user's, and the name of the function of ours it called.

    Neither internal nor of the standard library, by way of which copy and pickle come to us.
    """
    entry = ""
    while (is_internal_frame(frame) or _of_standard_library(frame)) and frame.f_back is not None:
        name = frame.f_code.co_qualname
        if is_internal_frame(frame) and "<locals>" not in name:  # (those are what decorators put)
            entry = name
        frame = frame.f_back
    return frame, entry
