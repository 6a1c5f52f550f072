"""Failures of the real engine: how long they live, in threads, tasks, processes; and Ctrl-C."""

import asyncio
import contextvars
import gc
import multiprocessing
import pickle
import signal
import threading
import time
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import lazyeng
from lazyeng import LazyError, lazy, synchronize, wrap
from tests.support import fresh
from tests.support.failures import failed, text_of
from tests.support.processes import IMPORTS, alone

# ---- life


class Local:
    """Something a user's frame holds; weakly referable."""


@pytest.mark.parametrize("shown", ["user", "full"])
def test_nothing_is_kept_alive(lazy_mode, shown, no_gc, monkeypatch):
    monkeypatch.setenv("LAZYENG_TRACEBACK", shown)
    gone = {}

    def create():
        local, values, index = Local(), torch.ones(3), torch.tensor([7])
        gone["local"], gone["values"] = weakref.ref(local), weakref.ref(values)
        x, i = wrap(values), wrap(index)
        gone["input"], gone["index"] = weakref.ref(x), weakref.ref(i)
        with lazy(lazy_mode):
            y = x[i]
        gone["failed"] = weakref.ref(y)
        return y * 2

    def read():
        z, mine = create(), Local()
        gone["reader's local"] = weakref.ref(mine)
        for _ in range(2):
            try:
                z.tolist()
            except IndexError as error:
                assert "index 7" in text_of(error)
                gone["error"] = weakref.ref(error)

    read()
    synchronize()
    assert {name: ref() for name, ref in gone.items()} == dict.fromkeys(gone)


def test_memory_of_the_inputs_is_given_back(no_gc):
    """The failure stays (the tensor does); what it was computed from does not."""
    storages = []

    def create():
        values = torch.ones(3)
        storages.append(weakref.ref(values.untyped_storage()))
        with lazy("deferred"):
            return (wrap(values) + 0)[wrap(torch.tensor([7]))]

    bad = create()
    for _ in range(2):
        with pytest.raises(IndexError):
            bad.wait()
    assert storages[0]() is None


def test_python_kernel_is_not_kept_alive(no_gc):
    gone = []

    @torch.library.custom_op("lazyeng_life::holds", mutates_args=())
    def holds(x: torch.Tensor) -> torch.Tensor:
        local = Local()
        gone.append(weakref.ref(local))
        raise ValueError("of a kernel with locals")

    holds.register_fake(torch.empty_like)
    with lazy("deferred"):
        y = holds(wrap(torch.ones(2)))
    with pytest.raises(ValueError, match="with locals"):
        y.wait()
    assert gone[0]() is None


# ---- the stack table


def entries():
    return lazyeng.engine_stats()["stack_table_entries"]


def test_a_million_ops_of_one_line_leave_one_entry():
    x = wrap(torch.ones(1))
    x = x + 1
    synchronize()
    before = entries()
    for _ in range(1_000_000):
        y = x + 1
    synchronize()
    assert y.item() == 3.0
    assert entries() <= before + 2  # that line, and those of this function's other ops


@pytest.mark.parametrize("grad", [False, True])
def test_stacks_of_code_that_is_gone_are_let_go(grad):
    """Distinct stacks, each alive only as long as its tensor: no more than a small rest stays."""
    x = wrap(torch.ones(1)).requires_grad_(grad)
    before = entries()
    codes = []
    for n in range(5000):
        scope = {"x": x}
        exec(compile("\n" * n + "def f(): return x + 1", "<made>", "exec"), scope)
        scope["f"]()
        codes.append(weakref.ref(scope["f"].__code__))
        del scope
    synchronize()
    gc.collect()  # (each function and its globals are a cycle)
    assert entries() < before + 50
    assert sum(code() is not None for code in codes) < 50


