"""Fork and exit: the engine's threads end before either, with everything that was recorded run."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import signal
import sys

from lazyeng import _C, errors


def install() -> None:
    """Registers the hooks. Once per process, at import."""
    os.register_at_fork(
        before=_C.before_fork,
        after_in_parent=_C.after_fork_in_parent,
        after_in_child=_in_child,
    )
    atexit.register(_at_exit)
    multiprocessing.util.register_after_fork(_Process, _Process.begin)
    if multiprocessing.parent_process() is not None:
        _Process.complete_at_end()  # (it has begun without us)


class _Process:
    """A process that multiprocessing has started. It ends without the handlers of atexit."""

    has_engine = True

    @classmethod
    def begin(cls, _: object) -> None:
        # The block of the thread that started it, if it was forked: it does not come to its end.
        _C.leave_blocks()
        if cls.has_engine:
            cls.complete_at_end()

    @staticmethod
    def complete_at_end() -> None:
        # Before queues end their threads, which may have to send what is pending.
        multiprocessing.util.Finalize(None, _complete, exitpriority=100)


def _in_child() -> None:
    if not _C.after_fork_in_child():
        atexit.unregister(_at_exit)  # forked from within an op: there is no engine to stop
        _Process.has_engine = False
        return
    # Failures that nobody has seen yet are the parent's to report; reading them still raises here.
    _C.mark_reported()


def _at_exit() -> None:
    try:
        _C.stop_engine()
    except BaseException as raised:  # by a handler of a signal: Ctrl-C
        _report()
        _abandon(raised)
    else:
        _report()


def _abandon(raised: BaseException) -> None:
    """Ends the engine without running what is pending."""
    left = _C.stats()["pending_ops"]
    print(
        f"lazyeng: {type(raised).__name__} while the program waited, at its end, for what it has"
        f" recorded: operators that have not run ({left}) are left",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    if not _C.abandon_engine(_PATIENCE):
        _end_at_once()


_PATIENCE = 2.0  # seconds that kernels have to notice the interrupt


def _end_at_once() -> None:
    """Ends the process as Ctrl-C ends one without Python.

    A thread within a kernel would be ended by the interpreter once that is ending itself, which
    takes C++ code of torch by surprise and aborts the process (so it does in eager, with threads
    that are daemons).
    """
    if sys.stdout:
        sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _complete() -> None:
    _C.wait_for_all()
    _report()


def _report() -> None:
    errors.warn_all(_C.unreported())
    while not _all_delivered():
        pass


def _all_delivered() -> bool:
    """Delivers what kernels warned of; False if one became an error, and others may be left."""
    try:
        _C.deliver_warnings()
    except Warning as warning:
        errors.show_warning(warning)
        return False
    return True
