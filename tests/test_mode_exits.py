"""How lazy() blocks end: with failures, exceptions on their way out, interrupts, out of turn."""

import copy
import gc
import pickle
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

import lazyeng
from lazyeng import _C, lazy, synchronize, wrap

# --- exceptions


def test_exception_leaves_the_block_unmasked(mode):
    x = torch.zeros(3)
    with pytest.raises(KeyError, match="mine"), lazy(mode):
        x.add_(1)
        raise KeyError("mine")
    assert x.tolist() == [1.0] * 3
    assert type(torch.ones(1) + 1) is torch.Tensor


def test_failure_does_not_mask_an_exception(lazy_mode):
    """The failed write becomes a note of the exception that leaves the block."""
    x = torch.zeros(3)
    with pytest.raises(KeyError, match="mine") as caught, lazy(lazy_mode):
        x.copy_(x[torch.tensor([7, 0, 0])])
        raise KeyError("mine")
    (note,) = caught.value.__notes__
    assert "also failed in this block: IndexError: index 7 is out of bounds" in note
    assert "created at test_mode_exits.py" in note
    synchronize()  # it is told of


class FrozenError(Exception):
    """It takes no notes."""

    def __setattr__(self, name, value):
        raise AttributeError(f"cannot set {name}")


def leave_by_closing(lazy_mode, x):
    def steps():
        with lazy(lazy_mode):
            x.copy_(x[torch.tensor([7, 0, 0])])
            yield

    for _ in steps():
        break
    gc.collect()


def leave_with(lazy_mode, x, leaving):
    with pytest.raises(leaving), lazy(lazy_mode):
        x.copy_(x[torch.tensor([7, 0, 0])])
        raise leaving


@pytest.mark.parametrize("leaving", [SystemExit, StopIteration, FrozenError, GeneratorExit])
def test_no_failure_is_lost_with_what_leaves_the_block(leaving, lazy_mode):
    x = torch.zeros(3)
    if leaving is GeneratorExit:
        leave_by_closing(lazy_mode, x)
    else:
        leave_with(lazy_mode, x, leaving)
    with pytest.raises(IndexError, match="out of bounds"):
        synchronize()


@pytest.mark.parametrize("told_by", ["read before", "read inside", "synchronize", "block"])
def test_a_block_raises_what_others_have_told_of(told_by, lazy_mode):
    """The plain tensor has its old values: only the block says so."""
    x = torch.zeros(3)
    bad = wrap(torch.arange(3.0))[torch.tensor([7])]
    if told_by == "block":
        with pytest.raises(IndexError), lazy(lazy_mode):
            x.add_(bad)
    if told_by == "read before":
        with pytest.raises(IndexError):
            bad.tolist()
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        x.add_(bad)
        if told_by == "read inside":
            with pytest.raises(IndexError):
                x.tolist()
        if told_by == "synchronize":
            with pytest.raises(IndexError):
                synchronize()
    assert x.tolist() == [0.0] * 3


def set_item(place):
    def write(p, bad):
        p[place] = bad

    return write


@pytest.mark.parametrize("write", [
    set_item(1), set_item((slice(None), 1)), set_item(slice(1, 3)), set_item((..., 0)),
    lambda p, bad: p[1].add_(bad), lambda p, bad: p[:, 1].add_(bad), lambda p, bad: p.t().add_(bad),
    lambda p, bad: p.detach().add_(bad), lambda p, bad: p.view(-1)[:1].copy_(bad),
    lambda p, bad: p.diagonal().copy_(bad), lambda p, bad: p.unbind()[0].copy_(bad),
    lambda p, bad: torch._foreach_add_([p[0], p[1]], bad.squeeze()),
    lambda p, bad: torch.add(bad, 1, out=p[2, :1]),
])  # fmt: skip
def test_failed_writes_through_views_of_plain_tensors_are_raised_at_exit(write, lazy_mode):
    """The views, which are lazy, are gone by then."""
    p = torch.zeros(4, 4)
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        write(p, torch.ones(1)[torch.tensor([7])])
    with lazy(lazy_mode):  # that was told; the next block finds what there is
        p[2] = 5.0
    assert p.sum().item() == 20.0
    synchronize()