# ---- out of memory


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C comes while the n-th exception from now on is built."""

    def at(n):
        left, build = [n], lazyeng.errors.build

        def build_one(*args, **kwargs):
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return build(*args, **kwargs)

        monkeypatch.setattr(lazyeng.errors, "build", build_one)

    return at


@pytest.mark.parametrize("n", range(3))
@pytest.mark.parametrize("held", [True, False])
def test_what_ctrl_c_keeps_synchronize_from_raising_is_raised_by_the_next(n, held, interrupted):
    kept = [wrap(torch.arange(3))[torch.tensor([i])] for i in (5, 6, 7)]
    if not held:
        kept = [one * 2 for one in kept]
    interrupted(n)
    with pytest.raises(KeyboardInterrupt):
        synchronize()
    with pytest.raises(ExceptionGroup) as caught:
        synchronize()
    assert [str(error)[:7] for error in caught.value.exceptions] == [
        f"index {i}" for i in (5, 6, 7)
    ]
    synchronize()


@pytest.mark.parametrize("n", range(2))
def test_what_ctrl_c_keeps_a_block_from_raising_is_raised_later(n, interrupted):
    plain = [torch.zeros(1), torch.zeros(1)]
    interrupted(n)
    with pytest.raises(KeyboardInterrupt), lazy():
        for i, x in enumerate(plain):
            x.copy_(torch.arange(3)[torch.tensor([5 + i])])
    with pytest.raises(ExceptionGroup) as caught:
        synchronize()
    assert [str(error)[:7] for error in caught.value.exceptions] == ["index 5", "index 6"]


def test_a_read_that_ctrl_c_ends_has_told_nobody(interrupted):
    failed = wrap(torch.arange(3))[torch.tensor([5])]
    interrupted(0)
    with pytest.raises(KeyboardInterrupt):
        failed.tolist()
    with pytest.raises(IndexError, match="index 5"):
        synchronize()


def test_ctrl_c_while_a_failure_is_about_to_be_raised(monkeypatch):
    failed = wrap(torch.arange(3))[torch.tensor([5])]
    hide = lazyeng.errors.hide_while_unwinding

    def interrupted(error):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        hide(error)

    monkeypatch.setattr(lazyeng.errors, "hide_while_unwinding", interrupted)
    with pytest.raises(KeyboardInterrupt):
        failed.tolist()
    with pytest.raises(IndexError, match="index 5"):
        synchronize()  # the read has told nobody


class SlowTextError(ValueError):
    interrupted = False

    def __str__(self):
        if SlowTextError.interrupted:
            SlowTextError.interrupted = False
            signal.raise_signal(signal.SIGINT)
        return "slow"


def test_ctrl_c_while_torch_asks_for_the_text(monkeypatch):
    @torch.library.custom_op(f"lazyeng_engine_errors::slow_{time.time_ns()}", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        raise SlowTextError

    slow.register_fake(torch.empty_like)
    failed = slow(wrap(torch.ones(2)))
    build = lazyeng.errors.build

    def build_one(*args, **kwargs):
        built = build(*args, **kwargs)
        SlowTextError.interrupted = True
        return built

    monkeypatch.setattr(lazyeng.errors, "build", build_one)
    with pytest.raises(KeyboardInterrupt):
        failed.tolist()
    monkeypatch.undo()
    SlowTextError.interrupted = False
    with pytest.raises(SlowTextError, match="slow"):
        failed.tolist()


def greedy(name, failures):
    """An op that lacks memory the first `failures` times; and when each call was."""
    calls = []

    @torch.library.custom_op(f"lazyeng_test_memory::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        calls.append(lazyeng.engine_stats()["executed"])
        if len(calls) <= failures:
            raise torch.OutOfMemoryError(f"{name}: lacks 1 GiB")
        return x + 1

    op.register_fake(torch.empty_like)
    return op, calls


def test_out_of_memory_is_tried_again_when_nothing_else_runs(mode):
    op, calls = greedy(f"once_{mode}", failures=1)
    with lazy(mode):
        others = [wrap(torch.ones(2)).exp() for _ in range(100)]
        x = op(others[0])
        synchronize()
    assert x.tolist() == (others[0] + 1).tolist()
    assert len(calls) == 2


def test_out_of_memory_twice_fails_that_op_only(mode):
    op, calls = greedy(f"twice_{mode}", failures=9)
    with lazy(mode):
        good = wrap(torch.ones(2)) + 1
        with pytest.raises(torch.OutOfMemoryError, match="lacks 1 GiB"):
            op(good).tolist()
        assert len(calls) == 2
        assert (good * 2).tolist() == [4.0, 4.0]


def test_out_of_memory_while_writing_is_not_tried_again():
    calls = []

    @torch.library.custom_op("lazyeng_test_memory::writes", mutates_args={"x"})
    def writes(x: torch.Tensor) -> None:
        calls.append(0)
        x.add_(1)
        raise torch.OutOfMemoryError("lacks 1 GiB")

    x = wrap(torch.zeros(2))
    writes(x)
    with pytest.raises(torch.OutOfMemoryError):
        x.tolist()
    assert len(calls) == 1


# ---- threads, tasks, processes


def failed_in_a_thread():
    """Its creation stack has a few frames. Below pytest it has some 40, and each read makes stubs
    of them all: 8000 reads took 43 s beside other tests."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(failed).result()


