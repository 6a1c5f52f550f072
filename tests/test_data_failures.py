"""What a source or a worker raises: at its position, as itself, with its traceback; and then on."""

import os
import pickle
import signal
import threading
import time
import traceback

import pytest
import torch
from torch.utils import data

import lazyeng
from lazyeng import DataLoader, prefetch

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes.*")


@pytest.fixture(autouse=True)
def often_looked_after(monkeypatch):
    """Whether workers are alive is looked at each second; torch does so every five."""
    monkeypatch.setattr(data._utils, "MP_STATUS_CHECK_INTERVAL", 1.0)


class TwoArgumentsError(Exception):
    def __init__(self, row, *, column):
        super().__init__(row, column)
        self.row, self.column = row, column

    def __str__(self):
        return f"row {self.row}, column {self.column}"


class UnwillingError(ValueError):
    """Its constructor fails on everything."""

    def __init__(self, *args):
        raise RuntimeError("do not make me")


def unwilling():
    error = UnwillingError.__new__(UnwillingError)
    error.args = ("made without its constructor",)
    return error


ERRORS = {
    "one argument": lambda: ValueError("row 5 is bad"),
    "two arguments": lambda: TwoArgumentsError(5, column="label"),
    "no constructor": unwilling,
    "key": lambda: KeyError("label"),
    "os": lambda: FileNotFoundError(2, "No such file or directory", "row5.png"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "group": lambda: ExceptionGroup("two", [ValueError("a"), TwoArgumentsError(1, column=2)]),
}


class BadRow(data.Dataset):
    def __init__(self, kind, bad=5):
        self.kind, self.bad = kind, bad

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == self.bad:
            raise ERRORS[self.kind]()
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ERRORS)
def test_at_its_position_as_itself(kind, workers):
    loader = DataLoader(BadRow(kind), batch_size=2, num_workers=workers)
    original = ERRORS[kind]()
    for _ in range(2):  # the next epoch works
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(type(original)) as caught:
            next(iterator)
        error = caught.value
        assert isinstance(error, lazyeng.LazyError)
        assert (str(error), error.args[:1]) == (str(original), original.args[:1])
        assert vars(original).items() <= vars(error).items()
        assert (error.op, error.inputs) == ("DataLoader", ["batch 2"])
        shown = "".join(traceback.format_exception(error))
        assert "raise ERRORS[self.kind]()" in shown and "in __getitem__" in shown
        assert ("raised in DataLoader worker process" in shown) == (workers > 0)
        assert "torch/utils/data" not in shown and "lazyeng/data" not in shown
        assert [batch.tolist() for batch in iterator] == [[6, 7], [8, 9]]


@pytest.mark.parametrize("start", ["spawn"])
def test_from_other_workers(start):
    loader = DataLoader(
        BadRow("two arguments"), batch_size=5, num_workers=1, multiprocessing_context=start
    )
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TwoArgumentsError, match="row 5, column label") as caught:
        next(iterator)
    assert isinstance(caught.value, lazyeng.LazyError)
    iterator.close()


