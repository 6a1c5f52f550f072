"""How the command-line tools write: on any terminal, into any pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable


def escape_unknown_letters() -> None:
    """From now on letters that standard output does not have are written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run_command(main: Callable[[], int]) -> int:
    """Calls `main`; returns the exit status: 1 if who reads its output stopped (``| head``)."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