@pytest.mark.parametrize("same", [True, False])
def test_many_threads_read_failed_tensors(same):
    shared = failed_in_a_thread() if same else None
    barrier, wrong = threading.Barrier(8), []

    def read(n):
        tensor = shared if shared is not None else failed(index=10 + n)
        barrier.wait()
        lengths, roots = set(), set()
        for _ in range(1000):
            try:
                tensor.item()
                wrong.append("no failure")
            except IndexError as error:
                index = 7 if same else 10 + n
                if not str(error).startswith(f"index {index} is"):
                    wrong.append(str(error))
                lengths.add(len(list(traceback.walk_tb(error.__traceback__))))
                roots.add(error.root_id)
                if len(error.__notes__) != 1 or error.__cause__.__cause__ is not None:
                    wrong.append("it grows")
        if (len(lengths), len(roots)) != (1, 1):
            wrong.append((lengths, roots))

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_asyncio_tasks_get_their_own_failure():
    user = contextvars.ContextVar("user")

    async def task(n):
        user.set(n)
        bad = failed(index=10 + n)
        await asyncio.sleep(0)
        with pytest.raises(IndexError, match=f"index {10 + n} ") as caught:
            bad.tolist()
        assert user.get() == n
        await asyncio.sleep(0)
        return caught.value

    async def main():
        return await asyncio.gather(*(task(n) for n in range(20)))

    errors = asyncio.run(main())
    assert len({id(error) for error in errors}) == len({e.root_id for e in errors}) == 20
    assert all("in task" in text_of(error) for error in errors)


def test_asyncio_to_thread_carries_contextvars():
    user = contextvars.ContextVar("user", default=None)

    def read(bad):
        with pytest.raises(IndexError):
            bad.tolist()
        return user.get()

    async def main():
        user.set("somebody")
        return await asyncio.to_thread(read, failed())

    assert asyncio.run(main()) == "somebody"


def read_in_child(bad, queue):
    try:
        bad.tolist()
    except IndexError as error:
        queue.put(error)


def send_from_child(queue):
    try:
        failed().tolist()
    except IndexError as error:
        queue.put(error)


def check_copy(error):
    assert isinstance(error, IndexError) and isinstance(error, LazyError)
    assert str(error) == "index 7 is out of bounds for dimension 0 with size 3"
    assert error.creation_stack[-1].name == "failed"
    assert "created at failures.py" in error.__notes__[0]


def test_failure_is_read_in_a_forked_child():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=read_in_child, args=(failed(), queue))
    child.start()
    check_copy(queue.get())
    child.join(30)
    assert child.exitcode == 0


def test_failure_comes_from_a_spawned_child():
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=send_from_child, args=(queue,))
    child.start()
    check_copy(queue.get())
    child.join(30)
    assert child.exitcode == 0


def test_raised_failure_survives_pickle():
    with pytest.raises(IndexError) as caught:
        (failed() * 2).tolist()
    again = pickle.loads(pickle.dumps(caught.value))
    check_copy(again)
    assert again.path == caught.value.path and again.root_id == caught.value.root_id


# ---- exit


def run(body):
    return alone(body, head=IMPORTS)


def test_one_warning_for_each_unseen_failure_at_exit(lazy_mode):
    done = run(f"""
        with lazy("{lazy_mode}"):
            x, kept = wrap(torch.ones(3)), []
            for n in range(3):
                bad = x.take(wrap(torch.tensor([10 + n])))
                kept += [bad, bad + 1, bad.exp()]
            wrap(torch.ones(3)).take(wrap(torch.tensor([20])))
            seen = x.take(wrap(torch.tensor([30])))
        try:
            seen.wait()
        except IndexError:
            pass
    """)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 4 and all("UnseenFailureWarning" in line for line in lines)
    for index in (10, 11, 12, 20):
        assert sum(f"tried to access index {index} " in line for line in lines) == 1
    assert all("aten.take recorded at <string>:" in line for line in lines)


@pytest.mark.parametrize("end", ["pass", "del first", "del first, second"])
def test_unseen_failure_is_one_line_if_warnings_are_errors(end):
    """There is no place where it could be raised: not a destructor, not the end of a program."""
    done = run(f"""
        import warnings
        warnings.simplefilter("error")
        first = wrap(torch.ones(3)).take(wrap(torch.tensor([10])))
        second = wrap(torch.ones(3)).take(wrap(torch.tensor([11])))
        (wrap(torch.ones(1)) + 1).wait()
        {end}
    """)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done.stderr
    for index in (10, 11):
        assert sum(f"index {index} " in line and "<string>:" in line for line in lines) == 1
    assert all("UnseenFailureWarning: aten.take recorded" in line for line in lines)


def test_unseen_exit_of_a_kernel_names_op_and_line():
    done = run("""
        @torch.library.custom_op("test::exits", mutates_args=())
        def exits(x: torch.Tensor) -> torch.Tensor:
            raise SystemExit("no")
        exits.register_fake(torch.empty_like)
        unseen = exits(wrap(torch.ones(2)))
    """)
    assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr
    assert "test.exits" in done.stderr and "recorded at <string>:8 failed" in done.stderr