def test_failed_write_to_a_plain_tensor_is_raised_at_exit(lazy_mode):
    x = torch.zeros(3)
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        x.copy_(x[torch.tensor([7, 0, 0])])
    assert type(torch.ones(1) + 1) is torch.Tensor


def run_all():
    """What has been recorded so far, and failures in it stay where they are."""
    for x in (torch.ones(2), torch.ones(3)):
        (x + 1).sum().item()
    while lazyeng.engine_stats()["pending_ops"]:
        time.sleep(0.001)


@pytest.mark.parametrize("shape", [(3,), ()])
@pytest.mark.parametrize("how", ["write", "read"])
def test_what_reads_after_a_failed_write_never_sees_old_memory(how, shape, lazy_mode):
    """However long ago it failed: until the end of the block, or until all of it is written."""
    x, y = torch.zeros(shape), torch.zeros(shape)
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        x += torch.ones(3)[torch.tensor([7, 0, 0])].reshape(-1)[: x.numel()].view(shape)
        run_all()
        if how == "write":
            y += x
            run_all()
            y += 1
        else:
            assert x.sum().item() == "old memory"
    assert torch.equal(x, torch.zeros(shape)) and torch.equal(y, torch.zeros(shape))
    with lazy(lazy_mode):  # a new block: nothing has failed
        y += x + 1
    assert torch.equal(y, torch.ones(shape))


@pytest.mark.parametrize("read", [
    lambda x: x.tolist(), lambda x: x.numpy(), lambda x: np.asarray(x), lambda x: x.data_ptr(),
    lambda x: x.untyped_storage(), lambda x: copy.deepcopy(x), lambda x: pickle.dumps(x),
    lambda x: torch.from_dlpack(x), lambda x: x.sum().item(), lambda x: x[0].tolist(),
])  # fmt: skip
def test_reading_a_plain_tensor_raises_its_failed_write(read, lazy_mode):
    x = torch.zeros(3)
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        x += torch.ones(3)[torch.tensor([7, 0, 0])]
        for _ in range(2):
            with pytest.raises(IndexError, match="out of bounds"):
                read(x)
        assert repr(x) == "tensor([0., 0., 0.])" and not x.is_shared()  # they read nothing
        raise IndexError("out of bounds")  # whatever the end of the block does
    read(x)


def test_a_plain_tensor_forgets_its_failure_at_the_end_of_the_block(lazy_mode):
    """Even if a lazy tensor over its memory is there. What was recorded before still fails."""
    x = torch.zeros(3)
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        view, first = x[:2], x + 1
        x += torch.ones(3)[torch.tensor([7, 0, 0])]
        late = x + 1
    with lazy(lazy_mode):
        x += 1
    assert x.tolist() == [1.0] * 3 and view.tolist() == [1.0] * 2
    assert first.tolist() == [1.0] * 3
    with pytest.raises(IndexError, match="out of bounds"):
        late.tolist()


def test_a_plain_tensor_forgets_its_failure_after_a_block_that_was_interrupted():
    """Ctrl-C ends the wait of the block, and the write fails after that."""

    @torch.library.custom_op("lazyeng_test_mode::late", mutates_args=())
    def late(x: torch.Tensor) -> torch.Tensor:
        time.sleep(1)
        raise ValueError("late")

    late.register_fake(torch.empty_like)
    x = torch.zeros(3)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), lazy("async"):
            x += late(x)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ValueError, match="late"):
        synchronize()
    with lazy("async"):
        x += 1
    assert x.tolist() == [1.0] * 3


def test_a_write_to_all_of_it_heals_a_plain_tensor(lazy_mode):
    x, y = torch.zeros(3), torch.zeros(3)
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        x += torch.ones(3)[torch.tensor([7, 0, 0])]
        run_all()
        x.copy_(torch.full((3,), 2.0))
        run_all()
        y += x
    assert y.tolist() == x.tolist() == [2.0] * 3


