"""Deferred failures live as long as their readers, and reach each of them alone."""

import gc
import sys
import threading
import traceback
import types
import warnings
import weakref

import pytest

from lazyeng import LazyError, errors
from tests.programs import error_corpus as corpus
from tests.programs.error_corpus import build, kernel_with_a_chain, reading, stack_here
from tests.support.failures import raised_by, text_of


def lines_of(tb):
    return [(frame.name, frame.lineno) for frame in traceback.extract_tb(tb)]


# --- stickiness, life, threads


def test_every_read_is_fresh_and_equally_long():
    original = raised_by(kernel_with_a_chain)
    original.add_note("n")
    record, stack = errors.detach(original), stack_here()
    texts = [text_of(reading(record, stack)) for _ in range(5)]
    assert len(set(texts)) == 1
    assert len({id(e) for e in [reading(record, stack) for _ in range(3)]}) == 3


class ContainersError(Exception):
    def __init__(self, of):
        super().__init__([1], {"a": [of]})
        self.log, self.of, self.data = [], of, bytearray(b"x")
        self.same, self.all = self.log, {1: ({2}, [of])}
        self.all["all"] = self.all


@pytest.mark.parametrize("detached", [True, False])
def test_readers_share_no_containers(detached):
    of = Tracked()
    original = ContainersError(of)
    original.__cause__ = ContainersError(of)
    record = errors.detach(original) if detached else original
    for _ in range(3):
        error = reading(record)
        for one in (error, error.original, error.original.__cause__):
            assert one.args == ([1], {"a": [of]}) and one.of is of
            assert one.log == [] and one.log is one.same and one.data == b"x"
            assert one.all[1] == ({2}, [of]) and one.all["all"] is one.all
            one.args[0].append(2)
            one.args[1]["a"].append(2)
            one.log.append(2)
            one.data.append(2)
            one.all[1][0].add(3)
            one.all[1][1].append(3)


def test_readers_share_no_inputs_and_path():
    original = ValueError("outer")
    original.__cause__ = build(ValueError("inner"))  # of an op that the op ran
    record = errors.detach(original)
    for _ in range(2):
        inner = reading(record).original.__cause__
        assert len(inner.inputs) == 2 and inner.path == ["mm#7"]
        inner.inputs.append("x")
        inner.path.append("x")


def test_deep_containers_are_given_as_they_are():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert reading(errors.detach(ValueError(deep))).args[0][0] is deep[0]


class Tracked:
    """Something a user's frame holds; weakly referable."""


def test_failure_keeps_no_local_alive(no_gc):
    def kernel(tracked):
        mine = tracked
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer", len([mine]))  # noqa: B904

    def record_of():
        tracked = Tracked()
        record = errors.detach(raised_by(lambda: kernel(tracked)))
        return record, stack_here(), weakref.ref(tracked)

    record, stack, tracked = record_of()
    assert tracked() is None
    error = reading(record, stack)
    assert str(error) == "('outer', 1)" and text_of(error)


def test_detach_breaks_the_cycle_of_a_kernel_that_keeps_its_exception(no_gc):
    def kernel(tracked):
        error = ValueError("kept in a local")
        raise error

    def record_of():
        tracked = Tracked()
        try:
            kernel(tracked)
        except ValueError as error:
            return errors.detach(error), weakref.ref(tracked)

    _record, tracked = record_of()
    assert tracked() is None


class HoldingError(ValueError):
    def __init__(self, inner):
        super().__init__("outer")
        self.inner = inner


def raise_with(where, inner):
    if where == "argument":
        raise ValueError("outer", inner)
    if where == "attribute":
        raise HoldingError(inner)
    raise ValueError("outer") from KeyError(inner)