def test_other_warnings_come_too_if_warnings_are_errors():
    done = run("""
        import warnings
        warnings.simplefilter("error")
        bad = wrap(torch.ones(3)).take(wrap(torch.tensor([10])))
        one, two = wrap(torch.ones(1)).std(), wrap(torch.ones(1)).var()
    """)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 3, done.stderr
    assert sum("degrees of freedom" in line for line in lines) == 2


# ---- Ctrl-C


GATE = """
import os, signal, threading, torch, lazyeng
from lazyeng import lazy, synchronize, wrap
from tests.support.gate import Gate

gate = Gate()  # closed while a wait is to be interrupted

def interrupt(after):
    threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
"""


def test_ctrl_c_during_an_op_run_at_the_call_keeps_its_failure():
    """The wait ends at once; the op still runs, and its exception is not lost."""
    done = alone("""
        with lazy("async"):
            x = gate(wrap(torch.ones(2)))
            index = (x * -5).long()
            interrupt(0.3)
            try:
                torch.bincount(index)   # needs values, and fails
            except KeyboardInterrupt:
                print("interrupted", not x.is_ready())
            gate.open()
        assert x.tolist() == [1.0, 1.0]
        try:
            synchronize()
        except RuntimeError as error:
            print(error.op, str(error)[:13], "<string>:" in error.__notes__[0])
            print(isinstance(error, lazyeng.LazyError))
        synchronize()
    """, head=GATE)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "interrupted True\naten.bincount bincount only True\nTrue\n"
    assert done.stderr == ""


def test_failures_that_nobody_asks_for_are_bounded():
    """The log keeps 20,000 at most, and warns of those before."""
    done = fresh.run("""if True:
        import os, time, warnings, torch, lazyeng
        from lazyeng import wrap
        x, far = wrap(torch.ones(3)), wrap(torch.tensor([7]))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(17_000): x.take(far)
            while lazyeng.engine_stats()["pending_ops"]: time.sleep(0.01)
            print(5_000 < len(caught) < 13_000, flush=True)
        os._exit(0)  # (the rest is not to be warned of)
    """)
    assert done.stdout == "True\n", done.stderr[-3000:]


@pytest.mark.parametrize("lazily", [True, False])
def test_what_a_signal_handler_raises_in_a_step_is_raised_as_it_is(lazily, mode):
    """100 times, at any moment of a training step; each next step is eager's, bit for bit."""
    done = fresh.run(f"""if True:
        import random, signal, time, torch, lazyeng
        from lazyeng import lazy, wrap
        from tests.out_of_memory import Training
        torch.set_num_threads(1)
        class Injected(Exception): pass
        def handler(*_): raise Injected()
        signal.signal(signal.SIGALRM, handler)
        random.seed(0)
        kind = {"momentum" if lazily else "adamw"!r}
        eager = Training(kind)
        eager.restore(eager.begin)
        expected = eager.step(), eager.snapshot()
        training = Training(kind)
        if {lazily}: wrap(training.model)
        def step():
            with lazy({mode!r}): return training.step()
        for _ in range(3): step()
        training.restore(training.begin)
        begin = time.perf_counter(); step(); took = time.perf_counter() - begin
        raised = 0
        until = time.time() + 60
        while raised < 100 and time.time() < until:
            training.restore(training.begin)
            try:
                signal.setitimer(signal.ITIMER_REAL, random.random() * took + 1e-6)
                step()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Injected:
                raised += 1
            torch.set_grad_enabled(True)  # (it may have come within torch's own no_grad.__exit__)
            lazyeng.synchronize()
            training.restore(training.begin)
            assert (step(), training.snapshot()) == expected, raised
        print(raised >= 20)
    """)  # fmt: skip
    assert done.stdout == "True\n", done.stderr[-3000:]


def test_ctrl_c_during_a_read_leaves_the_engine_usable():
    done = alone("""
        with lazy("async"):
            x = gate(wrap(torch.ones(2)))
            bad = x.take(wrap(torch.tensor([7])))
        for read in (lambda: bad.item(), synchronize):
            interrupt(0.2)
            try:
                read()
            except KeyboardInterrupt:
                print("interrupted", not x.is_ready())
        gate.open()
        try:
            bad.item()
        except IndexError as error:
            print("failed", len(error.__notes__))
        print((x + 1).tolist())
    """, head=GATE)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "interrupted True\ninterrupted True\nfailed 1\n[2.0, 2.0]\n"


def test_a_failure_is_told_of_where_nothing_can_be_imported():
    """Its tensor may die anywhere: in a namedtuple's constructor, which has no builtins."""
    code = """
import torch, lazyeng
y = lazyeng.wrap(torch.arange(3))[torch.tensor([7])]
while not y.is_ready(): pass
box = [y]
del y
eval("lambda: drop()", {"__builtins__": {}, "drop": box.clear})()
"""
    done = alone(code)
    assert done.returncode == 0 and "UnseenFailureWarning: aten.index" in done.stderr, done.stderr