def test_local_class_from_a_worker():
    """torch cannot send it at all, and waits for ever."""

    class LocalError(KeyError):
        pass

    class Rows(data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise LocalError("here")

    with pytest.raises(KeyError, match="here") as caught:
        next(iter(DataLoader(Rows(), num_workers=1)))
    assert isinstance(caught.value, lazyeng.LazyError)


class Lazy(data.Dataset):
    """A sample that is computed lazily, and fails when it is read."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return lazyeng.wrap(torch.ones(3))[lazyeng.wrap(torch.tensor([index * 2]))]


@pytest.mark.parametrize("workers", [0, 1])
def test_lazy_samples(workers):
    """In a worker the failure is raised there, before it is too late to send it."""
    with pytest.raises(IndexError, match="index 4 is out of bounds") as caught:
        for batch in DataLoader(Lazy(), num_workers=workers):
            assert batch.tolist() == [[1.0]]
    assert caught.value.op == "aten.index.Tensor"


def bad_start(worker_id):
    raise TwoArgumentsError(worker_id, column="init")


def test_worker_init_fn():
    loader = DataLoader(BadRow("key", bad=-1), num_workers=1, worker_init_fn=bad_start)
    with pytest.raises(TwoArgumentsError, match="row 0, column init"):
        next(iter(loader))
    assert loader.worker_init_fn is bad_start and loader.collate_fn is data.default_collate


class Killed(data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            time.sleep(0.5)  # its other batches are on their way
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.limit(60)
def test_a_killed_worker_is_noticed_though_others_live(monkeypatch):
    """At once, and not when it is time to look."""
    monkeypatch.setattr(data._utils, "MP_STATUS_CHECK_INTERVAL", 1000.0)
    loader = DataLoader(Killed(), num_workers=2)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)


def test_killed_worker():
    """Not in whatever line the main thread executes when the worker dies, but at its batch."""
    got = []
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        for batch in DataLoader(Killed(), num_workers=1):
            time.sleep(0.05)
            got.append(batch.item())
    assert got == [0, 1, 2, 3, 4] and isinstance(caught.value, lazyeng.LazyError)


class Numbers(data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index)


class BadSampler(data.Sampler):
    """Raises in place of an index, as an iterator that goes on after it."""

    def __init__(self, bad, as_batches=False):
        self.bad, self.as_batches = bad, as_batches

    def __iter__(self):
        def draw(index):
            if index == self.bad:
                raise TwoArgumentsError(index, column="order")
            return [index] if self.as_batches else index

        return map(draw, range(8))


def events_of(iterator, most=12):
    """Batches as numbers, exceptions as their types, up to the end."""
    events = []
    while len(events) < most:
        try:
            batch = next(iterator)
        except StopIteration:
            return [*events, "end"]
        except SystemExit:
            events.append("SystemExit")
        except Exception as error:
            assert isinstance(error, lazyeng.LazyError)
            events.append(type(error).__mro__[1].__name__)
        else:
            events.append(batch.item() if isinstance(batch, torch.Tensor) else batch)
    return events


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("bad", [0, 1, 6, 7])
def test_sampler_that_raises(bad, workers):
    loader = DataLoader(Numbers(), sampler=BadSampler(bad), batch_size=None, num_workers=workers)
    expected = [*range(bad), "TwoArgumentsError", *range(bad + 1, 8), "end"]
    for _ in range(2):
        assert events_of(iter(loader)) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_sampler_that_raises_ends_its_batches(workers):
    """A generator, such as torch's BatchSampler, ends with what it raises."""
    loader = DataLoader(Numbers(), sampler=BadSampler(6), num_workers=workers)
    assert events_of(iter(loader)) == [*range(6), "TwoArgumentsError", "end"]
    loader = DataLoader(
        Numbers(), batch_sampler=BadSampler(3, as_batches=True), num_workers=workers
    )
    assert events_of(iter(loader)) == [*range(3), "TwoArgumentsError", *range(4, 8), "end"]


class Fragile:
    """Can be pickled, and not be put together again."""

    def __reduce__(self):
        return int, ("not a number",)


class Unsendable(Numbers):
    def __init__(self, make):
        self.make = make

    def __getitem__(self, index):
        return self.make() if index == 1 else index


def make_lambda():
    return lambda: 1


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("make", "name"), [(make_lambda, "AttributeError"), (Fragile, "ValueError")]
)
def test_batch_that_cannot_be_sent(make, name, persistent):
    """torch prints it and waits for ever, or loses its place."""
    loader = DataLoader(
        Unsendable(make), batch_size=None, num_workers=2, persistent_workers=persistent
    )
    for _ in range(2):
        assert events_of(iter(loader)) == [0, name, *range(2, 8), "end"]


def test_index_that_cannot_be_sent():
    loader = DataLoader(Numbers(), batch_size=None, sampler=[0, lambda: 1, 2], num_workers=1)
    assert events_of(iter(loader)) == [0, "AttributeError", 2, "end"]


class KilledOnce(Numbers):
    """Its worker kills itself at index 7, the first time, with all else finished."""

    def __init__(self, flag):
        self.flag = flag

    def __getitem__(self, index):
        if index == 7 and not self.flag.exists():
            self.flag.touch()
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


@pytest.mark.parametrize("prefetch", [0, 1, 10])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_killed_worker_finished(prefetch, persistent, tmp_path):
    """Is not lost, although most of it is asked for after its death; and the next epoch works."""
    loader = DataLoader(
        KilledOnce(tmp_path / "killed"), num_workers=1, prefetch_factor=8, prefetch=prefetch,
        persistent_workers=persistent,
    )  # fmt: skip
    iterator = iter(loader)
    assert next(iterator).item() == 0
    time.sleep(2)
    assert events_of(iterator) == [*range(1, 7), "RuntimeError", "end"]
    assert events_of(iter(loader)) == [*range(8), "end"]