@pytest.mark.parametrize("where", ["argument", "attribute", "of the cause"])
def test_an_exception_that_another_one_holds_keeps_no_local_alive(where, no_gc):
    def held(tracked):
        try:
            return int("x" * len([tracked]))
        except ValueError as error:
            return error

    def record_of():
        tracked = Tracked()
        record = errors.detach(raised_by(lambda: raise_with(where, held(tracked))))
        return record, weakref.ref(tracked)

    record, tracked = record_of()
    assert tracked() is None
    error = reading(record)
    inner = {
        "argument": lambda: error.args[1],
        "attribute": lambda: error.inner,
        "of the cause": lambda: error.original.__cause__.args[0],
    }[where]()
    assert type(inner) is ValueError and "invalid literal" in str(inner)


@pytest.mark.parametrize(
    "wrapped",
    [lambda e: [e], lambda e: (1, [e]), lambda e: {"a": e}, lambda e: e.__traceback__,
     lambda e: (type(e), e, e.__traceback__), lambda e: [e.__traceback__.tb_frame]],
    ids=["list", "tuple", "dict", "traceback", "exc_info", "frame"],
)  # fmt: skip
def test_what_an_exception_holds_in_containers_keeps_no_local_alive(wrapped, no_gc):
    def kernel(tracked):
        try:
            int("x" * len([tracked]))
        except ValueError as error:
            raise HoldingError(wrapped(error)) from None

    def record_of():
        tracked = Tracked()
        return errors.detach(raised_by(lambda: kernel(tracked))), weakref.ref(tracked)

    record, tracked = record_of()
    assert tracked() is None
    inner = reading(record).inner
    if isinstance(inner, types.TracebackType):
        assert [name for name, _ in lines_of(inner)] == ["kernel"]
    elif isinstance(inner, tuple) and len(inner) == 3:
        assert inner[0] is ValueError and "invalid literal" in str(inner[1])
        assert lines_of(inner[2]) == [("kernel", kernel.__code__.co_firstlineno + 2)]


def test_group_keeps_no_local_of_its_members_alive(no_gc):
    def kernel(tracked):
        raise ValueError(len([tracked]))

    def record_of():
        tracked = Tracked()
        members = (raised_by(lambda: kernel(tracked)) for _ in range(1))
        return errors.detach(ExceptionGroup("g", [*members])), weakref.ref(tracked)

    record, tracked = record_of()
    assert tracked() is None
    assert [frame[0] for frame in lines_of(build(record).exceptions[0].__traceback__)] == [
        "raised_by", "<lambda>", "kernel",
    ]  # fmt: skip


def test_attribute_error_lets_go_of_the_object(no_gc):
    def record_of():
        tracked = Tracked()
        return errors.detach(raised_by(lambda: tracked.missing)), weakref.ref(tracked)

    record, tracked = record_of()
    assert tracked() is None
    assert build(record).name == "missing" and build(record).obj is None


@pytest.mark.parametrize("obj", [3, "text", b"bytes", None, 1.5, int, sys])
def test_attribute_error_keeps_what_holds_nothing(obj):
    error = reading(errors.detach(AttributeError("a", name="n", obj=obj)))
    assert error.name == "n" and error.obj == obj


@pytest.mark.parametrize("shown", ["user", "full"])
def test_read_exception_dies_with_its_last_reference(shown, no_gc, monkeypatch):
    monkeypatch.setenv("LAZYENG_TRACEBACK", shown)

    def read_and_forget(raising):
        tracked = Tracked()
        try:
            raising()
        except Exception as error:
            assert "v" in text_of(error)
        return weakref.ref(tracked)

    record, stack = errors.detach(ValueError("v")), stack_here()

    def raise_one():
        raise build(record, stack)

    assert read_and_forget(raise_one)() is None
    for count in (1, 2):
        failed = [build(record, stack) for _ in range(count)]
        assert read_and_forget(lambda failed=failed: errors.raise_all(failed))() is None


