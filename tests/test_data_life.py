"""What is left of a pass that ended, was closed, or was dropped: nothing. Fork, exit and Ctrl-C."""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
import types
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils import data

import lazyeng
from lazyeng import DataLoader, prefetch
from lazyeng.data.channel import Channel, End
from tests.support.processes import check, run

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes.*")


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("lazyeng-load")]


def children():
    """Processes whose parent is this one, by number."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # this thread has just ended
            found |= set(Path(f"/proc/self/task/{task}/children").read_text().split())
    return found


def resources():
    gc.collect()
    return len(threading.enumerate()), len(children()), len(os.listdir("/proc/self/fd"))


def come_to(holds):
    """Waits, on a slow machine for long, until it holds."""
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)


def no_more_than(before):
    return all(now <= then for now, then in zip(resources(), before, strict=True))


def assert_back_to(before):
    """The threads that feed torch's queues are told to end, and take a moment. (`before` may have
    had what another test left, and what has ended since.)"""
    come_to(lambda: no_more_than(before))
    assert no_more_than(before), (resources(), before)


class Numbers(data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.full((10,), index)


def abandon(iterator):
    next(iterator)


def close(iterator):
    next(iterator)
    iterator.close()


def exhaust(iterator):
    for _ in iterator:
        pass


def fail(iterator):
    def user():
        for _ in iterator:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        user()


def never_start(iterator):
    pass


WAYS = [abandon, close, exhaust, fail, never_start]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_left(way, workers):
    def once():
        way(iter(DataLoader(Numbers(), batch_size=10, num_workers=workers)))

    once()  # what is made once per process
    time.sleep(0.5)
    before = resources()
    for _ in range(3):
        once()
    assert_back_to(before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("one_shot", [True, False])
def test_nothing_is_left_of_prefetch(way, one_shot):
    def once():
        way(iter(prefetch(iter(range(20)) if one_shot else range(20))))

    before = resources()
    for _ in range(20):
        once()
    assert_back_to(before)
    assert not threads()


def test_hundred_abandoned_iterators():
    before = resources()
    loader = DataLoader(Numbers(), batch_size=2)
    for _ in range(100):
        next(iter(loader))
    assert_back_to(before)


def test_a_closed_iterator_holds_nothing():
    before = resources()
    loader = DataLoader(Numbers(), batch_size=10, num_workers=2)
    with iter(loader) as it:
        next(it)
        assert len(children()) == before[1] + 2 and len(threads()) == 1
    assert_back_to(before)
    assert list(it) == []


def test_persistent_workers_stay_until_the_loader_goes():
    before = resources()
    loader = DataLoader(Numbers(), batch_size=10, num_workers=2, persistent_workers=True)
    epochs = []
    for stop in (3, 100, 1, 100):
        epochs.append([b[0, 0].item() for b, _ in zip(loader, range(stop), strict=False)])
        assert len(children()) == before[1] + 2 and not threads()
    assert epochs == [[0, 10, 20], list(range(0, 100, 10)), [0], list(range(0, 100, 10))]
    del loader
    assert_back_to(before)


def test_persistent_workers_start_anew_under_a_running_pass():
    loader = DataLoader(Numbers(), batch_size=10, num_workers=1, persistent_workers=True)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 10 and list(first) == []


def test_iterators_of_persistent_workers_are_one_as_in_torch():
    epochs = []
    for kind in (data.DataLoader, DataLoader):
        loader = kind(Numbers(), batch_size=10, num_workers=1, persistent_workers=True)
        first = [batch[0, 0].item() for batch, _ in zip(loader, range(3), strict=False)]
        pairs = [(a[0, 0].item(), b[0, 0].item()) for a, b in zip(loader, loader, strict=True)]
        one, other = iter(loader), iter(loader)
        turns = [next(it)[0, 0].item() for it in (one, other, one)]
        epochs.append((first, pairs, turns, len([*other]), len([*one])))
    assert epochs[0] == epochs[1]


def test_a_closed_iterator_of_persistent_workers_stays_closed():
    loader = DataLoader(Numbers(), batch_size=10, num_workers=1, persistent_workers=True)
    closed, ended = iter(loader), iter(loader)
    closed.close()
    ended.close()
    assert len([*loader]) == 10 and [*closed] == [*ended] == []


def test_iterator_in_a_reference_cycle():
    class Trainer:
        pass

    trainer = Trainer()
    trainer.me, trainer.batches = trainer, iter(prefetch(Numbers()))
    next(trainer.batches)
    assert len(threads()) == 1
    del trainer
    gc.collect()
    assert not threads()


def test_buffers_are_freed():
    made = []

    def source():
        for _ in range(10):
            made.append(weakref.ref(tensor := torch.ones(3)))
            yield tensor
            del tensor

    p = prefetch(source(), depth=3)
    it = iter(p)
    batch = next(it)
    come_to(lambda: len(made) >= 4)
    time.sleep(0.1)
    assert len(made) == 4
    p.close()
    del batch
    assert [ref() for ref in made] == [None] * 4


def test_failure_keeps_no_frame_alive():
    class Thing:
        pass

    def source():
        thing = Thing()
        alive.append(weakref.ref(thing))
        raise ValueError(str(thing)[:1])
        yield

    alive = []
    it = iter(prefetch(source()))
    come_to(lambda: alive and alive[0]() is None)
    gc.disable()
    try:
        assert alive[0]() is None
        with pytest.raises(ValueError, match="<"):
            next(it)
    finally:
        gc.enable()


def test_hanging_source_does_not_hang_close(monkeypatch):
    from lazyeng.data import runner

    monkeypatch.setattr(runner, "GRACE", 0.2)
    release = threading.Event()

    def hangs():
        yield 1
        release.wait(60)

    it = iter(prefetch(hangs()))
    assert next(it) == 1
    (thread,) = threads()
    started = time.perf_counter()
    it.close()
    assert time.perf_counter() - started < 50 and list(it) == []  # (the source hangs for 60)
    release.set()  # the source returns, and the thread ends by itself
    thread.join(timeout=10)
    assert not thread.is_alive()


class HangingSecond(data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(1000 * index)
        return index


def test_hanging_worker_is_ended(monkeypatch):
    from lazyeng.data import runner

    monkeypatch.setattr(runner, "GRACE", 0.2)
    before = resources()
    it = iter(DataLoader(HangingSecond(), num_workers=1))
    assert next(it).item() == 0
    (thread,) = threads()
    it.close()
    thread.join(timeout=30)  # torch looks after its workers every five seconds
    del it, thread
    assert_back_to(before)


@pytest.fixture
def ctrl_c():
    """A function that presses Ctrl-C after so many seconds."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    timers = []

    def later(seconds):
        timers.append(threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT)))
        timers[-1].start()

    yield later
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGINT, old)