def refuses_in(pid, error):
    if os.getpid() == pid:
        raise error


class Refuses:
    """Cannot be read in the process that made it first."""

    def __init__(self, error):
        self.error, self.pid = error, os.getpid()

    def __reduce__(self):
        return refuses_in, (self.pid, self.error)


class RaisesWhatIsRefused(Numbers):
    def __init__(self, error):
        self.refuses = Refuses(error)

    def __getitem__(self, index):
        return raises(ValueError("row 2", self.refuses)) if index == 2 else torch.tensor(index)


def refusing_loader(error, persistent, workers):
    source = RaisesWhatIsRefused(error)
    return DataLoader(source, num_workers=workers, persistent_workers=persistent)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_failure_that_cannot_be_read(persistent, workers):
    """The reason comes in its place, with the text of the failure."""
    loader = refusing_loader(MemoryError("no room"), persistent, workers)
    for _ in range(2):
        assert events_of(iter(loader)) == [0, 1, "MemoryError", *range(3, 8), "end"]
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(MemoryError, match="no room") as raised:
        next(iterator)
    notes = "".join(raised.value.__notes__)
    assert "ValueError: ('row 2', " in notes and "in __getitem__" in notes
    assert "raised in DataLoader worker process" in notes


@pytest.mark.limit(60)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_answer_that_ends_the_thread_that_reads_it(persistent, workers):
    """What was read before it comes; nothing waits for what was not; the next epoch works."""
    loader = refusing_loader(SystemExit("enough"), persistent, workers)
    for _ in range(2):
        events = events_of(iter(loader))
        assert events.count("SystemExit") == 1 and events[-1] == "end"
        assert workers > 1 or events[:3] == [0, 1, "SystemExit"]  # (it may overtake another's)


def lost_with(pid, collected):
    """What torch does to a tensor whose worker died before it was read."""
    os.kill(pid, signal.SIGKILL)
    if collected:  # as whatever starts a process in another thread does, in passing
        os.waitpid(pid, 0)
    raise FileNotFoundError(2, "No such file or directory")


class DiesTooEarly:
    collected = False

    def __reduce__(self):
        return lost_with, (os.getpid(), self.collected)


class IsCollected(DiesTooEarly):
    collected = True


@pytest.mark.parametrize("dies", [DiesTooEarly, IsCollected])
def test_batch_that_dies_with_its_worker(dies):
    loader = DataLoader(Unsendable(dies), batch_size=None, num_workers=1)
    iterator = iter(loader)
    assert next(iterator) == 0
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(iterator)


class OneDiesOneIsSlow(Numbers):
    def __getitem__(self, index):
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(4 if index == 2 else 0)
        return torch.tensor(index)


def test_error_is_at_the_batch_of_the_dead_worker():
    """Not at that of a slow one, which takes longer than the time after which one looks."""
    loader = DataLoader(OneDiesOneIsSlow(), sampler=[2, 1, 0], num_workers=2)
    assert events_of(iter(loader)) == [2, "RuntimeError", 0, "end"]


class Slow(data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(30 * index)
        return index


def test_timeout():
    iterator = iter(DataLoader(Slow(), num_workers=1, timeout=1))
    assert next(iterator).item() == 0
    with pytest.raises(RuntimeError, match="timed out after 1 seconds") as caught:
        next(iterator)
    assert isinstance(caught.value, lazyeng.LazyError)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_source_of_prefetch(depth, error):
    """KeyboardInterrupt and SystemExit stay what they are."""

    def source():
        yield from range(4)
        raise error

    got = []
    with pytest.raises(type(error)) as caught:
        for item in prefetch(source(), depth=depth):
            got.append(item)
    assert got == [0, 1, 2, 3] and caught.value.args == error.args
    assert isinstance(caught.value, lazyeng.LazyError) == isinstance(error, Exception)


class Recovers:
    """An iterator that raises at 1 and 2, and counts how often it was asked."""

    def __init__(self):
        self.asked = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.asked += 1
        if self.asked in (2, 3):
            raise OSError(f"call {self.asked}")
        if self.asked > 5:
            raise StopIteration
        return self.asked


def test_nothing_is_made_after_a_failure_until_asked_for():
    source = Recovers()
    it = iter(prefetch(source, depth=3))
    assert next(it) == 1
    for call in (2, 3):
        with pytest.raises(OSError, match=f"call {call}"):
            next(it)
        time.sleep(0.05)
        assert source.asked == call
    assert list(it) == [4, 5]


def test_other_consumers_go_on_after_a_failure():
    it = iter(prefetch(Recovers(), depth=1))
    outcomes = []

    def consume():
        while True:
            try:
                outcomes.append(next(it))
            except StopIteration:
                return
            except OSError:
                outcomes.append("failed")

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=20)
        assert not t.is_alive()
    assert sorted(map(str, outcomes)) == ["1", "4", "5", "failed", "failed"]


