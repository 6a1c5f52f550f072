"""Exceptions as plain data: taken apart once, put together anew for each reader.

An ExceptionData holds no frame, no traceback and no exception, so a stored failure keeps nothing of
its surroundings alive, and no reader can change what the next one gets. Pickle and copy use it too.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import (
    FrameType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    NoneType,
    TracebackType,
)
from typing import Any

from lazyeng._dual import (
    ORIGIN,
    PRIVATE,
    TEXT,
    DualMeta,
    LazyError,
    Origin,
    allocate,
    assign,
    class_of_name,
    dual_class,
    importable_class,
    name_of_builtin,
    original_class,
    part,
    state,
)
from lazyeng._fresh_copies import copier
from lazyeng._traceback import Site, detached, make_traceback, shown, sites_of, stack_of

_MAX_CHAIN = 64  # longer chains of causes and contexts are cut


@dataclass(frozen=True, slots=True)
class ExceptionData:
    """One exception as plain data."""

    cls: type[BaseException]
    lazy: bool  # to be a LazyError too
    args: tuple[Any, ...]
    members: dict[str, Any]  # slots, and fields of builtin classes
    attributes: dict[str, Any]
    text: str
    sites: tuple[Site, ...]  # of its traceback
    exceptions: tuple[ExceptionData, ...] | None  # of a group
    cause: ExceptionData | None
    context: ExceptionData | None
    suppress_context: bool
    origin: Origin | None

    def __reduce__(self) -> tuple[Any, ...]:
        _, *rest = (getattr(self, field.name) for field in dataclasses.fields(self))
        return (_unpickled, (name_of_builtin(self.cls), *rest))


def _unpickled(named: type[BaseException] | str, *rest: Any) -> ExceptionData:
    return ExceptionData(class_of_name(named), *rest)


# ---- taking apart


def take_apart(error: BaseException, *, keep_traceback: bool = True) -> ExceptionData:
    """The record of an exception and of its chain. Leaves `error` as it is."""
    return _take_apart(error, {}, 0, keep_traceback)


def bare(error: BaseException) -> ExceptionData:
    """The class and the arguments alone, for what cannot be taken apart; runs no user code."""
    cls = original_class(type(error))
    grouped = issubclass(type(error), BaseExceptionGroup)  # its arguments hold live exceptions
    args: tuple[Any, ...] = () if grouped else part(error, "args")
    told = len(args) == 1 and type(args[0]) is str
    text = args[0] if told else f"<{_class_name(cls)} that cannot be taken apart>"
    return ExceptionData(
        cls=RuntimeError if grouped else cls,
        lazy=issubclass(type(error), LazyError),
        args=(text,) if grouped else args,
        members={},
        attributes={},
        text=text,
        sites=(),
        exceptions=None,
        cause=None,
        context=None,
        suppress_context=False,
        origin=None,
    )


def told(record: ExceptionData) -> ExceptionData:
    """Its text and its positions alone, for what cannot be put together."""
    text = f"{_class_name(record.cls)}: {record.text}"
    return dataclasses.replace(
        record, cls=RuntimeError, args=(text,), members={}, attributes={}, text=text,
        exceptions=None, cause=None, context=None,
    )  # fmt: skip


def _class_name(cls: type) -> str:
    return type.__getattribute__(cls, "__name__")  # whatever a metaclass makes of it


def _take_apart(
    error: BaseException,
    seen: dict[int, ExceptionData | None],
    depth: int,
    keep_traceback: bool = True,
) -> ExceptionData:
    seen[id(error)] = None  # in progress: a cycle is cut here
    traceback = part(error, "__traceback__") if keep_traceback else None
    attributes = _attributes(error)
    parts = _exceptions_of(error)
    children = None if parts is None else tuple(_take_apart(e, seen, depth) for e in parts)
    record = ExceptionData(
        cls=original_class(type(error)),
        lazy=issubclass(type(error), LazyError),
        args=part(error, "args") if parts is None else (),  # a group's hold live exceptions
        members=_members(error),
        attributes=attributes,
        text=text_of(error),
        sites=tuple(sites_of(stack_of(traceback))),
        exceptions=children,
        cause=_linked(part(error, "__cause__"), seen, depth + 1),
        context=_linked(part(error, "__context__"), seen, depth + 1),
        suppress_context=part(error, "__suppress_context__"),
        origin=state(error).get(ORIGIN),
    )
    seen[id(error)] = record
    return record


def _exceptions_of(error: BaseException) -> tuple[BaseException, ...] | None:
    if not issubclass(type(error), BaseExceptionGroup):
        return None
    return BaseExceptionGroup.__dict__["exceptions"].__get__(error)


def _linked(
    error: BaseException | None, seen: dict[int, ExceptionData | None], depth: int
) -> ExceptionData | None:
    if error is None or depth >= _MAX_CHAIN:
        return None
    return seen[id(error)] if id(error) in seen else _take_apart(error, seen, depth)


def _attributes(error: BaseException) -> dict[str, Any]:
    attributes = {k: v for k, v in state(error).items() if not str(k).startswith(PRIVATE)}
    if isinstance(attributes.get("__notes__"), list):
        attributes["__notes__"] = list(attributes["__notes__"])
    return attributes


def _member_descriptors(cls: type) -> dict[str, Any]:
    """Slots and builtin fields of `cls`, without what every exception has (and `__class__`)."""
    return {
        name: descriptor
        for base in reversed(cls.__mro__)
        if base not in (BaseException, object)
        for name, descriptor in vars(base).items()
        if isinstance(descriptor, MemberDescriptorType | GetSetDescriptorType)
        and name not in ("__dict__", "__weakref__")
    }


def _members(error: BaseException) -> dict[str, Any]:
    members = {}
    for name, descriptor in _member_descriptors(type(error)).items():
        try:
            members[name] = descriptor.__get__(error)
        except (AttributeError, TypeError):  # not set; or it is another class's
            continue
    members.pop("exceptions", None)  # of a group: they are taken apart themselves
    owner = type(members.get("obj"))
    if issubclass(type(error), AttributeError) and not issubclass(owner, _KEPT_OWNERS):
        members.pop("obj", None)  # a user's object, which only "did you mean" would use
    return members


_KEPT_OWNERS = (ModuleType, type, NoneType, bool, int, float, complex, str, bytes)


def text_of(error: BaseException) -> str:
    """str(error), also if the user's `__str__` raises."""
    try:
        return str(error)
    except KeyboardInterrupt:  # may be Ctrl-C just now
        raise
    except BaseException:  # SystemExit too: nobody asked for the text
        return f"<str() of {type(error).__name__} failed>"


