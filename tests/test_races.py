"""Races that were found by reading, with the programs that showed them: they took 7 to 50 seconds
to fail, so these few seconds are a sample (SECONDS=60 shows them)."""

import os
import random
import threading
import time

import pytest
import torch

import lazyeng
from lazyeng import _C, lazy, wrap
from tests.support.processes import check
from tests.support.threads import threads_of_torch

SECONDS = float(os.environ.get("SECONDS", "2.5"))


def for_a_while():
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        yield


def pause():
    """Of some microseconds: what the engine does meanwhile comes in any order with what follows."""
    for _ in range(random.randrange(400)):
        pass


@pytest.fixture
def one_core():
    with threads_of_torch(1):
        yield


@pytest.mark.usefixtures("one_core")
def test_results_of_a_group_that_get_another_view_meanwhile():
    """`unsqueeze_` gives the tensor another Value of the same memory and lets go of the one that
    the group looks at."""
    with lazy():
        start = wrap(torch.zeros(2048))
        for _ in for_a_while():
            made = [start + 1]
            for _ in range(119):
                made.append(made[-1] + 1)
            _C.flush()
            pause()
            for x in made:
                x.unsqueeze_(0)
            assert torch.cat(made).mean(1).tolist() == list(range(1, 121))


def counter():
    count = wrap(torch.zeros(())) + 0
    return count, lambda _: count.add_(1), lambda value: value.item()


def element():
    table = wrap(torch.zeros(4, 4)) + 0

    def write(i):
        table[1, 2] = i + 1.0

    return table, write, lambda value: value[1, 2].item()


@pytest.mark.parametrize("make", [counter, element])
def test_numbers_written_behind_recorded_reads(make):
    """Such a write runs at the call, unless a read of what it overwrites is on its way to the
    engine, and so in neither of the places that are looked at."""
    with lazy():
        a = wrap(torch.rand(160, 160) / 160)
        for _ in for_a_while():
            number, write, read = make()
            read(number)
            seen = []
            for i in range(50):
                for _ in range(2):
                    seen.append((i, (a @ a).sum() * 0 + number))
                    pause()
                write(i)
            assert [i for i, _ in seen] == [read(value) for _, value in seen]


OVERWRITE = {
    "unwrap": lambda x: lazyeng.unwrap(x).add_(5),
    "unwrap of a view": lambda x: lazyeng.unwrap(x[1:]).fill_(5),
    "unwrap of detach": lambda x: lazyeng.unwrap(x.detach()).fill_(5),
    "storage": lambda x: x.untyped_storage().fill_(1),
    "numpy": lambda x: x.numpy().fill(5),
}


@pytest.mark.parametrize("overwrite", OVERWRITE)
@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("read_before", [False, True])
def test_reads_recorded_before_the_program_has_the_memory(overwrite, mode, read_before):
    x = wrap(torch.zeros(4)) + 1
    x.wait()
    if read_before:  # by what does not let others have it
        assert x.sum().item() == 4 and x.tolist() == [1] * 4
    with lazy(mode):
        a = wrap(torch.rand(1500, 1500))
        y = (a @ a @ a)[0, :4] * 0 + x
    OVERWRITE[overwrite](x)
    assert y.tolist() == [1] * 4


def test_custom_ops_defined_while_others_record():
    """An op that one thread looks at stands in no list, while another gives it its kernel."""
    stop = threading.Event()
    library = torch.library.Library("lazyeng_races", "DEF")
    for i in range(500):
        library.define(f"without_kernel_{i}(Tensor x) -> Tensor")

    def record():
        for i in range(10**9):
            if stop.is_set():
                return
            torch.atleast_1d(wrap(torch.zeros(1 + i % 50_000))).add(1)

    thread = threading.Thread(target=record)
    thread.start()
    seen = []
    try:
        for _, i in zip(for_a_while(), range(10**9), strict=False):
            op = torch.library.custom_op(
                f"lazyeng_races_{i % 7}::op_{i}",
                lambda x: (seen.append(_C.is_lazy(x)), x + 1)[1],
                mutates_args=(),
                schema="(Tensor x) -> Tensor",
            )
            op.register_fake(torch.empty_like)
            assert op(wrap(torch.ones(3))).sum().item() == 6
    finally:
        stop.set()
        thread.join()
    assert seen and not any(seen)


def test_one_thread_waits_for_room_that_another_takes_in_deferred_mode():
    """Nobody but the one that waits would push what the other has recorded: more than half of what
    may be pending, the room that is waited for."""
    body = """
    import threading
    permits, done = threading.Semaphore(0), threading.Event()
    @torch.library.custom_op("room::wait", mutates_args=())
    def wait(x: torch.Tensor) -> torch.Tensor:
        permits.acquire(timeout=60)
        return x.clone()
    wait.register_fake(torch.empty_like)

    def pending_is(condition):
        while not condition(lazyeng.engine_stats()["pending_ops"]): time.sleep(0.001)

    def first():
        with lazy():
            x = wrap(torch.zeros(2))
            for _ in range(100): x = wait(x)
        done.set()

    def second():
        y, kept = wrap(torch.zeros(2)), []
        with lazy("deferred"):
            pending_is(lambda n: n > 64)
            time.sleep(0.1)  # (the first waits for room)
            permits.release(20)
            for _ in range(40):
                pending_is(lambda n: n < 60)
                kept.append(y := y + 1)
                permits.release()
            permits.release(100)
            print(done.wait(20))
        print(y.sum().item())

    threads = [threading.Thread(target=f) for f in (first, second)]
    for t in threads: t.start()
    for t in threads: t.join()
    """
    check(body, "True 80.0", LAZYENG_MAX_PENDING_OPS="64")