def test_a_failed_write_of_an_inner_block_ends_with_it(lazy_mode):
    x, y = torch.zeros(3), torch.zeros(3)
    with lazy(lazy_mode):
        with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
            x += torch.ones(3)[torch.tensor([7, 0, 0])]
            run_all()
        y += x + 1
    assert y.tolist() == [1.0] * 3


def test_an_inner_block_does_not_end_what_the_outer_one_knows_of_a_plain_tensor(lazy_mode):
    """Both have failed to write it; the inner one only because of the outer one."""
    p = torch.zeros(3)
    with pytest.raises(RuntimeError, match="out of bounds"), lazy(lazy_mode):
        p.add_(torch.ones(3).gather(0, torch.tensor([5])).sum())
        with pytest.raises(RuntimeError, match="out of bounds"), lazy(lazy_mode):
            p.mul_(2)
        after = p + 1
        with pytest.raises(RuntimeError, match="out of bounds"):
            after.tolist()
        raise RuntimeError("out of bounds, and told")
    assert p.tolist() == [0, 0, 0]


def test_a_lazy_tensor_written_with_a_plain_one_keeps_its_failure(lazy_mode):
    p, lazily = torch.zeros(3), lazyeng.wrap(torch.zeros(3))
    with pytest.raises(RuntimeError, match="out of bounds"), lazy(lazy_mode):
        bad = torch.ones(3).gather(0, torch.tensor([5])).sum()
        torch._foreach_add_([p, lazily], [bad, bad])
    assert p.tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="out of bounds"):
        lazily.tolist()


@pytest.mark.parametrize("other", ["waits for everything", "leaves blocks"])
def test_what_other_threads_do_shows_nobody_old_memory(other, lazy_mode):
    """A write is recorded, and another thread has just waited for everything, or for its own."""
    stop = threading.Event()

    def does():
        x = lazyeng.wrap(torch.ones(4))
        while not stop.is_set():
            if other == "leaves blocks":
                with lazy():
                    x + 1
            else:
                lazyeng.synchronize()

    thread = threading.Thread(target=does)
    thread.start()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(4000):
            p = torch.zeros(1000)
            with lazy(lazy_mode):
                p.add_(1)
            assert p[7].item() == 1
    finally:
        sys.setswitchinterval(switch)
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_a_block_raises_what_its_writes_get_from_elsewhere(lazy_mode):
    """The op that failed was recorded before the block, or in an inner one."""
    x = torch.zeros(3)
    with lazy(lazy_mode):
        bad = torch.ones(3)[torch.tensor([7, 0, 0])]
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        x += bad
    with pytest.raises(IndexError, match="out of bounds"), lazy(lazy_mode):
        with lazy(lazy_mode):
            bad = torch.ones(3)[torch.tensor([7, 0, 0])]
        x += bad
    assert x.tolist() == [0.0] * 3


def test_failure_of_an_unread_result_does_not_leave_the_block(lazy_mode):
    with lazy(lazy_mode):
        bad = torch.ones(3)[torch.tensor([7])]
    with pytest.raises(IndexError):
        bad.wait()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exceptions_pass(error):
    with pytest.raises(error), lazy():
        raise error


def goes_on():
    try:
        yield 1
    except GeneratorExit:
        yield 2
    yield 3


def returns():
    try:
        yield 1
    except GeneratorExit:
        return 2


def replaces():
    try:
        yield 1
    except GeneratorExit as error:
        raise KeyError(type(error.__context__).__name__) from None


def is_told(generator):
    """What a generator makes of exits, by way of throw() and of close()."""
    told = [next(generator)]
    for call in (
        lambda: generator.throw(GeneratorExit()),
        generator.close,
        lambda: next(generator),
    ):
        try:
            told.append(call())
        except BaseException as error:
            told.append((type(error), str(error), getattr(error, "value", None)))
    return told