# ---- putting together


def put_together(record: ExceptionData) -> BaseException:
    """A new exception, with its chain and a synthetic traceback. User constructors do not run."""
    return put_together_as(record, record.lazy)


def fresh(record: ExceptionData) -> ExceptionData:
    """The record with containers of its own, for one reader to change."""
    return _mapped(record, copier(), lambda cls: cls, {})


def to_keep(record: ExceptionData) -> ExceptionData:
    """The record, with copies of the exceptions, tracebacks and frames that the exception holds
    itself (in its arguments or attributes, and in containers there): they have locals."""
    made: dict[int, BaseException] = {}

    def without_locals(value: Any) -> Any:
        if type(value) in (TracebackType, FrameType):
            return detached(value)
        if not issubclass(type(value), BaseException):
            return value
        if id(value) not in made:
            held = take_apart(value, keep_traceback=False)
            made[id(value)] = put_together_alone(held, held.lazy)
        return made[id(value)]

    return _mapped(record, copier(without_locals), lambda cls: cls, {})


def put_together_as(record: ExceptionData, lazy: bool) -> BaseException:
    """As `put_together`; `lazy` tells whether it is to be a LazyError."""
    return _with_chain(record, lazy, {})


def put_together_alone(record: ExceptionData, lazy: bool) -> BaseException:
    """As `put_together_as`, without chain and traceback."""
    return _alone(record, lazy, {})


def _with_chain(record: ExceptionData, lazy: bool, made: dict[int, BaseException]) -> BaseException:
    error = _alone(record, lazy, made)
    made[id(record)] = error
    assign(error, "__traceback__", make_traceback(shown(record.sites)))
    for name, linked in (("__context__", record.context), ("__cause__", record.cause)):
        if linked is not None:
            found = made.get(id(linked))
            if found is None:
                found = _with_chain(linked, linked.lazy, made)
            assign(error, name, found)
    assign(error, "__suppress_context__", record.suppress_context)
    return error