@pytest.mark.parametrize("name", ["KeyError", "Exception", "slots", "ExceptionGroup"])
def test_reading_leaves_no_cyclic_garbage(name, no_gc):
    dual = weakref.ref(type(reading(corpus.ORIGINALS[name]())))
    gc.collect()
    gc.collect()
    reading(corpus.ORIGINALS[name]())
    assert gc.collect() == 0 and dual() is not None


def test_a_class_defined_again_takes_the_place_of_its_dual_class(monkeypatch):
    """As in a notebook, where a cell runs many times."""

    def define():
        cls = type("DefinedAgainError", (ValueError,), {"__module__": __name__})
        monkeypatch.setitem(globals(), "DefinedAgainError", cls)
        build(cls("v"))
        return weakref.ref(cls)

    references = [define() for _ in range(4)]
    monkeypatch.undo()  # it remembers what it replaced
    gc.collect()
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 1


def test_dual_classes_of_local_classes_die():
    def local():
        class LocalError(Exception):
            pass

        build(LocalError("x"))
        return weakref.ref(LocalError)

    reference = local()
    gc.collect()
    gc.collect()  # the table of dual classes lets go of the class only when its dual has died
    assert reference() is None


def test_context_that_is_being_handled_is_left_alone():
    """In sync mode the op runs inside the user's own `except` block."""
    try:
        raise KeyError("the user's")
    except KeyError as handled:
        before = handled.__traceback__
        errors.detach(raised_by(lambda: 1 / 0))
        assert handled.__traceback__ is before is not None


def test_many_threads_read_one_failure():
    class FreshError(Exception):  # its dual class is made in the race
        pass

    record, stack = errors.detach(FreshError("v")), stack_here()
    barrier, caught = threading.Barrier(16), []

    def read():
        barrier.wait()
        caught.append(reading(record, stack))

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(e) for e in caught}) == len({id(e.__cause__) for e in caught}) == 16
    assert len({text_of(e) for e in caught}) == 1
    assert len({type(e) for e in caught}) == 1


# --- several, and unseen ones


def test_group():
    parts = [build(ValueError("a")), build(KeyError("b"))]
    error = errors.group(parts)
    assert isinstance(error, ExceptionGroup) and isinstance(error, LazyError)
    assert error.message == "2 recorded operations failed" and list(error.exceptions) == parts
    try:
        raise error
    except* ValueError as values:
        assert values.exceptions == (parts[0],) and isinstance(values, LazyError)
    except* KeyError as keys:
        assert keys.exceptions == (parts[1],)
    assert not isinstance(errors.group([build(KeyboardInterrupt()), parts[0]]), Exception)


def test_raise_all_empties_the_list():
    failed = [build(ValueError("a"))]
    with pytest.raises(ValueError, match="a") as caught:
        errors.raise_all(failed)
    assert not failed and not isinstance(caught.value, ExceptionGroup)
    assert lines_of(caught.value.__traceback__)[-1][0] == "test_raise_all_empties_the_list"


@pytest.mark.parametrize("how", ["record", "exception", "warn_all"])
def test_unseen_failure_is_one_line(how):
    line, stack = sys._getframe().f_lineno, stack_here()
    with pytest.warns(errors.UnseenFailureWarning) as caught:
        if how == "warn_all":
            errors.warn_all([build(ValueError("two\nlines"), stack)])
        else:
            original = ValueError("two\nlines")
            given = errors.detach(original) if how == "record" else original
            errors.warn_unseen(given, "aten.mm", stack)
    (one,) = caught
    text = warnings.formatwarning(one.message, one.category, one.filename, one.lineno)
    assert text.count("\n") == 1
    for part in ("aten.mm", f"test_errors_life.py:{line}", "ValueError: two lines"):
        assert part in text
    assert "UnseenFailureWarning" in text


def test_each_unseen_failure_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # which shows a warning once for each place
        for _ in range(2):
            errors.warn_unseen(ValueError("the same"), "aten.mm", [])
    assert len(caught) == 2
