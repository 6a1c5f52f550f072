"""lazy(): the context manager that makes unmodified code record; synchronize()."""

from __future__ import annotations

import textwrap
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lazyeng import _C, errors
from lazyeng._arguments import check_function
from lazyeng.config import MODES
from lazyeng.decorated import in_blocks
from lazyeng.sync_debug import SyncError

F = TypeVar("F", bound=Callable[..., Any])


class lazy:  # noqa: N801 (used like a function, as torch.no_grad is)
    """Records every operator called inside it, also those on plain tensors and modules.

    A context manager, re-entrant and per thread, and a decorator. Writes to plain tensors, such as
    an optimizer step, are complete when the block exits. If such a write failed, leaving the block
    raises its failure, even if a read raised it before. If another exception is already leaving the
    block, failures not yet reported are added to it as notes. Lazy results may outlive the block.
    Entering never waits; leaving waits for those writes, also at the end of an inner block. At the
    end of the outermost one, mode ``"async"`` also waits for what reads memory of plain tensors,
    which the program may change next.

    Args:
        mode: ``"async"``: the engine starts work as soon as it pays; ``"deferred"``: work starts
            when a value is read, when the program synchronizes, or when as much is recorded as
            ``LAZYENG_MAX_PENDING_OPS`` or ``LAZYENG_MAX_PENDING_BYTES`` allows; ``"sync"``: every
            operator runs at the call and raises there. ``LAZYENG_MODE`` does not change it.

    Raises:
        ValueError: an unknown mode.
        TypeError: `mode` is not a string.
        RuntimeError: at the end of the block, in another thread than the one that entered it; a
            ``RuntimeWarning`` where a generator is closed in it, or collected.
        LazyError: at the end of the block, a recorded write to a plain tensor failed; several as an
            ``ExceptionGroup``.
    """

    def __init__(self, mode: Literal["async", "deferred", "sync"] = "async") -> None:
        if callable(mode):  # @lazyeng.lazy without parentheses
            raise TypeError("use @lazyeng.lazy() with parentheses to decorate a function")
        if not isinstance(mode, str):
            raise TypeError(f"lazy: mode must be a string, got {type(mode).__name__}")
        if mode not in MODES:
            raise ValueError(f"lazy: unknown mode {mode!r}, expected one of {', '.join(MODES)}")
        self.mode = mode
        self._number_of_mode = MODES.index(mode)
        self._entered = threading.local()

    if TYPE_CHECKING:

        def __enter__(self) -> lazy: ...

        def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            traceback: TracebackType | None,
        ) -> None: ...

    def __reduce__(self) -> tuple[type[lazy], tuple[str]]:
        return lazy, (self.mode,)  # a copy has no open blocks

    def __repr__(self) -> str:
        return f"lazyeng.lazy({self.mode!r})"

    def __call__(self, function: F) -> F:
        """Decorates a function: each call runs in a block of this mode.

        Of a generator or coroutine each step does, and none is open while it is suspended.

        Raises:
            TypeError: a class, or what cannot be called.
        """
        check_function("lazy", function)
        return in_blocks(function, lambda: lazy(self.mode))  # type: ignore[return-value]


_OF_THE_BLOCK = 3  # the frame with the block, counted from `_finish`: its boundary is between


def _finish(block: lazy, number: int, leaving: BaseException | None) -> None:
    """What is done at the end of a block, before its thread records no more in it."""
    if number < 0:
        wrong = "lazy: a block ends here that this thread has not entered"
        if leaving is None:
            raise RuntimeError(wrong)
        _note(leaving, f"lazyeng: {wrong}")
        if isinstance(leaving, GeneratorExit):  # of which nobody is told
            text = f"{wrong}; in the thread that has, it stays open"
            warnings.warn(text, RuntimeWarning, stacklevel=_OF_THE_BLOCK)
        return
    waited: list[BaseException] = []
    try:
        try:
            _C.wait_for_plain_writes()
            if block.mode == "async" and _C.alone_holds_back(number):
                _C.finish_plain_reads()  # the program may change those tensors next
        except (SyncError, Warning) as report:  # the wait is over, and the writes are complete
            waited.append(report)
        if leaving is None:
            problems = _C.failures_of_block(number) or waited
        else:
            problems = []
            _tell_with(leaving, number, waited)
    finally:
        _C.leave_block(number)
    if problems:
        errors.raise_all(problems)


# In C++, where no handler of a signal can come between (csrc/bindings/blocks.cpp). The name is what
# waits are told of by (lazyeng/sync_debug.py).
_finish.__code__ = _finish.__code__.replace(co_name="__exit__", co_qualname="lazy.__exit__")
lazy.__enter__, lazy.__exit__ = _C.with_methods(errors.boundary(_finish))


# They end something, and nobody is shown their notes; as those that are no Exception.
_SILENT = (StopIteration, StopAsyncIteration)


def _tell_with(leaving: BaseException, block: int, waited: list[BaseException]) -> None:
    """What failed in the block becomes notes of the exception on its way out of it.

    Failures that are told of so count as reported, unless nobody may come to see them
    (``SystemExit``, ``GeneratorExit``): then `synchronize` raises them, or a warning tells.
    """
    problems = _C.look_at_failures_of_block(block) or waited
    told = [_note(leaving, _also_failed(problem)) for problem in problems]
    if all(told) and isinstance(leaving, Exception) and not isinstance(leaving, _SILENT):
        _C.failures_of_block(block)


def _note(leaving: BaseException, text: str) -> bool:
    """The exception is not masked; False if it takes no notes (a frozen dataclass)."""
    try:
        leaving.add_note(text)
    except Exception:
        return False
    return True


def _also_failed(problem: BaseException) -> str:
    """With its notes, which say where it was created."""
    said = f"lazyeng: also failed in this block: {type(problem).__name__}: {problem}"
    notes = "\n".join(getattr(problem, "__notes__", ()))
    return f"{said}\n{textwrap.indent(notes, '  ')}" if notes else said


@errors.boundary
def synchronize() -> None:
    """Waits for everything recorded so far and raises every failure not yet reported.

    Raises:
        LazyError: one failure is raised as itself (with its original type), several as an
            ``ExceptionGroup`` in the order of creation.
        RuntimeError: the kernel of a recorded op called it.
    """
    if _C.in_custom_kernel():
        raise RuntimeError(
            "synchronize: called by the kernel of an op, which would wait for itself"
        )
    _C.wait_for_all()
    failed = _C.unreported()
    if failed:
        errors.raise_all(failed)