def _alone(record: ExceptionData, lazy: bool, made: dict[int, BaseException]) -> BaseException:
    cls = (dual_class(record.cls) or LazyError) if lazy else record.cls
    if record.exceptions is not None and issubclass(cls, BaseExceptionGroup):
        children = [_with_chain(child, child.lazy, made) for child in record.exceptions]
        error = allocate(cls, record.members.get("message", record.text), children)
    else:
        error = allocate(cls)
    if error is None or cls is LazyError:
        error = LazyError(record.text)
    else:
        if record.exceptions is None:
            assign(error, "args", record.args)
        _set_members(error, record.members)
    state(error).update(_fresh_notes(record.attributes))
    if record.origin is not None:
        state(error)[ORIGIN] = record.origin
    if isinstance(cls, DualMeta) and text_of(error) != record.text:
        state(error)[TEXT] = record.text
    return error


def _set_members(error: BaseException, members: dict[str, Any]) -> None:
    descriptors = _member_descriptors(type(error))
    for name, value in members.items():
        try:
            # None may stand for "not set", which the text of an OSError tells from a None that is.
            if value is not None or descriptors[name].__get__(error) is not None:
                descriptors[name].__set__(error, value)
        except (AttributeError, TypeError, KeyError):  # read-only; or a base in place of its class
            continue


def _fresh_notes(attributes: dict[str, Any]) -> dict[str, Any]:
    notes = attributes.get("__notes__")
    return {**attributes, "__notes__": list(notes)} if isinstance(notes, list) else attributes


# ---- pickle and copy


def portable(
    error: BaseException, *, keep_traceback: bool = True, protocol: int | None = None
) -> ExceptionData:
    """As `take_apart`, for another process: what cannot be pickled becomes its repr.

    Args:
        error: the exception, which is left as it is.
        keep_traceback: whether the record has the lines of its traceback.
        protocol: that of pickle, by default pickle's own default.
    """

    def picklable(value: Any) -> Any:
        return _picklable(value, protocol)

    record = take_apart(error, keep_traceback=keep_traceback)
    return _mapped(record, copier(picklable), importable_class, {})


def _reduced(error: BaseException, protocol: Any = None) -> tuple[Any, ...]:
    return (put_together, (portable(error, keep_traceback=False, protocol=protocol),))


def _copied(error: BaseException) -> BaseException:
    """copy.copy; without the reader's traceback, as with pickle."""
    return put_together(take_apart(error, keep_traceback=False))


def _deepcopied(error: BaseException, memo: dict[int, Any]) -> BaseException:
    """copy.deepcopy: what cannot be copied becomes its repr."""

    def deep(value: Any) -> Any:
        try:
            return copy.deepcopy(value, memo)
        except Exception:
            return _repr(value)

    record = take_apart(error, keep_traceback=False)
    return put_together(_mapped(record, deep, lambda cls: cls, {}))


# Here and not in its class, as these need all of this module, which needs LazyError.
for _name, _method in {
    "__reduce_ex__": _reduced,
    "__copy__": _copied,
    "__deepcopy__": _deepcopied,
}.items():
    setattr(LazyError, _name, _method)


def _mapped(
    record: ExceptionData,
    value: Callable[[Any], Any],
    cls: Callable[[type[BaseException]], type[BaseException]],
    done: dict[int, ExceptionData],
) -> ExceptionData:
    """The record with `value` applied to all that is a user's, and `cls` to the classes.

    `done` keeps records shared that were: cause and context are often the same one.
    """

    def again(part: ExceptionData | None) -> ExceptionData | None:
        return None if part is None else _mapped(part, value, cls, done)

    def values(items: dict[str, Any]) -> dict[str, Any]:
        return {name: value(item) for name, item in items.items()}

    if id(record) in done:
        return done[id(record)]
    children, origin = record.exceptions, record.origin
    if origin is not None:
        origin = dataclasses.replace(origin, inputs=value(origin.inputs), path=value(origin.path))
    mapped = dataclasses.replace(
        record,
        cls=cls(record.cls),
        args=tuple(value(arg) for arg in record.args),
        members=values(record.members),
        attributes=values(record.attributes),
        exceptions=children and tuple(_mapped(child, value, cls, done) for child in children),
        cause=again(record.cause),
        context=again(record.context),
        origin=origin,
    )
    done[id(record)] = mapped
    return mapped


def _picklable(value: Any, protocol: int | None) -> Any:
    if value is None or type(value) in (str, bytes, int, float, bool):
        return value
    if issubclass(type(value), LazyError):  # it can be
        return value
    try:
        pickled = pickle.dumps(value, protocol)
        pickle.loads(pickled)  # many exceptions fail only when they are loaded
    except Exception:
        return _repr(value)
    return value


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
