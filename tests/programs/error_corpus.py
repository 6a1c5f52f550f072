"""Exceptions of many shapes, and what to build deferred ones from; shared by test_errors_*."""

# ruff: noqa: N818 (names that say what is special)
import abc
import dataclasses
import subprocess
import sys

from lazyeng import errors
from tests.support.failures import raised_by


class ManyArguments(Exception):
    constructed = 0

    def __init__(self, first, *, second):
        type(self).constructed += 1
        super().__init__(f"{first}-{second}")
        self.first, self.second = first, second


class ArgsShadowed(Exception):
    def __init__(self, message, code):
        self.message, self.code = message, code

    @property
    def args(self):
        return (self.message, self.code)


class Slotted(ValueError):
    __slots__ = ("__hidden", "slot")

    def __init__(self, slot):
        super().__init__("slotted")
        self.slot, self.__hidden = slot, slot * 2

    def hidden(self):
        return self.__hidden


class OwnText(RuntimeError):
    def __init__(self, part):
        self.part = part

    def __str__(self):
        return f"own text about {self.part}"


class TextOfIdentity(RuntimeError):
    """Its text is lost in any copy."""

    def __str__(self):
        return f"I am {TextOfIdentity.names.get(id(self), 'nobody')}"

    names: dict = {}  # noqa: RUF012


class OwnNew(LookupError):
    def __new__(cls, first, second):
        return super().__new__(cls, second)

    def __init__(self, first, second):
        self.both = (first, second)


class Abstract(Exception, metaclass=abc.ABCMeta):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class TwoBases(LookupError, OSError):
    pass


class OwnCopying(Exception):
    """Refuses to be copied; what is made of it does not."""

    def __reduce_ex__(self, protocol):
        raise TypeError("no pickle")

    def __copy__(self, memo=None):
        raise TypeError("no copy")

    __deepcopy__ = __copy__


class OwnOp(Exception):
    """Has attributes of its own under names that a LazyError uses."""

    def __init__(self):
        super().__init__("mine")
        self.op, self.path = "my op", "my path"


class OwnGroup(ExceptionGroup):
    def __new__(cls, name):
        return super().__new__(cls, name, [KeyError("in it"), ManyArguments(1, second=2)])

    def __init__(self, name):
        self.name = name


class OwnLinks(Exception):
    """Makes something else of what the interpreter keeps in an exception."""

    @property
    def __cause__(self):
        raise LookupError("no cause")

    __context__ = __traceback__ = __suppress_context__ = __dict__ = __cause__  # type: ignore


class OwnAccess(Exception):
    def __getattribute__(self, name):
        raise LookupError(f"no {name}")


class NoSubclassMeta(type):
    def mro(cls):
        if cls.__base__ is not Exception:
            raise TypeError("no subclassing")
        return super().mro()


class NoSubclass(Exception, metaclass=NoSubclassMeta):
    pass


class Registering(Exception):
    """Wants to hear of its subclasses, and something of them."""

    registered: list = []  # noqa: RUF012

    def __init_subclass__(cls, *, code):
        Registering.registered.append((cls, code))


class Registered(Registering, code=3):
    pass


class RegisteringMeta(abc.ABCMeta):
    registered: list = []  # noqa: RUF012

    def __new__(meta, name, bases, namespace, *, code):
        return super().__new__(meta, name, bases, namespace)

    def __init__(cls, name, bases, namespace, *, code):
        super().__init__(name, bases, namespace)
        RegisteringMeta.registered.append((cls, code))


class OfRegisteringMeta(Exception, metaclass=RegisteringMeta, code=4):
    pass


class Final(Exception):
    def __init_subclass__(cls):
        raise TypeError("no subclassing")


def named():
    error = TextOfIdentity()
    TextOfIdentity.names[id(error)] = "somebody"
    return error


def torch_error(name):
    import torch

    cls = torch.OutOfMemoryError if name == "memory" else torch.linalg.LinAlgError
    return cls("of torch")


