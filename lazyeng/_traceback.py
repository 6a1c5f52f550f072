"""Synthetic tracebacks: stack entries that never ran, at the real positions in the source.

A site is one stack entry as plain data. Sites can be kept, pickled and compared, and hold neither
frames nor code; they become frames again (stubs, with no locals and no callers) when an exception
is raised. Which frames are internal, and hidden, is decided here too.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from traceback import FrameSummary, StackSummary
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, ClassVar, NamedTuple, TypeVar

from lazyeng import _C, config

F = TypeVar("F", bound=Callable[..., Any])
Stack = Sequence[tuple[CodeType, int]]
"""(code object, offset of the instruction in bytes) of each frame, outermost first."""


class Site(NamedTuple):
    """One stack entry; columns are UTF-8 offsets, None where the code has none."""

    filename: str
    name: str
    qualname: str
    first_line: int
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None
    internal: bool


# ---- which frames are shown

_OWN_PREFIX = os.path.dirname(os.path.abspath(__file__)) + os.sep
_internal_codes: dict[int, CodeType] = {}  # by id: code objects of two files may compare equal


def internal(function: F) -> F:
    """Decorates a function outside lazyeng and torch whose frames are to be hidden too."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        _internal_codes[id(code)] = code
        _C.add_internal_code(code)
    return function


def show_all() -> bool:
    """Whether the user asked for internal frames (asked at each failure, so it can be set late)."""
    try:
        return config.TRACEBACK.read()
    except ValueError:  # set late, and wrong: this is no time to say so
        return False


def _internal_prefixes() -> tuple[str, ...]:
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    if not torch_file:
        return (_OWN_PREFIX,)
    return (_OWN_PREFIX, os.path.dirname(os.path.abspath(torch_file)) + os.sep)


def _is_internal(code: CodeType, prefixes: tuple[str, ...]) -> bool:
    return id(code) in _internal_codes or code.co_filename.startswith(prefixes)


def around_backward(sites: Sequence[Site]) -> tuple[Sequence[Site], Sequence[Site]]:
    """The part of the stack outside of the innermost backward pass, and what the program itself
    called in it (in an autograd.Function, in a hook); all of it and nothing if there is none."""
    passes = [i for i, s in enumerate(sites) if s.internal and s.name == "run_backward"]
    if not passes:
        return sites, ()
    return sites[: passes[-1]], [site for site in sites[passes[-1] :] if not site.internal]


def is_internal_frame(frame: FrameType) -> bool:
    """Whether this is a frame of lazyeng, of torch, or of a function declared `internal`."""
    return _is_internal(frame.f_code, _internal_prefixes())


_NOTEBOOK = os.path.join("IPython", "core", "interactiveshell.py")


def _runs_cells(code: CodeType) -> bool:
    return code.co_name == "run_code" and code.co_filename.endswith(_NOTEBOOK)


def sites_of(stack: Stack) -> list[Site]:
    """The stack as plain data, internal entries included.

    What runs a notebook's cell (the kernel, its event loop) counts as internal: what eager raises
    there shows frames from the cell on.
    """
    prefixes = _internal_prefixes()
    cell = next((i for i in range(len(stack), 0, -1) if _runs_cells(stack[i - 1][0])), 0)
    return [
        _site(code, offset, i < cell or _is_internal(code, prefixes))
        for i, (code, offset) in enumerate(stack)
    ]


