"""prefetch: passes, one-shot sources, the bound of depth, and what surrounds the source's code."""

import contextvars
import sys
import threading
import time
import weakref
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

import lazyeng
from lazyeng import prefetch


def settle(seconds=0.1, *, until=lambda: True):
    """Time for the thread to run ahead as far as it goes; at least until that holds."""
    end = time.monotonic() + 60
    while not until() and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(seconds)


class Counted:
    """A source that can start anew and counts what it started and finished, over all passes."""

    def __init__(self, length):
        self.length, self.started, self.finished = length, 0, 0

    def __len__(self):
        return self.length

    def __iter__(self):
        for i in range(self.length):
            self.started += 1
            time.sleep(0.001)
            self.finished += 1
            yield i


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 7])
def test_all_items_in_order(depth):
    assert list(prefetch(range(100), depth=depth)) == list(range(100))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depth_is_exact(depth):
    """However late the consumer is: `depth` finished items wait, and none more is started."""
    source = Counted(20)
    it = iter(prefetch(source, depth=depth))
    for taken in range(10):
        settle(0.02, until=lambda: source.finished >= taken + depth)  # noqa: B023 (called at once)
        assert (source.started - taken, source.finished - taken) == (depth, depth)
        assert next(it) == taken


def test_depth_with_many_consumers():
    source = Counted(300)
    it = iter(prefetch(source, depth=3))
    got, most = [], []

    def consume():
        for item in it:
            most.append(source.finished - len(got))
            got.append(item)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=30)
        assert not t.is_alive()
    assert sorted(got) == list(range(300))
    assert max(most) <= 3 + 4  # four were taken and not noted yet


def all_of(take, consumers=4):
    """What several threads get that start at once and take until the end, together."""
    start, got, errors = threading.Barrier(consumers), [], []

    def consume():
        start.wait()
        try:
            while True:
                got.append(take())
        except StopIteration:
            return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(consumers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=30)
        assert not t.is_alive()
    assert not errors
    return sorted(got)


@pytest.fixture
def hasty():
    """Threads take turns so often that what is not atomic shows."""
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(old)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("source", [iter, list, lambda items: (i for i in items)])
def test_many_consumers_lose_nothing(depth, source, hasty):
    for _ in range(20):
        it = iter(prefetch(source(range(100)), depth=depth))
        assert all_of(it.__next__) == list(range(100))


@pytest.mark.parametrize("source", [iter, list])
def test_next_of_one_object_by_many_consumers(source, hasty):
    for _ in range(30):
        p = prefetch(source(range(50)))
        assert all_of(p.__next__) == list(range(50))


def test_one_shot_source_iterated_by_many(hasty):
    for _ in range(20):
        p = prefetch(iter(range(50)))
        assert all_of(lambda p=p: next(iter(p))) == list(range(50))


@pytest.mark.limit(60)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_source_that_asks_for_itself(depth):
    """Also where it does so by another iterator over the same source; as a generator does."""
    ready = threading.Event()

    def source():
        yield 1
        ready.wait(60)
        try:
            yield next(it)
        except ValueError as error:
            yield str(error)
        yield next(another)

    p = prefetch(source(), depth=depth)
    it, another = iter(p), iter(p)
    ready.set()
    assert [next(it), next(it)] == [1, "generator already executing"]
    with pytest.raises(ValueError, match="generator already executing") as caught:
        next(it)
    assert isinstance(caught.value, lazyeng.LazyError) and list(it) == []


@pytest.mark.limit(60)
def test_source_asks_for_an_item_that_waits():
    """Refused too: whether one waits is a matter of time."""
    ready = threading.Event()

    def source():
        yield 1
        ready.wait(60)
        yield next(it)

    it = iter(prefetch(source(), depth=3))
    ready.set()
    with pytest.raises(ValueError, match="generator already executing"):
        list(it)


def test_depth_zero_makes_items_on_the_calling_thread():
    def threads():
        for _ in range(3):
            yield threading.current_thread()

    assert list(prefetch(threads(), depth=0)) == [threading.main_thread()] * 3


