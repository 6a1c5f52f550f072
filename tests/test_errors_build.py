"""What `errors.build` makes of an exception: its class, text and fields; chain and notes."""

import asyncio
import sys
import traceback
import types
import weakref
from unittest.mock import Mock

import pytest

from lazyeng import LazyError, errors
from tests.programs import error_corpus as corpus
from tests.programs.error_corpus import (
    ORIGINALS,
    build,
    fields,
    kernel_with_a_chain,
    stack_here,
)
from tests.support.failures import raised_by, text_of


def original_of(name):
    if name in ("OutOfMemoryError", "LinAlgError"):
        pytest.importorskip("torch")
    return ORIGINALS[name]()


# --- identity


@pytest.mark.parametrize("name", ORIGINALS)
def test_same_class_text_and_fields(name):
    original = original_of(name)
    cls, text, expected = type(original), str(original), fields(original)
    error = build(errors.detach(original))
    assert isinstance(error, cls) and isinstance(error, LazyError)
    for attribute in ("__name__", "__qualname__", "__module__"):
        assert getattr(type(error), attribute) == getattr(cls, attribute)
    assert str(error) == text
    assert fields(error) == expected
    cause = error.__cause__
    assert type(cause) is cls and fields(cause) == expected
    if name != "text of identity":  # a plain class cannot be told what to say
        assert str(cause) == text
        assert repr(error.args) == repr(original.args)  # members of groups are copies


def test_one_class_for_each_original_class():
    first, second = build(ValueError(1)), build(ValueError(2))
    assert type(first) is type(second) and type(first).__bases__ == (ValueError, LazyError)
    assert type(build(build(ValueError(1)))) is type(first)


def test_user_constructors_do_not_run():
    record = errors.detach(corpus.ManyArguments(1, second=2))
    before = corpus.ManyArguments.constructed
    build(record)
    assert corpus.ManyArguments.constructed == before


@pytest.mark.parametrize("cls", [corpus.OwnLinks, corpus.OwnAccess])
def test_attribute_access_of_users_does_not_run(cls):
    def kernel():
        try:
            raise cls("inner")
        except cls as error:
            raise cls("outer") from error

    try:
        kernel()
    except cls as original:
        record = errors.detach(original)
    for _ in range(2):
        try:
            errors.raise_all([build(record)])
        except cls as error:
            assert type.__dict__["__mro__"].__get__(type(error))[1:3] == (cls, LazyError)
            cause = BaseException.__dict__["__cause__"].__get__(error)
            assert type(cause) is cls and BaseException.__str__(cause) == "outer"
            inner = BaseException.__dict__["__cause__"].__get__(cause)
            assert type(inner) is cls and BaseException.__str__(inner) == "inner"


def test_users_do_not_hear_of_dual_classes():
    for cls in (corpus.Registering, corpus.Registered, corpus.OfRegisteringMeta):
        error = build(cls("r"))
        assert type(error).__bases__ == (cls, LazyError)
        assert type(error) in cls.__subclasses__() and type(error).__base__ is cls
    assert corpus.Registering.registered == [(corpus.Registered, 3)]
    assert corpus.RegisteringMeta.registered == [(corpus.OfRegisteringMeta, 4)]


def test_abstract_base_class_knows_its_dual_class():
    dual = type(build(corpus.Abstract("a")))
    other = type("Other", (corpus.Abstract,), {})
    assert issubclass(other, corpus.Abstract) and not issubclass(other, dual)
    corpus.Abstract.register(ZeroDivisionError)
    assert issubclass(ZeroDivisionError, corpus.Abstract)
    assert not issubclass(ZeroDivisionError, dual)


def test_class_that_cannot_be_subclassed():
    error = build(corpus.NoSubclass("final"))
    assert type(error) is LazyError and str(error) == "final"
    assert type(error.__cause__) is corpus.NoSubclass