def _site(code: CodeType, offset: int, is_internal: bool) -> Site:
    unknown = (None, None, None, None)
    positions = itertools.islice(code.co_positions(), max(offset, 0) // 2, None)
    line, end_line, column, end_column = next(positions, unknown)
    if line is None:
        line = code.co_firstlineno
    return Site(
        code.co_filename, code.co_name, code.co_qualname, code.co_firstlineno,
        line, end_line, column, end_column, is_internal,
    )  # fmt: skip


def full_stacks() -> bool:
    """Whether the user wants internal entries in creation stacks."""
    return config.STACK_CAPTURE.read() == "full" or show_all()


def shown(sites: Sequence[Site]) -> list[Site]:
    """The user's entries; all of them if the user asked for that."""
    return list(sites) if show_all() else [site for site in sites if not site.internal]


def shown_or_all(sites: Sequence[Site]) -> list[Site]:
    """What is shown of a creation stack; never nothing, as torch itself may record an op."""
    return list(sites) if full_stacks() else shown(sites) or list(sites)


def joined(forward: Sequence[Site], backward: Sequence[Site]) -> list[Site]:
    """The stack of a forward op, then what is different in the one of the call of backward().

    In the order of time: the line of the forward op, and last the line at which eager code raises.
    """
    pairs = zip(forward, backward, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return [*forward, *backward[common:]]


def stack_of(traceback: TracebackType | None) -> list[tuple[CodeType, int]]:
    """The code and position of each traceback entry; holds no frame."""
    stack = []
    while traceback is not None:
        stack.append((traceback.tb_frame.f_code, traceback.tb_lasti))
        traceback = traceback.tb_next
    return stack


def without_internal(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without internal frames, in new entries; as it is if the user wants all."""
    if show_all():
        return traceback
    prefixes = _internal_prefixes()
    entries = []
    while traceback is not None:
        if not _is_internal(traceback.tb_frame.f_code, prefixes):
            entries.append(traceback)
        traceback = traceback.tb_next
    result = None
    for entry in reversed(entries):
        line: int | None = entry.tb_lineno  # None: its instruction has none
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, -1 if line is None else line)
    return result


def place(sites: Sequence[Site]) -> str:
    """ "train.py:12" of the user's innermost entry; "" if there is none at all."""
    if not sites:
        return ""
    site = next((site for site in reversed(sites) if not site.internal), sites[-1])
    return f"{os.path.basename(site.filename)}:{site.line}"


def summary(sites: Iterable[Site]) -> StackSummary:
    """The sites as `traceback.extract_tb` would give them; source lines are read when asked for."""
    result = StackSummary()
    result.extend(
        FrameSummary(
            site.filename, site.line, site.name, lookup_line=False,
            end_lineno=site.end_line, colno=site.column, end_colno=site.end_column,
        )
        for site in sites
    )  # fmt: skip
    return result


# ---- sites back to frames


def make_traceback(sites: Sequence[Site]) -> TracebackType | None:
    """A traceback whose entries point, to the column, at the sites; none of it ever ran."""
    traceback = None
    for site in reversed(sites):
        namespace = namespace_of(site.filename)
        if namespace is None:
            namespace = {"__name__": "<unknown>"}
        frame = _new_frame(_stub_code(site), namespace)
        traceback = TracebackType(traceback, frame, 0, site.line)
    return traceback


def detached(value: TracebackType | FrameType) -> TracebackType | FrameType | None:
    """The same positions, without locals and callers."""
    if isinstance(value, TracebackType):
        return make_traceback(sites_of(stack_of(value)))
    copy = make_traceback(sites_of([(value.f_code, value.f_lasti)]))
    return copy and copy.tb_frame


def _template() -> None: ...


_TEMPLATE = _template.__code__


@functools.lru_cache(maxsize=1024)  # a site's entry is made anew for each reader
def _stub_code(site: Site) -> CodeType:
    return _TEMPLATE.replace(
        co_filename=site.filename,
        co_name=site.name,
        co_qualname=site.qualname,
        co_firstlineno=site.first_line,
        co_linetable=_line_table(site, len(_TEMPLATE.co_code) // 2),
    )


def _line_table(site: Site, units: int) -> bytes:
    """A `co_linetable` that maps all code units to one position.

    The format is that of CPython's Objects/locations.md: one entry, which covers up to 8 units, in
    the long form (14), or in the one without columns (13). Lines are relative to the function's.
    """
    assert units <= 8, "the template became longer than one entry can cover"
    delta = _signed_varint(site.line - site.first_line)
    if site.column is None or site.end_column is None or site.end_line is None:
        return bytes([0x80 | 13 << 3 | units - 1]) + delta
    columns = _varint(site.column + 1) + _varint(site.end_column + 1)
    lines = _varint(site.end_line - site.line)
    return bytes([0x80 | 14 << 3 | units - 1]) + delta + lines + columns


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 64:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)
    return bytes(out)


def _signed_varint(value: int) -> bytes:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)


class _Modules:
    """Which module is made from which file: hints, which are checked at each use."""

    names: ClassVar[dict[str, str]] = {}
    seen = 0  # how many modules there were

    @classmethod
    def look(cls) -> None:
        if len(sys.modules) == cls.seen:
            return
        cls.seen = len(sys.modules)
        for name in list(sys.modules):
            file = _namespace(name).get("__file__")
            if type(file) is str:
                cls.names[file] = name


def namespace_of(filename: str) -> dict[str, Any] | None:
    """The namespace of the module made from this file, for debuggers and `linecache`.

    Looked up anew each time, as a failure that kept it would keep the module alive.
    """
    namespace = _namespace(_Modules.names.get(filename, ""))
    if namespace.get("__file__") == filename:
        return namespace
    if not filename.startswith("<"):
        _Modules.look()
        if filename in _Modules.names:
            return _namespace(_Modules.names[filename])
    main = _namespace("__main__")
    interactive = bool(main) and "__file__" not in main  # a cell or a line of a prompt is its code
    return main if interactive else None


_dict_of_module: Any = vars(ModuleType)["__dict__"]


def _namespace(module_name: str) -> dict[str, Any]:
    """(Runs no code of the module: some are imported when somebody asks for an attribute.)"""
    module = sys.modules.get(module_name)
    return _dict_of_module.__get__(module) if issubclass(type(module), ModuleType) else {}


def _ctypes_new_frame() -> Callable[[CodeType, dict[str, Any]], FrameType]:
    """PyFrame_New: unlike a frame that runs, its result has no `f_back` to keep alive."""
    signature = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_void_p
    )
    new_frame = signature(("PyFrame_New", ctypes.pythonapi))
    thread_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    return lambda code, namespace: new_frame(thread_state(), code, namespace, None)


_new_frame: Callable[[CodeType, dict[str, Any]], FrameType] = (
    getattr(_C, "_new_stub_frame", None) or _ctypes_new_frame()
)
