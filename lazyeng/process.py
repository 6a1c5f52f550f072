"""Fork and exit: the engine's threads end before either, with everything that was recorded run."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os

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


class _Process:
    """A process that multiprocessing has started. It ends without the handlers of atexit."""

    has_engine = True

    @classmethod
    def begin(cls, _: object) -> None:
        # The block of the thread that started it, if it was forked: it does not come to its end.
        _C.leave_blocks()
        if cls.has_engine:
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
    _C.stop_engine()
    _report()


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
