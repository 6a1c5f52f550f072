"""Programs that read again and again: what they record is held for the read, and never for good.

Which thread runs it is a matter of luck on a busy machine: what is held is decided, and tested, by
tests/cpp/test_read_habit.cpp.
"""

import textwrap
import threading
import time

import pytest
import torch

import lazyeng
from lazyeng.errors import UnseenFailureWarning
from tests.support.processes import printed_by

READS = 5  # enough to be expected to go on


def read_often():
    for i in range(READS):
        assert (torch.ones(3) * i).sum().item() == 3 * i


def pending():
    return lazyeng.engine_stats()["pending_ops"]


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.limit(60)
def test_what_nobody_reads_runs_all_the_same():
    """The program goes on without recording; a plain tensor that it wrote shows when it is done."""
    x = torch.zeros(4)
    with lazyeng.lazy("async"):
        read_often()
        y = x.sort().values.cumsum(0)  # (neither can be fused)
        until(lambda: pending() == 0)
        assert y.is_ready()


@pytest.mark.limit(60)
def test_more_than_a_little_is_handed_over():
    with lazyeng.lazy("async"):
        read_often()
        x = torch.ones(4)
        for _ in range(500):
            x = x.cumsum(0).clamp(max=1)
        until(lambda: pending() == 0)


@pytest.mark.limit(60)
def test_a_large_op_is_not_held():
    with lazyeng.lazy("async"):
        read_often()
        x = torch.ones(512, 512) @ torch.ones(512, 512)
        until(lambda: x.is_ready())


def test_failures_of_held_ops_are_raised_at_the_read():
    with lazyeng.lazy("async"):
        read_often()
        for _ in range(20):
            bad = torch.arange(3)[torch.tensor([7])]
            with pytest.raises(IndexError, match="out of bounds"):
                bad.sum().item()
            assert torch.ones(3).sum().item() == 3


def counted(program):
    """What the program did, after it has read so often that it is expected to."""
    with lazyeng.lazy("async"):
        read_often()
        lazyeng.synchronize()
        before = lazyeng.engine_stats()
        program()
        lazyeng.synchronize()
    after = lazyeng.engine_stats()
    return {name: after[name] - before[name] for name in ("recorded", "executed", "launches")}


def test_what_makes_a_group_is_fused_in_a_program_that_reads():
    def program():
        x = torch.rand(300)
        for _ in range(10):
            y = x
            for _ in range(4):
                y = (y + x) * x
            y[0].item()

    with lazyeng.lazy("async"):
        program()
        before = lazyeng.engine_stats()
        program()
        after = lazyeng.engine_stats()
    assert after["groups"] - before["groups"] >= 9
    assert after["launches"] - before["launches"] <= 20


def test_ops_that_are_run_at_once_are_counted():
    def program():
        for i in range(10):
            assert torch.full((3,), i).sort().values.cumsum(0)[2].item() == 3 * i

    assert counted(program) == {"recorded": 20, "executed": 20, "launches": 20}


def test_an_op_that_fails_at_once_is_one_failure_all_the_same():
    def program():
        for i in range(10):
            bad = torch.arange(3)[torch.tensor([7 + i])]
            after = bad + 1
            with pytest.raises(IndexError, match=f"index {7 + i} is out of bounds") as caught:
                after.item()
            failure = caught.value
            assert isinstance(failure, lazyeng.LazyError) and failure.op == "aten.index.Tensor"
            assert failure.creation_stack[-1].line.startswith("bad = ")

    counts = counted(program)
    assert counts["recorded"] == counts["executed"] + 10  # (what follows a failed op is left out)


IN_PYTHON = """if True:
    import signal, torch, lazyeng
    library, calls, interrupts = torch.library.Library("aten", "IMPL"), [], []
    def tan(x):
        calls.append(1)
        if interrupts: signal.raise_signal(interrupts.pop())
        if x[0] > 5: raise ValueError("too large")
        return x.clone()
    # (lazyeng is not told, as of a kernel in C++: it runs this one as torch's own.)
    torch.library.Library.impl.__wrapped__(library, "tan", tan, "CPU")
    x = lazyeng.wrap(torch.ones(8))
    for _ in range(5): x.tan().sum().item()
    calls.clear()
"""


def in_python(program):
    """What the program prints, with a kernel in Python for an op of torch."""
    return printed_by(IN_PYTHON + textwrap.indent(program, "    "), "-W", "ignore", timeout=100)


def test_an_op_that_fails_at_once_runs_once():
    assert in_python("""
try: (x * 9).tan().sum().item()
except ValueError as error: print(error, len(calls))
lazyeng.synchronize()
""") == "too large 1\n"  # fmt: skip


def test_ctrl_c_in_a_kernel_in_python_that_runs_at_once_is_not_lost():
    assert in_python("""
interrupts.append(signal.SIGINT)
try: x.tan()
except KeyboardInterrupt: print("interrupted", len(calls))
lazyeng.synchronize()
print(x.tan().sum().item())
""") == "interrupted 1\n8.0\n"  # fmt: skip


def test_what_fails_at_once_and_is_read_by_nobody_is_told_when_it_dies():
    with lazyeng.lazy("async"):
        read_often()
        bad = torch.arange(3)[torch.tensor([7])]
        with pytest.warns(UnseenFailureWarning, match="index 7 is out of bounds"):
            del bad
        lazyeng.synchronize()  # (it is told once)


def test_what_fails_at_once_is_raised_by_synchronize():
    with lazyeng.lazy("async"):
        read_often()
        bad = torch.arange(3)[torch.tensor([7])]
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            lazyeng.synchronize()
        lazyeng.synchronize()
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            bad.tolist()


def test_habits_are_of_a_thread():
    """One thread reads all the time, another records and waits for its results at the end."""
    stop = threading.Event()

    def reads():
        with lazyeng.lazy("async"):
            while not stop.is_set():
                read_often()

    reader = threading.Thread(target=reads)
    reader.start()
    try:
        with lazyeng.lazy("async"):
            x = torch.ones(8)
            for _ in range(2000):
                x = x.cumsum(0).clamp(max=2)
            assert x.sum().item() == 15
    finally:
        stop.set()
        reader.join(30)
    assert not reader.is_alive()