@pytest.mark.parametrize("cls", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_exits_are_not_wrapped(cls):
    error = build(cls("stop"))
    assert type(error) is cls and error.args == ("stop",)
    assert "aten.mm" in error.__notes__[0]
    assert (error.op, error.path, error.root_id) == ("aten.mm", ["mm#7"], 7)
    assert error.inputs == ["float32[2,3]@cpu", "float32[4,5]@cpu"]


def test_group_members_are_not_shared_with_the_original():
    original = ExceptionGroup("g", [raised_by(lambda: 1 / 0)])
    error = build(errors.detach(original))
    assert error.exceptions[0] is not original.exceptions[0]
    assert error.args[1][0] is error.exceptions[0]
    matching, _ = error.split(ZeroDivisionError)
    assert isinstance(matching, ExceptionGroup) and isinstance(matching, LazyError)


def test_attributes():
    stack = stack_here()
    error = build(ValueError("v"), stack, path=["mm#7", "relu#8"])
    assert (error.op, error.root_id, error.path) == ("aten.mm", 7, ["mm#7", "relu#8"])
    assert error.inputs == ["float32[2,3]@cpu", "float32[4,5]@cpu"]
    original = error.original
    assert original is error.__cause__
    error.__cause__ = KeyError("of the reader, who chained it to something else")
    assert error.original is original
    frame = error.creation_stack[-1]
    assert (frame.name, frame.line) == ("test_attributes", "stack = stack_here()")
    assert isinstance(error.creation_stack, traceback.StackSummary)
    plain = LazyError("without an origin")
    assert (plain.op, plain.inputs, plain.path, plain.root_id) == ("", [], [], None)


def test_attributes_of_the_original_come_first():
    assert build(ImportError("x", path="p")).path == "p"
    error = build(corpus.OwnOp())
    assert (error.op, error.path, error.root_id) == ("my op", "my path", 7)


def test_pytest_match():
    with pytest.raises(ValueError, match=r"^exactly [t]his"):  # (it searches the notes too)
        raise build(ValueError("exactly this"), stack_here())


# --- chain and notes


def test_cause_is_a_private_copy():
    original = ValueError("v")
    original.add_note("of the kernel")
    record = errors.detach(original)
    first, second = build(record), build(record)
    assert first is not second and first.__cause__ is not second.__cause__
    assert original not in (first.__cause__, second.__cause__)
    first.__cause__.add_note("only here")
    for cause in (second.__cause__, build(record).__cause__):
        assert cause.__notes__ == ["of the kernel"]
    assert first.__cause__.__cause__ is None and first.__cause__.__context__ is None


def test_chain_of_the_kernel_stays_below():
    cause = build(errors.detach(raised_by(kernel_with_a_chain))).__cause__
    below = cause.__cause__
    assert type(below) is KeyError and below is cause.__context__ and below.__cause__ is None
    (frame,) = traceback.extract_tb(below.__traceback__)
    assert frame.line == 'raise KeyError(local["of"])'


def test_context_that_the_kernel_suppressed():
    def kernel():
        try:
            raise KeyError("hidden")
        except KeyError:
            raise ValueError("v") from None

    error = build(errors.detach(raised_by(kernel)))
    assert type(error.__cause__.__context__) is KeyError
    assert "hidden" not in text_of(error)


def test_build_leaves_an_exception_as_it_is():
    original = raised_by(lambda: 1 / 0)
    before = original.__traceback__
    build(original)
    assert original.__traceback__ is before and not hasattr(original, "__notes__")


def test_cyclic_and_long_chains_end():
    first, second = ValueError(1), KeyError(2)
    first.__cause__, second.__cause__ = second, first
    cause = build(first).__cause__
    assert type(cause.__cause__) is KeyError and cause.__cause__.__cause__ is None
    error = ValueError(0)
    for i in range(3000):
        longer = ValueError(i)
        longer.__context__ = error
        error = longer
    assert str(build(error)) == "2999"


def test_notes():
    original = ValueError("v")
    original.add_note("of the kernel")
    record, line = errors.detach(original), sys._getframe().f_lineno + 1
    error = build(record, stack_here())
    created = f"created at test_errors_build.py:{line}"
    note = f"lazyeng: aten.mm(float32[2,3]@cpu, float32[4,5]@cpu), {created}"
    assert error.__notes__ == ["of the kernel", note]
    assert build(record).__notes__[1] == note.removesuffix(f", {created}")
    path = build(record, path=["mm#7", "relu#8", "sum#9"]).__notes__[-1]
    assert path == "path: mm#7 -> relu#8 -> sum#9 (read)"


def test_note_of_a_long_path():
    names = [f"add#{i}" for i in range(1, 13)]
    expected = "path: " + " -> ".join(names[:8]) + " -> … (+4)"
    assert build(ValueError(), path=names).__notes__[-1] == expected
    shortened = [*names[:8], names[-1]]
    assert build(ValueError(), path=shortened, path_length=12).__notes__[-1] == expected
    eight = build(ValueError(), path=names[:8]).__notes__[-1]
    assert eight == "path: " + " -> ".join(names[:8]) + " (read)"


# --- what cannot be taken apart, or put together


class WithoutHash(type):
    def __eq__(cls, other):
        return cls is other


class Refusing(type):
    def __getattribute__(cls, name):
        raise RuntimeError("nobody looks at me")


class ForeignMemberError(ValueError):
    line = types.TracebackType.__dict__["tb_lineno"]


class GroupWithMessage(ExceptionGroup):
    __slots__ = ("message",)


class FalsyError(ValueError):
    def __bool__(self):
        raise RuntimeError("neither")


def caused_by(cause):
    error = ValueError("v")
    error.__cause__ = error.__context__ = cause
    return error


def nested(depth):
    error = ValueError("v")
    for _ in range(depth):
        error = ExceptionGroup("g", [error])
    return error


ODD = {
    "no hash": (lambda: WithoutHash("E", (ValueError,), {})("v"), LazyError),
    "refusing": (lambda: Refusing("E", (ValueError,), {})("v"), LazyError),
    "an argument says that it is an exception": (
        lambda: ValueError("v", Mock(spec=RuntimeError)), ValueError,
    ),
    "a proxy of an exception": (lambda: ValueError("v", weakref.proxy(KEPT)), ValueError),
    "a member of another class": (lambda: ForeignMemberError("v"), ForeignMemberError),
    "a group with a slot": (lambda: GroupWithMessage("v", [ValueError()]), ExceptionGroup),
    "a cause that is neither true nor false": (lambda: caused_by(FalsyError("f")), ValueError),
    "a deep group": (lambda: nested(2000), LazyError),
}  # fmt: skip


class KeptError(KeyError):
    pass


KEPT = KeptError("kept")


@pytest.mark.parametrize("name", ODD)
def test_odd_exceptions_are_raised_and_hide_no_other(name):
    make, cls = ODD[name]
    record = errors.detach(make())
    error = build(record)
    assert issubclass(type(error), cls) and issubclass(type(error), LazyError)
    assert str(error)
    with pytest.warns(errors.UnseenFailureWarning):
        errors.warn_all([build(record)])


def test_falsy_links_of_a_chain_are_not_multiplied():
    error = FalsyError("0")
    for _ in range(40):
        outer = FalsyError("1")
        outer.__cause__ = outer.__context__ = error
        error = outer
    built = build(errors.detach(error)).__cause__
    for _ in range(40):
        assert built.__cause__ is built.__context__
        built = built.__cause__
    assert built.args == ("0",)


@pytest.mark.parametrize("n", [10, 63, 200])
def test_causes_of_large_groups_are_kept(n):
    members = [caused_by(KeyError(i)) for i in range(n)]
    original = ExceptionGroup("many", members)
    original.__cause__ = RuntimeError("why")
    built = build(errors.detach(original)).__cause__
    assert str(built.__cause__) == "why"
    assert [e.__cause__.args for e in built.exceptions] == [(i,) for i in range(n)]