@pytest.mark.parametrize("function", [goes_on, returns, replaces])
def test_a_decorated_generator_may_handle_its_exit(function):
    assert is_told(lazy()(function)()) == is_told(function())


@pytest.mark.parametrize("setting", [True, False])
def test_kernels_run_with_the_thread_settings_of_the_call(setting):
    """Engine threads take them over; what was recorded before a change keeps what it had."""
    tiny = wrap(torch.tensor([1e-40]))
    before = [tiny * 1.0 for _ in range(100)]
    if not torch.set_flush_denormal(setting):
        pytest.skip("this processor cannot flush denormals")
    try:
        after = [tiny * 1.0 for _ in range(100)]
    finally:
        torch.set_flush_denormal(False)
    assert all(x.item() != 0 for x in before)
    assert {x.item() == 0 for x in after} == {setting}


def test_kernels_run_with_the_number_of_threads_of_the_call():
    seen = []

    @torch.library.custom_op("lazyeng_test_settings::count", mutates_args=())
    def count(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return x.clone()

    count.register_fake(torch.empty_like)
    usual = torch.get_num_threads()
    try:
        for n in (1, 3, 2):
            torch.set_num_threads(n)
            count(wrap(torch.ones(2)))
    finally:
        torch.set_num_threads(usual)
    synchronize()
    assert seen == [1, 3, 2]


# --- blocks that end while another is left aside


class Suspended:
    """A generator in a block, in a cycle: the collector ends it at any moment."""

    def __init__(self, mode):
        self.me, self.steps = self, self.run(mode)
        next(self.steps)

    def run(self, mode):
        with lazy(mode):
            yield torch.ones(2) * 2


def test_a_block_that_ends_while_apply_is_outside_of_blocks(mode):
    Suspended(mode)
    with lazy(mode):
        torch.arange(3.0).apply_(lambda x: gc.collect() and x + 1)
    assert _C.thread_mode()[1] == 0
    assert type(torch.ones(3) * 2) is torch.Tensor


class Interrupt(BaseException):
    """As KeyboardInterrupt, but for the runner of the tests."""


def interrupts_at(event):
    """A profiler that raises at one of the calls and returns of lazyeng's own Python code, as a
    handler of a signal may."""
    left = iter(range(event))

    def profile(frame, *_):
        ours = frame.f_globals.get("__name__", "").startswith("lazyeng.")
        if ours and next(left, None) is None:
            sys.setprofile(None)
            raise Interrupt

    return profile


def interrupted_everywhere(program):
    """Runs it until no call or return is left at which it was not interrupted: how often it was.
    Each time the thread records no more."""
    for event in range(10_000):
        try:
            program(interrupts_at(event))
            return event
        except Interrupt:
            pass
        finally:
            sys.setprofile(None)
        assert type(torch.ones(1) + 1) is torch.Tensor
    raise AssertionError("it has no end")


def test_an_interrupt_anywhere_while_a_tensor_with_history_is_wrapped():
    """It is wrapped by recording."""
    made = torch.ones(2, requires_grad=True) * 2

    def program(profile):
        sys.setprofile(profile)
        wrap(made)
        sys.setprofile(None)

    assert interrupted_everywhere(program) > 3


def test_an_interrupt_anywhere_at_the_end_of_a_block_leaves_it(mode):
    plain = torch.zeros(3)

    def program(profile):
        with block:
            plain.add_(1)
            sys.setprofile(profile)

    block = lazy(mode)
    times = interrupted_everywhere(program)
    assert times > 3, "as many places as there are"
    lazyeng.synchronize()
    assert plain.tolist() == [times + 1.0] * 3


def test_an_interrupt_anywhere_at_the_beginning_of_a_block_leaves_it(mode):
    def program(profile):
        sys.setprofile(profile)
        with lazy(mode):
            sys.setprofile(None)

    assert interrupted_everywhere(program) > 0
