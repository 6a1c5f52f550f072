"""python -m lazyeng.explain: what failed, from which inputs, how it reached the read, and where.

    python -m lazyeng.explain error.pkl           a pickled exception ("-": from standard input)
    python -m lazyeng.explain train.py --epochs 3  runs the program; explains what ends it

In an interpreter or a debugger, ``lazyeng.explain.explain()`` does so for the exception that was
just raised.
"""

from __future__ import annotations

import argparse
import linecache
import os
import pickle
import runpy
import sys
from collections.abc import Iterable, Iterator
from traceback import FrameSummary, TracebackException, extract_tb
from typing import TextIO

from lazyeng._command import escape_unknown_letters, run_command
from lazyeng._dual import ORIGIN, Origin, state
from lazyeng.errors import LazyError, hide_internal_frames

_CONTEXT = 2  # source lines shown above and below
_STYLES = {"error": "1;31", "label": "1", "place": "36", "mark": "1;31", "dim": "2"}


def explain(
    error: BaseException | None = None, *, file: TextIO | None = None, color: bool | None = None
) -> None:
    """Prints what failed, its inputs, the path to the read, and the source lines.

    ``python -m lazyeng.explain FILE`` does so for a pickled exception (``-``: read from standard
    input; unpickle only what you trust), or, if the name ends in ``.py``, runs that program with
    the arguments that follow and explains the exception that ends it. ``--color``: ``auto`` (the
    default), ``always`` or ``never``; it stands before FILE. The exit status is 1 if something was
    explained, 2 if FILE is not there, or no exception.

    Args:
        error: the exception; by default the one being handled, or the last that an interactive
            interpreter showed.
        file: where to print, by default standard output.
        color: whether to use colours, by default if `file` is a terminal (and ``NO_COLOR`` unset).

    Raises:
        ValueError: no exception is given, and none was raised.
        TypeError: `error` is none.
    """
    if error is not None and not isinstance(error, BaseException):
        raise TypeError(f"explain: expected an exception, got {type(error).__name__}")
    if error is None:  # (one with a length may be false)
        error = sys.exception()
    if error is None:
        error = getattr(sys, "last_value", None)
    if error is None:
        raise ValueError("explain: no exception is given, and none was raised")
    out = file or sys.stdout
    paint = _Paint(_wants_color(out) if color is None else color)
    print("\n".join(_explained(error, paint)), file=out)


class _Paint:
    def __init__(self, color: bool) -> None:
        self.color = color

    def __call__(self, style: str, text: str) -> str:
        return f"\033[{_STYLES[style]}m{text}\033[0m" if self.color and text else text


def _wants_color(file: TextIO) -> bool:
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def _explained(error: BaseException, paint: _Paint) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup):
        yield paint("error", f"{type(error).__name__}: {error.message}")
        for part in error.exceptions:
            yield ""
            yield from _explained(part, paint)
        return
    text = "".join(TracebackException.from_exception(error, lookup_lines=False, compact=True)
                   .format_exception_only())  # fmt: skip
    head, _, notes = text.strip().partition("\n")
    yield paint("error", head)
    yield from ([paint("dim", notes)] if notes else [])
    if not isinstance(error, LazyError):
        yield from _raised(error, paint)
        return
    # (Not its attributes: the original exception may have some of the same names.)
    origin: Origin = state(error).get(ORIGIN) or Origin()
    yield ""
    yield paint("label", "failed op  ") + (origin.op or "unknown")
    yield paint("label", "inputs     ") + (", ".join(origin.inputs) or "none")
    if origin.path:
        yield paint("label", "path       ") + " -> ".join(origin.path) + " (read)"
    yield from _frames("recorded", error.creation_stack, paint)
    yield from _frames("raised", _within_the_op(error), paint)
    yield from _frames("read", extract_tb(error.__traceback__), paint)


def _within_the_op(error: LazyError) -> list[FrameSummary]:
    """Of a kernel in Python, a dataset, a collate function: their own frames."""
    cause = error.__cause__
    frames = list(extract_tb(cause.__traceback__)) if cause is not None else []
    recorded = [(frame.filename, frame.lineno) for frame in error.creation_stack]
    return [frame for frame in frames if (frame.filename, frame.lineno) not in recorded]