def test_failure_in_converting(monkeypatch):
    """Such as device memory that runs out: at that item, and the next one comes."""
    from lazyeng.data import transfer

    calls = []

    def wrap(obj):
        calls.append(obj)
        if len(calls) == 2:
            raise MemoryError("no room")
        return obj

    monkeypatch.setattr(transfer, "wrap", wrap)
    it = iter(prefetch(torch.arange(3)))
    assert next(it).item() == 0
    with pytest.raises(MemoryError, match="no room"):
        next(it)
    assert [tensor.item() for tensor in it] == [2]


def raises(error):
    raise error


@pytest.mark.parametrize("depth", [0, 2])
def test_text_that_ends_the_thread(depth):
    """The reader gets the exception, as from the source itself."""

    class TextError(Exception):
        def __str__(self):
            raise SystemExit(3)

    it = iter(prefetch((raises(TextError("x")) for _ in range(1)), depth=depth))
    with pytest.raises(TextError) as caught:
        next(it)
    assert caught.value.args == ("x",) and list(it) == []


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("error", [ValueError("x"), ExceptionGroup("x", [ValueError("y")])])
def test_what_cannot_be_taken_apart(error, depth, monkeypatch):
    """Such as where memory runs out."""
    monkeypatch.setattr(lazyeng.errors, "detach", lambda _: raises(MemoryError()))
    it = iter(prefetch((raises(error) if i == 1 else i for i in range(3)), depth=depth))
    assert next(it) == 0
    grouped = isinstance(error, ExceptionGroup)
    text = "<ExceptionGroup that cannot be taken apart>" if grouped else "x"
    with pytest.raises(RuntimeError if grouped else ValueError, match=text):
        next(it)
    assert list(it) == []


class Forgetful(torch.Generator):
    """It tells its state to the loader's thread only so many times."""

    left = 3

    def get_state(self):
        if threading.current_thread() is not threading.main_thread():
            self.left -= 1
            if self.left <= 0:
                raise MemoryError("no room")
        return super().get_state()


@pytest.mark.limit(60)
def test_the_thread_itself_fails():
    """Outside of the source: its failure is the last item."""
    it = iter(DataLoader(range(8), shuffle=True, generator=Forgetful(), prefetch=1))
    got = events_of(it)
    assert got[-2:] == ["MemoryError", "end"] and len(got) == 4
    assert list(it) == []


@pytest.mark.limit(60)
def test_the_thread_fails_before_it_begins(monkeypatch):
    def call(self, function):
        raise MemoryError("no room")

    monkeypatch.setattr(lazyeng.data.runner.Surroundings, "call", call)
    it = iter(prefetch(range(3)))
    with pytest.raises(MemoryError, match="no room"):
        next(it)
    assert list(it) == []


def fail_here():
    raise TwoArgumentsError(1, column=2)
    yield


def test_details():
    iterator = iter(prefetch(fail_here()))  # the line of creation
    with pytest.raises(TwoArgumentsError) as caught:
        next(iterator)
    error = caught.value
    assert error.creation_stack[-1].line.endswith("# the line of creation")
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    assert [f.name for f in frames[-2:]] == ["test_details", "fail_here"]
    assert [f.name for f in traceback.extract_tb(error.__traceback__)] == ["test_details"]
    assert any(note.startswith("lazyeng: prefetch(item 0)") for note in error.__notes__)
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error) and isinstance(copied, lazyeng.LazyError)


def test_each_failure_has_a_root_of_its_own():
    it, ids = iter(prefetch(Recovers())), set()
    for _ in range(3):
        try:
            next(it)
        except OSError as error:
            ids.add(error.root_id)
    assert len(ids) == 2
