"""Deferred exceptions: what a reader of a failed tensor gets.

Life of a failure: the engine catches an exception; `detach` takes it apart, once, so that nothing
of its surroundings stays alive; `build` makes a new exception of it for each reader; `warn_unseen`
tells of those that nobody read. docs/errors.md shows what the result looks like.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from lazyeng._device_loss import Candidate, DeviceLoss
from lazyeng._dual import (
    ORIGIN,
    ORIGINAL,
    LazyError,
    Origin,
    assign,
    dual_class,
    hide_while_unwinding,
    part,
    state,
)
from lazyeng._exception_data import (
    ExceptionData,
    bare,
    fresh,
    put_together_alone,
    put_together_as,
    take_apart,
    text_of,
    to_keep,
    told,
)
from lazyeng._traceback import (
    Site,
    Stack,
    around_backward,
    internal,
    is_internal_frame,
    joined,
    make_traceback,
    namespace_of,
    place,
    shown,
    shown_or_all,
    sites_of,
    without_internal,
)

__all__ = [
    "LazyError", "UnseenFailureWarning", "boundary", "build", "detach", "group",
    "hide_in_deferred", "hide_internal_frames", "hide_while_unwinding", "internal",
    "is_internal_frame", "raise_all", "show_warning", "warn_all", "warn_of_kernel", "warn_unseen",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN_PATH = 8


class UnseenFailureWarning(UserWarning):
    """An operation failed, and its result was never read and never synchronized.

    A subclass of ``UserWarning``.
    """


# ---- for the C++ core


def detach(original: BaseException) -> ExceptionData:
    """Takes an exception apart so that it keeps no frame, no local and no other exception alive.

    The result is what `build` and `warn_unseen` want; the frames of a kernel written in Python stay
    in it as positions. Drops the traceback of `original`, which may be part of a reference cycle.
    """
    try:
        record = to_keep(take_apart(original))
    except Exception:  # of what it holds, or of its class, which are the user's
        record = bare(original)
    assign(original, "__traceback__", None)
    return record


def build(
    original: ExceptionData | BaseException,
    *,
    op: str,
    inputs: Sequence[str],
    stack: Stack,
    path: Sequence[str],
    root_id: int | None,
    path_length: int | None = None,
    forward_stack: Stack = (),
    device_loss: tuple[str, Sequence[Candidate], int] | None = None,
) -> BaseException:
    """A new exception for one reader of a failed tensor; `original` is never changed.

    Args:
        original: what `detach` returned (or an exception, which is then left as it is).
        op: name of the op that failed, such as "aten.mm".
        inputs: its inputs in words, such as "float32[2,3]@cpu".
        stack: (code, instruction offset) of the frames that called it, outermost first.
        path: names of the ops from the failed one to the one that is read; of more than 1000, the
            first 1000 and the last.
        root_id: number of the failed op; None if it has none.
        path_length: how many ops the path has, if `path` leaves some out.
        forward_stack: of an op of a backward pass, the stack that called the op whose gradient it
            computes.
        device_loss: the arguments of DeviceLoss, if that is what failed; all that is said of the op
            is then said of the first candidate.

    Returns:
        An instance of the original's class and of LazyError; of the original's class alone if that
        is no `Exception` (KeyboardInterrupt, SystemExit); a LazyError if it cannot be subclassed.
        Its cause is a private copy of the original with the traceback of the creation.
    """
    record = original if isinstance(original, ExceptionData) else take_apart(original)
    called, forward = sites_of(stack), sites_of(forward_stack)
    sites = shown_or_all(joined(forward, called))
    try:
        error, cause = _put_together(record)
    except Exception:  # as above
        error, cause = _put_together(told(record))
    if error is not cause:
        assign(cause, "__traceback__", make_traceback(sites + shown(record.sites)))
    else:
        assign(error, "__traceback__", None)
        details = {"op": op, "inputs": list(inputs), "path": list(path), "root_id": root_id}
        state(error).update(details | state(error))  # its class has none that read the Origin
    state(error)[ORIGIN] = Origin(op, list(inputs), list(path), root_id, tuple(sites))
    notes = _notes(op, inputs, forward or called, path, path_length or len(path))
    if device_loss:
        loss = DeviceLoss(*device_loss)
        notes = (notes if len(loss.candidates) == 1 else notes[1:]) + loss.notes()
    if forward and called:
        notes.append(_backward_note(called))
    state(error)["__notes__"] = [*_old_notes(error), *notes]
    return error


def _put_together(record: ExceptionData) -> tuple[BaseException, BaseException]:
    """What the reader gets, and its cause; the same one if that is no `Exception`."""
    cause = put_together_as(fresh(record), lazy=False)
    if not issubclass(record.cls, Exception):
        return cause, cause
    error = put_together_alone(fresh(record), lazy=True)
    assign(error, "__cause__", cause)
    state(error)[ORIGINAL] = cause
    return error, cause


def warn_unseen(
    original: ExceptionData | BaseException, op: str, stack: Stack, forward_stack: Stack = ()
) -> None:
    """Warns of a failure that nobody saw: one line that names op, place, type and message.

    Never raises it, also if the program turns warnings into errors: see `show_warning`.
    """
    if isinstance(original, ExceptionData):
        name, text = original.cls.__qualname__, original.text
    else:
        name, text = type(original).__qualname__, text_of(original)
    _warn(op, sites_of(forward_stack) or sites_of(stack), name, text)


def warn_of_kernel(
    category: type[Warning],
    message: str,
    op: str,
    inputs: Sequence[str],
    stack: Stack,
    forward_stack: Stack,
    number: int,
) -> None:
    """Passes on what a kernel warned of, as a warning of the user's line that called the op.

    Raises:
        Warning: if the program turns warnings into errors; it is also a LazyError, as `build` makes
            it.
    """
    try:
        _warn_at(category, message, stack)
    except Warning as raised:
        error = build(raised, op=op, inputs=inputs, stack=stack, path=[op], root_id=number or None,
                      forward_stack=forward_stack)  # fmt: skip
    else:
        return
    raise error


def _warn_at(category: type[Warning], message: str, stack: Stack) -> None:
    user = [site for site in sites_of(stack) if not site.internal]
    if not user:
        warnings.warn_explicit(message, category, filename="<lazyeng>", lineno=0)
        return
    namespace = namespace_of(user[-1].filename)
    if namespace is None:
        namespace = _of_no_module(user[-1].filename)
    warnings.warn_explicit(
        message, category, filename=user[-1].filename, lineno=user[-1].line,
        module=namespace.get("__name__", "<string>"),  # (of None nothing is ever shown)
        registry=namespace.setdefault("__warningregistry__", {}),  # as `warnings.warn` keeps it
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _of_no_module(filename: str) -> dict[str, Any]:
    """In place of the namespace of code that is generated, and run by `exec`."""
    return {}


# ---- for the rest of the package


def group(exceptions: Sequence[BaseException]) -> BaseException:
    """One exception for several failures: an ExceptionGroup that is also a LazyError.

    A plain BaseExceptionGroup if one of them is no `Exception`.
    """
    message = f"{len(exceptions)} recorded operations failed"
    if all(isinstance(error, Exception) for error in exceptions):
        cls = dual_class(ExceptionGroup)
        assert cls is not None
        return cls(message, list(exceptions))
    return BaseExceptionGroup(message, list(exceptions))


def raise_all(failed: list[BaseException]) -> NoReturn:
    """Raises a single failure as itself, several as a group. Empties `failed`.

    The list would otherwise be part of a cycle, through the caller's frame in the traceback.
    """
    error = failed[0] if len(failed) == 1 else group(failed)
    failed.clear()
    hide_while_unwinding(error)
    try:
        raise error
    except BaseException:
        hide_internal_frames(error)
        raise
    finally:
        del error


def warn_all(failed: list[BaseException]) -> None:
    """`warn_unseen` for exceptions that `build` made. Empties `failed`."""
    while failed:
        error = failed.pop(0)
        origin = state(error).get(ORIGIN) or Origin()
        _warn(origin.op, origin.creation_sites, type(error).__qualname__, text_of(error))


def show_warning(warning: Warning) -> None:
    """Shows, as a line on stderr, a warning that became an error where nobody can catch it.

    What is raised by a destructor, or at the end of a program, is only printed, as a traceback of
    several lines; at the end it also keeps all that comes after it from being said.
    """
    warnings.showwarning(warning, type(warning), "<lazyeng>", 0)


def hide_internal_frames(error: BaseException) -> None:
    """Removes frames of lazyeng and torch from the traceback (not if LAZYENG_TRACEBACK=full).

    A function of the package that lets exceptions through does this and then says `raise`, without
    an argument: that adds no entry, so its own frame is hidden too.
    """
    assign(error, "__traceback__", without_internal(part(error, "__traceback__")))


def hide_in_deferred(error: BaseException) -> None:
    """`hide_internal_frames` if this is a deferred failure, also of those that it has yet to leave.

    Other exceptions stay as they are.
    """
    if issubclass(type(error), LazyError) or ORIGIN in state(error):
        hide_internal_frames(error)
        hide_while_unwinding(error)


def boundary(function: F) -> F:
    """Decorates a function that users call: exceptions leave it without internal frames."""

    @functools.wraps(function)
    def at_boundary(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_internal_frames(error)
            raise

    return at_boundary  # type: ignore[return-value]


# ---- words


def _notes(
    op: str, inputs: Sequence[str], sites: Sequence[Site], path: Sequence[str], path_length: int
) -> list[str]:
    created = f", created at {place(sites)}" if sites else ""
    notes = [f"lazyeng: {op}({', '.join(inputs)}){created}"]
    if path_length > _SHOWN_PATH:
        names = " -> ".join(path[:_SHOWN_PATH])
        notes.append(f"path: {names} -> … (+{path_length - _SHOWN_PATH})")
    elif path_length > 1:
        notes.append(f"path: {' -> '.join(path)} (read)")
    return notes


def _backward_note(called: Sequence[Site]) -> str:
    outside, inside = around_backward(called)
    there = f", called at {place(inside)}" if inside else ""
    return f"in the backward pass started at {place(outside)}{there}"


def _old_notes(error: BaseException) -> list[str]:
    notes = state(error).get("__notes__")
    return notes if isinstance(notes, list) else []


def _warn(op: str, sites: Sequence[Site], name: str, text: str) -> None:
    where = f" at {place(sites)}" if sites else ""
    what = f"{name}: {' '.join(text.split())}" if text else name
    message = f"{op or 'an operation'} recorded{where} failed, and nobody read its result: {what}"
    try:
        # Not the user's file and line: warnings would print the source too, as a second line.
        warnings.warn_explicit(message, UnseenFailureWarning, filename="<lazyeng>", lineno=0)
    except UnseenFailureWarning as warning:
        show_warning(warning)