def test_loading_overlaps_computing():
    """Each item is begun while the loop is still at the one before."""
    begun = [threading.Event() for _ in range(10)]

    def source():
        for i, event in enumerate(begun):
            event.set()
            yield i

    for i in prefetch(source()):
        assert i == 9 or begun[i + 1].wait(60)


def test_each_iter_is_a_new_pass():
    p = prefetch([1, 2, 3])
    assert [list(p), list(p)] == [[1, 2, 3]] * 2
    assert list(zip(p, p, strict=True)) == [(1, 1), (2, 2), (3, 3)]
    assert next(p) == 1 and list(p) == [1, 2, 3] and next(p) == 2


def test_one_shot_source_goes_on_and_loses_nothing():
    p = prefetch(iter(range(20)), depth=3)
    got = []
    while len(got) < 20:
        for item in p:
            got.append(item)
            settle(0.01)
            if len(got) % 3 == 0:
                break
    assert got == list(range(20)) and list(p) == []


class OneIterator:
    """Gives out the same iterator each time."""

    def __init__(self, items):
        self.iterator = iter(items)

    def __iter__(self):
        return self.iterator


@pytest.mark.parametrize(
    "source",
    [
        lambda: OneIterator(range(20)),
        lambda: prefetch(i for i in range(20)),
        lambda: prefetch(prefetch(OneIterator(range(20)), depth=1)),
        lambda: map(int, prefetch(iter(range(20)))),
    ],
)
@pytest.mark.parametrize("depth", [0, 2, 30])
def test_one_iterator_behind_several_passes(source, depth):
    p, got = prefetch(source(), depth=depth), []
    for stop in (1, 3, 5, 50):
        for item in p:
            got.append(item)
            settle(0.02)
            if len(got) >= stop:
                break
    assert got == list(range(20)) and list(p) == []


def test_what_can_start_anew_is_not_kept():
    """After a break nothing holds the source's iterator, nor what it made."""

    class Tensors:
        def __iter__(self):
            while True:
                made.append(weakref.ref(tensor := torch.ones(2)))
                yield tensor
                del tensor

    made, p = [], prefetch(Tensors())
    for item in p:
        del item
        settle(0.05, until=lambda: len(made) >= 3)
        break
    assert len(made) >= 3 and [ref() for ref in made] == [None] * len(made)


def test_source_that_grows_or_starts_anew_after_its_end():
    class Grows:
        def __iter__(self):
            return self

        def __next__(self):
            if not items:
                raise StopIteration
            return items.pop(0)

    items = [1, 2]
    p = prefetch(Grows())
    assert list(p) == [1, 2]
    items += [3]
    assert list(p) == [3] and list(p) == []

    class Restarts:
        def __iter__(self):
            self.left = 3
            return self

        def __next__(self):
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return self.left

    p = prefetch(Restarts())
    assert next(iter(p)) == 2
    settle()
    assert [list(p), list(p)] == [[2, 1, 0]] * 2


def test_always_true():
    """As iterators are; also where there is no length."""
    for p in (prefetch(iter([1])), prefetch([]), prefetch([1])):
        assert p and iter(p)


def test_one_shot_source_shared_by_two_iterators():
    p = prefetch(iter(range(6)))
    a, b = iter(p), iter(p)
    assert [next(a), next(b), next(p), next(a)] == [0, 1, 2, 3]
    a.close()
    assert list(iter(p)) == [4, 5]


def test_a_source_by_getitem():
    class Old:
        def __getitem__(self, i):
            return [10, 20][i]

    assert list(prefetch(Old())) == [10, 20]


def test_length():
    assert len(prefetch(range(5))) == len(iter(prefetch(range(5)))) == 5
    with pytest.raises(TypeError, match="has no len"):
        len(prefetch(iter([])))
    assert list(prefetch(iter([1]))) == [1]  # list() asks for a length


@pytest.mark.parametrize("how", ["close", "with"])
def test_closed(how):
    p = prefetch(range(100))
    it = iter(p)
    next(it)
    if how == "close":
        p.close()
        p.close()
    else:
        with p:
            pass
    assert list(it) == list(p) == []
    with pytest.raises(StopIteration):
        next(p)


