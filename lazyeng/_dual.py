"""Dual classes: for each class of exception, one that is also a LazyError and looks the same."""

from __future__ import annotations

import builtins
import copyreg
import functools
import sys
from abc import ABCMeta
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from traceback import StackSummary
from typing import Any, Generic, TypeVar, overload
from weakref import WeakValueDictionary

from lazyeng import _C
from lazyeng._traceback import Site, show_all, summary

T = TypeVar("T")

# Our entries in the __dict__ of exceptions start with this; copies of a user's state skip them.
PRIVATE = "_lazyeng_"
ORIGIN = PRIVATE + "origin"
ORIGINAL = PRIVATE + "original"
TEXT = PRIVATE + "text"
ORIGINAL_CLASS = PRIVATE + "original_class"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_COPYING = ("__reduce_ex__", "__copy__", "__deepcopy__")
_base = BaseException.__dict__  # its descriptors work whatever a user's class overrides


def part(error: BaseException, name: str) -> Any:
    """`__cause__`, `__traceback__` ..., also of a class that makes something else of the name."""
    return _base[name].__get__(error)


def assign(error: BaseException, name: str, value: Any) -> None:
    """Sets `__traceback__`, `__cause__` ... also of classes that forbid assignment."""
    _base[name].__set__(error, value)


def state(error: BaseException) -> dict[str, Any]:
    """The `__dict__` of an exception, with its notes and with what we keep in it."""
    return part(error, "__dict__")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Origin:
    """Where a failure comes from, as plain data; the attributes of a LazyError read it."""

    op: str = ""
    inputs: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    root_id: int | None = None
    creation_sites: Sequence[Site] = ()


def hide_while_unwinding(error: BaseException) -> None:
    """Called as a deferred failure is raised, or will be: frames of torch around here stay hidden.

    Those come into the traceback one by one, as the exception leaves them.
    """
    # (KeyboardInterrupt and the like have no weak references, which tell of the end)
    companion = error if isinstance(error, LazyError) else state(error).get(ORIGIN)
    if companion is not None and not show_all():
        _C.hide_while_unwinding(error, companion)


class _FromOrigin(Generic[T]):
    """Reads a field of the Origin.

    Without __set__ on purpose: what the original exception has under the same name, such as
    `ImportError.path` or an attribute its constructor sets, comes first.
    """

    def __init__(self, get: Callable[[Origin], T], doc: str) -> None:
        self._get = get
        self.__doc__ = doc

    @overload
    def __get__(self, error: None, owner: type) -> _FromOrigin[T]: ...
    @overload
    def __get__(self, error: BaseException, owner: type) -> T: ...
    def __get__(self, error: BaseException | None, owner: type) -> T | _FromOrigin[T]:
        if error is None:
            return self
        return self._get(state(error).get(ORIGIN) or Origin())


class _Original:
    """A copy of the exception that the operator raised, with the traceback of its call."""

    def __get__(self, error: BaseException | None, owner: type) -> BaseException | None:
        if error is None:
            return None
        # (after a pickle round trip, what the chain says)
        return state(error).get(ORIGINAL) or part(error, "__cause__")


class LazyError(Exception):
    """Base class that every deferred ``Exception`` is an instance of, besides its own class.

    A subclass of ``Exception``. (What is none, as ``KeyboardInterrupt``, is raised as it is.) Catch
    the class that the operator raises in eager PyTorch, or this one for everything that failed
    later than it was called. Where the original exception has an attribute of the same name as one
    of these, it keeps its own.
    """

    op: _FromOrigin[str] = _FromOrigin(
        lambda origin: origin.op, 'A string, the operator that failed: "aten.mm".'
    )
    inputs: _FromOrigin[list[str]] = _FromOrigin(
        lambda origin: origin.inputs,
        'A list of strings, its inputs, never their values: ["float32[2,3]@cpu"].',
    )
    path: _FromOrigin[list[str]] = _FromOrigin(
        lambda origin: origin.path,
        "A list of strings: names of the ops from the failed one to the one that was read; beyond "
        "1,000, the first 1,000 and the last.",
    )
    root_id: _FromOrigin[int | None] = _FromOrigin(
        lambda origin: origin.root_id, "Equal for all exceptions that one failed op caused."
    )
    creation_stack: _FromOrigin[StackSummary] = _FromOrigin(
        lambda origin: summary(origin.creation_sites),
        "The stack that called the failed operator, outermost first; empty if not captured.",
    )
    original = _Original()  # (_exception_data.py adds what pickle and copy call)


LazyError.__module__ = "lazyeng.errors"  # where users find it, and where pickle looks


class DualMeta(type):
    """Metaclass of dual classes: lets them be pickled, though no module has them by name."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Never fails: `type(error)(message)` is how many libraries carry an error on.

        torch's DataLoader does, and a constructor of several arguments would lose the type.
        """
        try:
            error = super().__call__(*args, **kwargs)
        except Exception:
            error = _from_message(cls, args or tuple(kwargs.values()))  # type: ignore[arg-type]
        if issubclass(cls, KeyError) and args and isinstance(args[0], str) and "\n" in args[0]:
            state(error)[TEXT] = args[0]  # str() of a KeyError would escape a whole traceback
        hide_while_unwinding(error)
        return error