ORIGINALS = {
    "Exception": lambda: Exception("plain", 1),
    "ValueError": lambda: ValueError("v", 2),
    "KeyError": lambda: KeyError("k"),
    "AssertionError": lambda: AssertionError(),
    "FileNotFoundError": lambda: raised_by(lambda: open("/nonexistent")),  # noqa: SIM115
    "OSError of two files": lambda: OSError(18, "cross-device", "a", None, "b"),
    "BlockingIOError": lambda: BlockingIOError(11, "again", 5),
    "UnicodeDecodeError": lambda: raised_by(lambda: b"a\xff".decode()),
    "UnicodeEncodeError": lambda: raised_by(lambda: "a\xff".encode("ascii")),
    "UnicodeTranslateError": lambda: UnicodeTranslateError("abc", 1, 2, "reason"),
    "SyntaxError": lambda: raised_by(lambda: compile("a b", "file.py", "exec")),
    "StopIteration": lambda: StopIteration([4]),
    "ImportError": lambda: ImportError("x", name="n", path="p"),
    "ModuleNotFoundError": lambda: raised_by(lambda: __import__("no_such_module")),
    "NameError": lambda: NameError("n", name="n"),
    "AttributeError": lambda: raised_by(lambda: sys.no_such_name),
    "MemoryError": lambda: MemoryError("m"),
    "RecursionError": lambda: RecursionError("deep"),
    "ExceptionGroup": lambda: ExceptionGroup("g", [ValueError(1), KeyError(2)]),
    "CalledProcessError": lambda: subprocess.CalledProcessError(3, ["cmd"], "out", "err"),
    "OutOfMemoryError": lambda: torch_error("memory"),
    "LinAlgError": lambda: torch_error("linalg"),
    "many arguments": lambda: ManyArguments(1, second=2),
    "args shadowed": lambda: ArgsShadowed("m", 3),
    "slots": lambda: Slotted(9),
    "own text": lambda: OwnText("it"),
    "text of identity": named,
    "own __new__": lambda: OwnNew(1, 2),
    "own group": lambda: OwnGroup("mine"),
    "own metaclass": lambda: Abstract("a"),
    "own __init_subclass__": lambda: Registering("r"),
    "subclass of that": lambda: Registered("r"),
    "metaclass of keywords": lambda: OfRegisteringMeta("r"),
    "final": lambda: Final("f"),
    "frozen dataclass": lambda: Frozen(4),
    "two bases": lambda: TwoBases(2, "two"),
    "own attributes": lambda: OwnOp(),
    "own copying": lambda: OwnCopying("c"),
}  # fmt: skip

# Compared wherever the original has them.
FIELDS = (
    "errno", "strerror", "filename", "filename2", "characters_written", "encoding", "object",
    "start", "end", "reason", "lineno", "offset", "text", "msg", "end_offset", "value", "name",
    "returncode", "cmd", "stderr", "first", "second", "code", "slot", "part", "both", "message",
)  # fmt: skip


def fields(error):
    found = {name: getattr(error, name) for name in FIELDS if hasattr(error, name)}
    if isinstance(error, Slotted):
        found["hidden"] = error.hidden()
    if isinstance(error, BaseExceptionGroup):
        found["exceptions"] = [(type(e), str(e), fields(e)) for e in error.exceptions]
    return found


def stack_here(skip=0):
    """(code, instruction) of the callers, outermost first, as csrc/stacks captures them."""
    frame, stack = sys._getframe(1 + skip), []
    while frame is not None:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return stack[::-1]


def build(original, stack=(), **changes):
    details = {
        "op": "aten.mm", "inputs": ["float32[2,3]@cpu", "float32[4,5]@cpu"],
        "path": ["mm#7"], "root_id": 7, **changes,
    }  # fmt: skip
    return errors.build(original, stack=stack, **details)


def reading(original, *args, **kwargs):
    """The exception as a reader catches it."""
    try:
        raise build(original, *args, **kwargs)
    except BaseException as error:
        return error


def kernel_with_a_chain():
    local = {"of": "the kernel"}
    try:
        raise KeyError(local["of"])
    except KeyError as error:
        raise ValueError("outer") from error