@pytest.mark.parametrize("one_shot", [True, False])
def test_close_wakes_who_waits(one_shot):
    """Although the source hangs."""
    release = threading.Event()

    class Hangs:
        def __iter__(self):
            yield 0
            release.wait(60)

    p = prefetch(iter(Hangs()) if one_shot else Hangs())
    it, got = iter(p), []
    readers = [threading.Thread(target=lambda: got.extend(it)) for _ in range(3)]
    for reader in readers:
        reader.start()
    settle()
    closer = threading.Thread(target=it.close)
    closer.start()
    for reader in readers:
        reader.join(timeout=10)
        assert not reader.is_alive()
    release.set()
    closer.join()
    assert got == [0]


@pytest.mark.parametrize(
    "bad", [{"depth": -1}, {"depth": 1.0}, {"depth": True}, {"depth": "2"}, {"device": "nowhere"}]
)
def test_arguments(bad):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        prefetch([], **bad)


def test_not_iterable():
    with pytest.raises(TypeError, match="expected an iterable, got int"):
        prefetch(5)


Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str
    parts: list


def test_structure():
    """Tensors become lazy in the structure they came in; everything else stays."""
    one, marker = torch.ones(2), object()
    item = {"point": Point(one, "y"), "sample": Sample(one, "name", [one, (1.5, None)]), 3: marker}
    (got,) = prefetch([item])
    assert type(got["point"]) is Point and type(got["sample"]) is Sample
    assert got["point"].y == "y" and got["sample"].name == "name" and got[3] is marker
    assert got["sample"].parts[1] == (1.5, None)
    for tensor in (got["point"].x, got["sample"].image, got["sample"].parts[0]):
        assert type(tensor) is lazyeng.LazyTensor
        assert tensor.data_ptr() == one.data_ptr()
    assert item["point"].x is one and list(prefetch(["text"])) == ["text"]


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu"), "lazyeng"])
def test_device(device):
    (got,) = prefetch([torch.ones(2)], device=device)
    assert type(got) is lazyeng.LazyTensor and got.device == torch.device("cpu")
    assert got.tolist() == [1, 1]


def test_computing_inside_and_outside_lazy(mode):
    def sums():
        return [(x * 2).sum().item() for x in prefetch(torch.ones(3) * i for i in range(4))]

    with lazyeng.lazy(mode):
        inside = sums()
    assert inside == sums() == [0, 6, 12, 18]


def test_source_runs_outside_the_block():
    """Inside lazy() a source's own operators still run at once, in its thread."""

    def source():
        yield type(torch.ones(2) + 1)

    with lazyeng.lazy():
        (seen,) = prefetch(source())
    assert seen is torch.Tensor


def test_source_sees_the_surroundings():
    variable = contextvars.ContextVar("variable", default="outside")

    def source():
        yield variable.get()
        yield (torch.ones(1, requires_grad=True) * 2).requires_grad
        yield torch.is_inference_mode_enabled()
        yield torch.get_default_device().type

    variable.set("inside")
    with torch.no_grad():
        assert list(prefetch(source())) == ["inside", False, False, "cpu"]
    with torch.inference_mode():
        assert list(prefetch(source())) == ["inside", False, True, "cpu"]
    with torch.device("meta"):
        assert list(prefetch(source())) == ["inside", True, False, "meta"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("depth", [0, 2])
def test_source_sees_autocast(dtype, depth):
    def source():
        yield torch.is_autocast_cache_enabled()
        yield torch.ones(2, 2).mm(torch.ones(2, 2)).dtype
        with torch.autocast("cpu", enabled=False):
            yield torch.ones(2, 2).mm(torch.ones(2, 2)).dtype

    with torch.autocast("cpu", dtype, cache_enabled=False):
        assert list(prefetch(source(), depth=depth)) == [False, dtype, torch.float32]
    assert list(prefetch(source(), depth=depth)) == [True, torch.float32, torch.float32]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("depth", [0, 2])
def test_source_sees_autocast_of_a_device_that_is_not_there(depth):
    """Without the warning that torch.autocast would give: nobody called it."""

    def source():
        yield torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        assert list(prefetch(source(), depth=depth)) == [(True, torch.bfloat16)]
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