class WaitingSecond(data.Dataset):
    def __init__(self):
        self.release = multiprocessing.Event()

    def __len__(self):
        return 3

    def __getitem__(self, index):
        assert index != 1 or self.release.wait(60)
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_ctrl_c_while_waiting(workers, ctrl_c):
    """KeyboardInterrupt at once; nothing is lost; the loop may go on, or start anew."""
    dataset = WaitingSecond()
    loader = DataLoader(dataset, num_workers=workers)
    it = iter(loader)
    assert next(it).item() == 0
    ctrl_c(0.2)
    with pytest.raises(KeyboardInterrupt):
        next(it)  # (without it this would wait until the dataset gives up)
    dataset.release.set()
    assert [x.item() for x in it] == [1, 2]
    assert [x.item() for x in loader] == [0, 1, 2]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("one_shot", [False, True])
def test_ctrl_c_while_the_thread_is_started(begun, one_shot, monkeypatch):
    """Thread.start waits for the thread: it may run or not when a signal's handler raises."""
    start = threading.Thread.start

    def interrupted(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        if begun:
            start(thread)
        raise KeyboardInterrupt

    numbers = list(range(100))
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    ahead = prefetch((i for i in numbers) if one_shot else numbers)
    with pytest.raises(KeyboardInterrupt):
        next(iter(ahead))
    assert list(ahead) == numbers
    assert not [t for t in threading.enumerate() if t.name.startswith("lazyeng-load")]


@pytest.mark.parametrize("at", [1, 2])
def test_who_is_interrupted_gives_back_what_was_taken(at):
    """Before it has an item, and after."""
    channel = Channel(iter([1, 2]), lambda item: item)
    for _ in range(3):
        channel.make()
    for expected in (1, 2, End):
        calls = []

        def wake(calls=calls):
            calls.append(None)
            if len(calls) == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            channel.take(wake)
        taken = channel.take(lambda: None)
        assert taken.value == expected if expected is not End else isinstance(taken, End)
    assert isinstance(channel.take(lambda: None), End)  # so does each later one


def test_an_item_that_is_given_back_while_another_takes_the_end_is_not_lost():
    channel = Channel(iter([1]), lambda item: item)
    channel.make()
    item = channel.take(lambda: None)
    channel.make()  # the end
    # The second taker finds no item, and comes to the end while the first is interrupted.
    taken, get = channel.made, channel.made.get
    channel.made = types.SimpleNamespace(
        get=lambda: (get(), channel.take_back(item))[0], put=taken.put
    )
    second = channel.take(lambda: None)
    assert second.value == 1 and not channel.finished
    channel.made = taken
    assert isinstance(channel.take(lambda: None), End) and channel.finished


def test_ctrl_c_in_a_terminal():
    """It goes to all processes; the workers leave it to the loop."""
    check("""
        import signal, threading
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 6
            def __getitem__(self, i):
                time.sleep(0.5)
                return i
        if __name__ == "__main__":
            os.setpgrp()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            it = iter(lazyeng.DataLoader(Slow(), num_workers=2))
            events = [next(it).item()]
            threading.Timer(0.7, os.killpg, (0, signal.SIGINT)).start()
            while events[-1] != "end":
                try:
                    events.append(next(it).item())
                except KeyboardInterrupt:
                    events.append("pressed")
                except StopIteration:
                    events.append("end")
            events.remove("pressed")
            print(events)
    """, "[0, 1, 2, 3, 4, 5, 'end']")  # fmt: skip


FORK = """
    class Source:
        def __iter__(self):
            for i in range(50):
                time.sleep(0.002)
                yield torch.ones(2) * i
    p = lazyeng.prefetch(Source())
    it = iter(p)
    next(it)
    codes = []
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            try:
                next(it)
            except RuntimeError as error:
                assert "forked child" in str(error)
                it.close()
                assert len(list(p)) == 50
                del it, p
                os._exit(0)
            os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(codes == [0] * 10, len(list(it)))
"""


def test_forked_child():
    """The child has no thread: its copy of the iterator says so, and a new pass works."""
    check(FORK, "True 49")


def test_workers_are_forked_while_threads_run():
    """Several loaders at once, each with workers, beside a running engine."""
    check("""
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 20
            def __getitem__(self, i): return torch.ones(100) * i
        if __name__ == "__main__":
            x = wrap(torch.ones(100))
            total = 0
            for _ in range(3):
                loaders = [lazyeng.DataLoader(Numbers(), num_workers=1 + i % 2) for i in range(3)]
                for batches in zip(*loaders):
                    for batch in batches: x = (x + batch).clamp(0, 5)
                    total += 1
            print(total, x.sum().item())
    """, "60 500.0")  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_exit_with_a_running_pass(workers):
    done = run(
        f"""
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 1000
            def __getitem__(self, i):
                return torch.randn(200, 200).mm(torch.randn(200, 200))
        if __name__ == "__main__":
            loader = lazyeng.DataLoader(Numbers(), num_workers={workers}, prefetch=50)
            it = iter(loader)
            next(it)
            sys.exit(0)
    """,
        own=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_exit_with_a_hanging_source():
    done = run("""
        def hangs():
            yield 1
            time.sleep(1000)
        it = iter(lazyeng.prefetch(hangs()))
        print(next(it))
    """, own=True, timeout=30)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_lazy_batches_outlive_their_pass():
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1)
    with lazyeng.lazy("deferred"):
        kept = [batch * 2 for batch in loader]
    assert [k[0, 0].item() for k in kept] == list(range(0, 200, 4))


class Blocks(data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        assert type(torch.ones(1)) is torch.Tensor
        return lazyeng._C.thread_mode()[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_run_outside_of_the_block(workers):
    loader = DataLoader(Blocks(), num_workers=workers)
    with lazyeng.lazy("deferred"), lazyeng.lazy():
        assert [batch.item() for batch in loader] == [0] * 4
        assert lazyeng._C.thread_mode()[1] == 2