def _from_message(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    text = str(args[0]) if args else ""
    error = allocate(cls)
    if error is None:
        return LazyError(text)
    assign(error, "args", args)
    state(error)[TEXT] = text
    return error


def allocate(cls: type[BaseException], *args: Any) -> BaseException | None:
    """An instance that no user code has seen: only the builtin base's `__new__` runs.

    None if that is not possible (a C extension's exception with a memory layout of its own).
    """
    base: Any = cls
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__  # not the MRO: the base that decides the layout in memory
    try:
        return base.__new__(cls, *args)
    except Exception:
        return None


_duals: WeakValueDictionary[type, type[BaseException]] = WeakValueDictionary()

# Keeps the dual classes of what can be imported: a class is part of cycles, and would be garbage
# after each read. By name, so that a class defined again lets go of the one before. A local class
# is not kept, or it would live forever.
_kept: dict[tuple[str, str], type[BaseException]] = {}


def dual_class(cls: type[BaseException]) -> type[BaseException] | None:
    """The class `(cls, LazyError)` with the names of `cls`, one for each `cls`.

    None where there cannot be one, or if `cls` is no Exception, such as KeyboardInterrupt,
    SystemExit, CancelledError: `except Exception` would catch its dual class.
    """
    if issubclass(cls, LazyError):
        return cls
    if not issubclass(cls, Exception):
        return None
    try:
        found = _duals.get(cls)
        return _new_dual(cls) if found is None else found
    except Exception:  # of a metaclass that decides on the order of bases, or has no hash, or ...
        return None


def _new_dual(cls: type[Exception]) -> type[BaseException]:
    made = _duals.setdefault(cls, _make_dual(cls))
    if importable_class(cls) is cls:
        _kept[cls.__module__, cls.__qualname__] = made
    return made


def original_class(cls: type[BaseException]) -> type[BaseException]:
    """The inverse of `dual_class`."""
    return _dict_of_class.__get__(cls).get(ORIGINAL_CLASS, cls)


_dict_of_class: Any = type.__dict__["__dict__"]  # (a metaclass may make something else of the name)


def _make_dual(cls: type[Exception]) -> type[BaseException]:
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        ORIGINAL_CLASS: cls,
        "__str__": _text,
        # LazyError's own, which would otherwise come after those of cls
        **{name: getattr(LazyError, name) for name in _COPYING},
    }
    if issubclass(cls, ExceptionGroup) and cls.derive is BaseExceptionGroup.derive:
        namespace["derive"] = _derive
    # (of Exception itself: a class cannot come before its own subclass)
    bases = (LazyError,) if issubclass(LazyError, cls) else (cls, LazyError)
    return _new_class(_dual_metaclass(type(cls)), cls.__name__, bases, namespace)


class _First:
    """Keeps `__init_subclass__` of the bases after it from running."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def _new_class(
    metaclass: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
) -> Any:
    """A class of which its bases and its metaclass do not hear: they may want arguments, or count.

    Raises what the metaclass's own `mro` does, if it has one.
    """
    # ABCMeta's tables of registered classes would otherwise be those of the base.
    create: Any = ABCMeta.__new__ if issubclass(metaclass, ABCMeta) else type.__new__
    made = create(metaclass, name, (_First, *bases), namespace)
    type.__dict__["__bases__"].__set__(made, bases)
    return made


@functools.cache
def _dual_metaclass(metaclass: type) -> type:
    if metaclass is type:
        made = DualMeta
    else:
        name = f"Dual{metaclass.__name__}"
        made = _new_class(type(metaclass), name, (DualMeta, metaclass), {})
    # pickle looks a class up by its metaclass before it tries its name.
    copyreg.pickle(made, _reduce_class)  # type: ignore[arg-type]
    return made


def _reduce_class(cls: type[BaseException]) -> tuple[Any, ...]:
    return (_named_dual_class, (name_of_builtin(importable_class(original_class(cls))),))


def _named_dual_class(named: type[BaseException] | str) -> type[BaseException] | None:
    return dual_class(class_of_name(named))


def name_of_builtin(cls: type[BaseException]) -> type[BaseException] | str:
    """The name of a builtin class; any other class as it is.

    For pickle: its protocols up to 2 give the classes the names that Python 2 has, where many are
    called OSError.
    """
    return cls.__name__ if vars(builtins).get(cls.__name__) is cls else cls


def class_of_name(named: type[BaseException] | str) -> type[BaseException]:
    """The inverse of `name_of_builtin`."""
    found = vars(builtins)[named] if isinstance(named, str) else named
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise TypeError(f"unpickle: expected a class of exceptions, got {named!r}")
    return found


def importable_class(cls: type[BaseException]) -> type[BaseException]:
    """`cls`, or the nearest of its bases that pickle finds by its name."""
    for candidate in cls.__mro__:
        found: Any = sys.modules.get(candidate.__module__)
        for name in candidate.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is candidate and issubclass(candidate, BaseException):
            return candidate
    return Exception


def _text(self: BaseException) -> str:
    """str() of the original class, unless that cannot be had from a copy."""
    pinned = state(self).get(TEXT)
    return pinned if pinned is not None else getattr(type(self), ORIGINAL_CLASS).__str__(self)


def _derive(self: Any, exceptions: Sequence[Exception]) -> BaseException:
    """What `split` and `except*` make of a group: one that is a LazyError too."""
    return type(self)(self.message, exceptions)
