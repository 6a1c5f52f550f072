"""Pickle, copy and deepcopy of deferred exceptions, within a process and between processes."""

import copy
import io
import multiprocessing
import pickle
import threading
from multiprocessing.reduction import ForkingPickler

import pytest

from lazyeng import LazyError, errors
from tests.programs import error_corpus as corpus
from tests.programs.error_corpus import (
    ORIGINALS,
    build,
    fields,
    kernel_with_a_chain,
    reading,
    stack_here,
)
from tests.support.failures import raised_by, text_of

ROUND_TRIPS = {
    **{
        f"pickle {protocol}": lambda e, protocol=protocol: pickle.loads(pickle.dumps(e, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "pickle in Python": lambda e: pickle._loads(pickle._dumps(e)),
    "multiprocessing": lambda e: pickle.loads(ForkingPickler.dumps(e)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def text_without_reader(error):
    return text_of(error.with_traceback(None))


@pytest.mark.parametrize("how", ROUND_TRIPS)
def test_round_trip_keeps_everything(how):
    original = raised_by(kernel_with_a_chain)
    original.add_note("of the kernel")
    error = reading(errors.detach(original), stack_here(), path=["mm#7", "relu#8"])
    error.extra = {"of": "the reader"}
    result = ROUND_TRIPS[how](error)
    assert result is not error and type(result) is type(error) and str(result) == str(error)
    assert result.__notes__ == error.__notes__ and len(result.__notes__) == 3
    assert result.__notes__ is not error.__notes__
    assert result.extra == error.extra and (result.extra is error.extra) == (how == "copy")
    for name in ("op", "inputs", "path", "root_id", "creation_stack"):
        assert getattr(result, name) == getattr(error, name)
    assert result.__traceback__ is None and type(result.original) is ValueError
    assert text_without_reader(result) == text_without_reader(error)


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("how", ["pickle 0", "pickle 2", "pickle 4", "copy", "deepcopy"])
def test_all_classes_round_trip(name, how):
    if name in ("OutOfMemoryError", "LinAlgError"):
        pytest.importorskip("torch")
    error = reading(ORIGINALS[name]())
    result = ROUND_TRIPS[how](error)
    assert type(result) is type(error) and str(result) == str(error)
    assert fields(result) == fields(error)
    assert result.__notes__ == error.__notes__
    assert type(result.original) is type(error.original)


def test_round_trip_of_a_class_that_cannot_be_subclassed():
    result = pickle.loads(pickle.dumps(reading(corpus.NoSubclass("final"))))
    assert type(result) is LazyError and str(result) == "final" and result.op == "aten.mm"
    assert type(result.original) is corpus.NoSubclass


def test_groups_round_trip():
    error = errors.group([reading(ValueError("a")), reading(corpus.ManyArguments(1, second=2))])
    result = pickle.loads(pickle.dumps(error))
    assert isinstance(result, ExceptionGroup) and isinstance(result, LazyError)
    assert [(type(e), str(e), e.op) for e in result.exceptions] == [
        (type(e), str(e), e.op) for e in error.exceptions
    ]


@pytest.mark.parametrize("how", ["pickle 4", "deepcopy"])
def test_what_cannot_be_copied_becomes_its_repr(how):
    lock = threading.Lock()
    original = ValueError("v", lock)
    original.lock = lock
    result = ROUND_TRIPS[how](reading(original))
    assert result.args == ("v", repr(lock)) and result.lock == repr(lock)


@pytest.mark.parametrize("protocol", [0, 1])
def test_what_this_protocol_cannot_pickle_becomes_its_repr(protocol):
    stream = io.BytesIO(b"x")
    result = pickle.loads(pickle.dumps(reading(ValueError("v", stream)), protocol))
    assert result.args == ("v", repr(stream))
    assert pickle.loads(pickle.dumps(reading(ValueError(stream)), 2)).args[0].read() == b"x"


def test_argument_that_fails_only_when_loaded():
    broken = corpus.ManyArguments(1, second=2)  # its own pickle cannot be loaded
    result = pickle.loads(pickle.dumps(reading(ValueError("v", broken))))
    assert result.args == ("v", repr(broken))


def test_local_class_becomes_its_nearest_importable_base():
    class LocalError(corpus.Slotted):
        def __str__(self):
            return "local text"

    result = pickle.loads(pickle.dumps(reading(LocalError(5))))
    assert isinstance(result, corpus.Slotted) and isinstance(result, LazyError)
    assert str(result) == "local text" and result.slot == 5


def test_local_class_of_no_other_base_becomes_exception():
    class LocalError(Exception):
        pass

    cls = type(pickle.loads(pickle.dumps(reading(LocalError("x")))))
    assert (cls.__name__, cls.__module__) == ("Exception", "builtins")
    assert issubclass(cls, LazyError)


def test_shared_links_of_a_chain_are_not_multiplied():
    """Of `raise ... from error`, cause and context are one: 20 of them must not become 2 ** 20."""
    original = ValueError(0)
    for i in range(1, 21):
        inner, original = original, ValueError(i)
        original.__cause__ = original.__context__ = inner
    error = pickle.loads(pickle.dumps(reading(original))).original
    for i in reversed(range(20)):
        assert error.__cause__ is error.__context__ and error.__cause__.args == (i,)
        error = error.__cause__


class CountedError(ValueError):
    def __init__(self):
        super().__init__("v")
        self.counted, self.seen = Counted(), []


class Counted:
    times = 0

    def __reduce__(self):
        Counted.times += 1
        return Counted, ()


@pytest.mark.parametrize("within", [lambda e: e, lambda e: [e]])
def test_failures_that_hold_failures_are_not_multiplied(within):
    """Such as those of a loop that tries again: 20 of them must not become 2 ** 20."""
    error = None
    for _ in range(20):
        original = CountedError()
        original.seen = within(error)
        error = reading(original)
    Counted.times = 0
    pickle.loads(pickle.dumps(error))
    assert Counted.times < 2000


# --- the class alone, as torch's DataLoader sends it


@pytest.mark.parametrize(
    "original", [ValueError("v"), corpus.Abstract("a"), KeyError("k"), FileNotFoundError("f")]
)
@pytest.mark.parametrize(
    "dumps",
    [pickle.dumps, pickle._dumps, ForkingPickler.dumps, lambda value: pickle.dumps(value, 2)],
)
def test_classes_are_pickled(original, dumps):
    cls = type(build(original))
    assert pickle.loads(dumps(cls)) is cls


def test_class_of_a_local_class():
    class LocalError(ValueError):
        pass

    assert pickle.loads(pickle.dumps(type(build(LocalError())))) is type(build(ValueError()))


@pytest.mark.parametrize(
    "original",
    [
        ValueError("v"), KeyError("k"), corpus.ManyArguments(1, second=2),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "r"), corpus.Abstract("a"), corpus.OwnNew(1, 2),
    ],
)  # fmt: skip
def test_classes_can_be_called_with_a_message(original):
    """`type(error)(message)` is how a DataLoader raises what failed in its worker."""
    error = type(build(original))("Caught it\nin a worker")
    assert isinstance(error, type(original)) and isinstance(error, LazyError)
    assert str(error) == "Caught it\nin a worker"


# --- between processes


def fail_in_child(connection):
    original = raised_by(lambda: raised_by(kernel_with_a_chain) and int("x"))
    error = reading(errors.detach(original), stack_here(), inputs=["float32[1]@cpu"])
    connection.send(error)
    connection.send(reading(corpus.ManyArguments(1, second=2)))
    connection.send(type(error))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_out_of_another_process(method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=fail_in_child, args=(theirs,))
    child.start()
    assert ours.poll(60)
    error, second, cls = ours.recv(), ours.recv(), ours.recv()
    child.join()
    assert isinstance(error, ValueError) and isinstance(error, LazyError) and type(error) is cls
    assert "created at test_errors_copies.py:" in error.__notes__[0]
    assert error.creation_stack[-1].name == "fail_in_child"
    assert "original), stack_here(), inputs" in text_without_reader(error)
    assert (second.first, second.second) == (1, 2)


class FailingDataset:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise build(corpus.ManyArguments("of", second="dataset"), stack_here())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_out_of_a_worker_of_torch_dataloader(method):
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(FailingDataset(), num_workers=1, multiprocessing_context=method)
    with pytest.raises(corpus.ManyArguments, match="of-dataset") as caught:
        next(iter(loader))
    assert isinstance(caught.value, LazyError)
    assert "created at test_errors_copies.py:" in str(caught.value)