def _raised(error: BaseException, paint: _Paint) -> Iterator[str]:
    """What is no deferred failure, but may have been raised because of one."""
    deferred = _deferred_behind(error)
    if deferred is None:
        yield "not a deferred failure: it was raised where it happened"
    yield from _frames("raised", extract_tb(error.__traceback__), paint)
    if deferred is not None:
        yield ""
        yield paint("label", "because of")
        yield from _explained(deferred, paint)


def _deferred_behind(error: BaseException) -> BaseException | None:
    """The first deferred failure, or group, in what the traceback shows as cause or context."""
    seen = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, LazyError | BaseExceptionGroup):
            return behind
        seen.add(id(behind))
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)
    return None


def _frames(what: str, frames: Iterable[FrameSummary], paint: _Paint) -> Iterator[str]:
    """The innermost frame with its surroundings, then its callers, a line each."""
    users = [frame for frame in frames if frame.filename != "<frozen runpy>"]  # how we run it
    if not users:
        return
    *callers, innermost = users
    yield ""
    yield paint("label", what) + " at " + _place(innermost, paint)
    yield from _source(innermost, paint)
    for caller in reversed(callers):
        line = paint("dim", f": {caller.line}") if caller.line else ""
        yield "  called from " + _place(caller, paint) + line


def _place(frame: FrameSummary, paint: _Paint) -> str:
    return paint("place", f"{frame.filename}:{frame.lineno}") + f", in {frame.name}"


def _source(frame: FrameSummary, paint: _Paint) -> Iterator[str]:
    lines = linecache.getlines(frame.filename)
    if frame.lineno is None or frame.lineno > len(lines):
        yield paint("dim", "    (its source is not there)")
        return
    first = max(1, frame.lineno - _CONTEXT)
    for number in range(first, min(len(lines), frame.lineno + _CONTEXT) + 1):
        line = lines[number - 1].rstrip()
        if number != frame.lineno:
            yield paint("dim", f"  {number:5d} | {line}")
            continue
        yield paint("mark", ">") + f" {number:5d} | {line}"
        if marks := _marks(frame, line):
            yield paint("mark", f"        | {marks}")


def _marks(frame: FrameSummary, line: str) -> str:
    """Carets under the expression; nothing if the code has no columns."""
    if frame.colno is None or frame.end_colno is None:
        return ""
    source = line.encode()
    end = frame.end_colno if frame.end_lineno == frame.lineno else len(source)
    before = source[: frame.colno].decode(errors="replace")
    return " " * len(before) + "^" * max(1, len(source[frame.colno : end].decode(errors="replace")))


# ---- the command


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 if an error was explained, 2 if the file is not
    there, or no exception."""
    parser = argparse.ArgumentParser(
        prog="python -m lazyeng.explain",
        description="Explains a deferred failure: a pickled one (unpickle only what you trust), or "
        "the one that ends a program.",
    )
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("file", help="a pickled exception, '-' for standard input; or a program.py")
    parser.add_argument(
        "args", nargs=argparse.REMAINDER, metavar="...", help="arguments of the program"
    )
    options = parser.parse_args(arguments)
    try:
        error = (
            _run(options.file, options.args)
            if options.file.endswith(".py")
            else _unpickled(options.file)
        )
    except _UnusableError as problem:
        escape_unknown_letters()
        print(problem, file=sys.stderr)
        return 2
    if error is None:
        print("the program ended without an error")
        return 0
    escape_unknown_letters()  # (not before: the program's own output is its own)
    explain(error, color={"auto": None, "always": True, "never": False}[options.color])
    return 1


def _run(program: str, arguments: list[str]) -> BaseException | None:
    from lazyeng.mode import synchronize

    _check_readable(program)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    end = None
    try:
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as raised:  # sys.exit(main())
            end = raised
        synchronize()  # failures that were never read are explained too
    except Exception as error:
        hide_internal_frames(error)
        return error
    if end is not None:
        raise end
    return None


class _UnusableError(Exception):
    """The file is not there, or is something else."""


def _check_readable(path: str) -> None:
    try:
        open(path, "rb").close()
    except OSError as error:
        raise _UnusableError(f"{path}: {error.strerror}") from None


def _unpickled(path: str) -> BaseException:
    if path != "-":
        _check_readable(path)
    try:
        with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
            error = pickle.load(file)
    except Exception as problem:  # a file of something else can raise anything
        what = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise _UnusableError(f"{path}: cannot be unpickled: {what}") from None
    if not isinstance(error, BaseException):
        raise _UnusableError(f"{path}: expected a pickled exception, got {type(error).__name__}")
    return error


if __name__ == "__main__":
    sys.exit(run_command(main))
