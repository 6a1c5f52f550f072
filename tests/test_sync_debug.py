"""set_sync_debug_mode, allow_sync and the pytest option: every real wait is reported, no other."""

import _thread
import asyncio
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch

import lazyeng
from lazyeng import SyncError, SyncWarning, allow_sync, lazy, set_sync_debug_mode, synchronize, wrap

HERE = os.path.basename(__file__)


@pytest.fixture(autouse=True)
def off():
    yield
    set_sync_debug_mode("off")


def pending(value=1.0):
    """A lazy tensor that nothing has computed yet."""
    with lazy("deferred"):
        return wrap(torch.full((2,), value)) + 1


def waits_of(function):
    """What `function` reports in mode "warn"."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        set_sync_debug_mode("warn")
        try:
            function()
        finally:
            set_sync_debug_mode("off")
    return [(w.message.wait, w) for w in caught if issubclass(w.category, SyncWarning)]


READS = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "__array__": lambda x: x.__array__(),
    "__bool__": lambda x: bool(x.sum()),
    "__float__": lambda x: float(x.sum()),
    "__int__": lambda x: int(x.sum()),
    "__format__": lambda x: f"{x.sum():.1f}",
    "dlpack": lambda x: torch.from_dlpack(x),
    "data_ptr": lambda x: x.data_ptr(),
    "untyped_storage": lambda x: x.untyped_storage(),
    "wait": lambda x: x.wait(),
    "unwrap": lambda x: lazyeng.unwrap([x]),
    "synchronize": lambda x: synchronize(),
    "__deepcopy__": lambda x: __import__("copy").deepcopy(x),
    "": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("name", READS)
def test_a_wait_is_reported_at_its_line(name):
    x = pending()
    line = READS[name].__code__.co_firstlineno

    def read():
        with lazy("deferred"):
            READS[name](x)

    (reported,) = waits_of(read)
    wait, warning = reported
    assert (os.path.basename(wait.filename), wait.lineno) == (HERE, line)
    assert (warning.filename, warning.lineno) == (wait.filename, wait.lineno)
    assert name in wait.reason and wait.microseconds > 0
    assert wait.op.startswith("aten.") or name == "synchronize"
    for part in (f"{HERE}:{line}", wait.op, wait.reason, f"{wait.microseconds:.0f} us"):
        assert part in str(warning.message)


@pytest.mark.parametrize("name", READS)
def test_reading_what_is_ready_is_no_wait(name):
    x = pending()
    x.sum()
    synchronize()
    if name in ("tolist", "numpy", "data_ptr", "wait", "unwrap", "synchronize", ""):
        assert waits_of(lambda: READS[name](x)) == []


def test_repr_of_what_is_ready_is_no_wait(mode):
    """It computes (which values to show, how many digits), and records none of that."""
    x = pending().wait()
    plain = torch.ones(2)

    def read():
        with lazy(mode):
            assert "2." in repr(x) and "1." in repr(plain) and "1." in f"{plain}"

    before = lazyeng.engine_stats()["recorded"]
    assert waits_of(read) == []
    assert lazyeng.engine_stats()["recorded"] == before


def test_a_plain_tensor_is_shown_with_what_is_recorded():
    p = torch.zeros(2)

    def read():
        with lazy("deferred"):
            p.add_(1)
            assert repr(p) == "tensor([1., 1.])"

    ((wait, _),) = waits_of(read)
    assert wait.op == "aten.add_.Tensor"


@pytest.mark.parametrize("name, read", [
    ("Tensor.numpy", lambda p: p.numpy()), ("Tensor.tolist", lambda p: p.tolist()),
    ("Tensor.__repr__", repr), ("Tensor.__deepcopy__", __import__("copy").deepcopy),
    ("Adam.step", lambda p: step(torch.optim.Adam, p)),
    ("clip_grad_norm_",
     lambda p: torch.nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)),
])  # fmt: skip
def test_the_function_that_waits_is_named_without_its_decorators(name, read):
    p = torch.zeros(2, requires_grad=not name.startswith("Tensor"))

    def program():
        with lazy("deferred"), torch.no_grad():
            p.grad = torch.ones(2) * 2
            p.add_(1)
            read(p)

    # (A worker may have done it all before numpy() waits: then nothing waited.)
    tries = ([wait.reason for wait, _ in waits_of(program)] for _ in range(20))
    reasons = next((found for found in tries if found), [])
    assert any(reason.startswith(f"{name}: ") for reason in reasons), reasons
    assert not any("<locals>" in reason for reason in reasons)


def step(optimizer, p):
    optimizer([p]).step()


def test_code_without_a_module_name():
    def program():
        exec("x.tolist()", {"x": pending()})

    assert len(waits_of(program)) == 1


def test_the_op_is_the_one_that_is_waited_for():
    with lazy("deferred"):
        x = pending().exp()
    ((wait, _),) = waits_of(lambda: x.tolist())
    assert wait.op == "aten.exp"


def test_other_places_that_wait():
    def block():
        p = torch.zeros(2)
        with lazy("deferred"):
            p.add_(pending())

    def outside():  # (what it waits for starts before it waits: milliseconds, to be seen waiting)
        with lazy("deferred"):
            product = wrap(torch.ones(700, 700)) @ torch.ones(700, 700)
        torch.zeros(700, 700).add_(product)

    def generator():
        with lazy("deferred"):
            torch.randn_like(wrap(torch.ones(2)))
            torch.get_rng_state()

    def plain_read():
        p = torch.zeros(2)
        with lazy("deferred"):
            p.add_(1)
            p.numpy()

    for program, reason in (
        (block, "lazy.__exit__"), (outside, "outside lazy()"), (generator, "generator"),
        (plain_read, "read"),
    ):  # fmt: skip
        found = [wait for wait, _ in waits_of(program)]
        assert any(reason in wait.reason for wait in found), (program, found)
        assert {os.path.basename(wait.filename) for wait in found} == {HERE}


@pytest.mark.parametrize("lazy_counter", [False, True])
def test_a_counter_that_is_read_each_step_waits_for_nothing_else(lazy_counter):
    x = torch.ones(300, 300) / 300
    count = torch.zeros(())
    with lazy():
        count = wrap(count) if lazy_counter else count
        count += 1
        assert count.item() == 1
        for _ in range(30):
            x = x @ x
        set_sync_debug_mode("error")
        try:
            count += 1
            assert count.item() == 2
            count += x.sum() * 0  # not a counter's step: follows the products
            with pytest.raises(SyncError):
                count.item()
        finally:
            set_sync_debug_mode("off")


def test_microseconds_are_those_of_the_wait():
    @torch.library.custom_op("lazyeng_sync::sleeps", mutates_args=())
    def sleeps(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return x.clone()

    sleeps.register_fake(torch.empty_like)
    with lazy("deferred"):
        x = sleeps(wrap(torch.ones(2)))
    ((wait, _),) = waits_of(lambda: x.tolist())
    assert 4e4 < wait.microseconds < 5e6 and wait.op == "lazyeng_sync.sleeps"


def test_error_mode_raises_after_the_wait():
    x = pending()
    set_sync_debug_mode("error")
    with pytest.raises(SyncError, match=f"{HERE}:.*aten.add.*tolist") as caught:
        x.tolist()
    names = [entry.name for entry in caught.traceback]
    assert names == ["test_error_mode_raises_after_the_wait"]
    assert x.tolist() == [2.0, 2.0]  # it is complete


def test_error_mode_leaves_the_block_and_its_writes_complete():
    p = torch.zeros(2)
    set_sync_debug_mode("error")
    with pytest.raises(SyncError), lazy("deferred"):
        p.add_(1)
    assert p.tolist() == [1.0, 1.0]
    assert type(torch.ones(1) + 1) is torch.Tensor


def test_exception_on_its_way_out_of_a_block_is_not_masked():
    p = torch.zeros(2)
    set_sync_debug_mode("error")
    with pytest.raises(KeyError) as caught, lazy("deferred"):
        p.add_(1)
        raise KeyError("mine")
    assert any("SyncError" in note for note in caught.value.__notes__)


def test_failure_of_a_block_goes_before_its_wait():
    p = torch.zeros(2)
    set_sync_debug_mode("error")
    with pytest.raises(IndexError), lazy("deferred"):
        p.copy_(p[torch.tensor([7, 7])])


def test_failed_tensor_raises_its_failure_at_the_next_read():
    with lazy("deferred"):
        bad = wrap(torch.ones(2)).take(wrap(torch.tensor([5])))
    set_sync_debug_mode("error")
    with pytest.raises(SyncError):
        bad.tolist()
    with pytest.raises(IndexError):
        bad.tolist()


def test_allow_sync():
    @allow_sync("a metric")
    def metric(x):
        return x.tolist()

    set_sync_debug_mode("error")
    assert metric(pending()) == [2.0, 2.0]
    with allow_sync("outer"), allow_sync("inner"):
        pending().tolist()
    with pytest.raises(SyncError):
        pending().tolist()
    with allow_sync("turned on inside"):
        set_sync_debug_mode("off")
        set_sync_debug_mode("error")
        pending().tolist()
    with pytest.raises(SyncError):
        pending().tolist()


def test_allow_sync_of_functions_that_are_suspended():
    @allow_sync("a log")
    def values(count):
        for _ in range(count):
            yield pending().tolist()
        return pending().tolist()

    @allow_sync("a log")
    async def value():
        await asyncio.sleep(0)
        return pending().tolist()

    @allow_sync("a log")
    async def stream():
        yield pending().tolist()
        await asyncio.sleep(0)
        yield pending().tolist()

    async def collected():
        return [x async for x in stream()]

    set_sync_debug_mode("error")
    steps = values(2)
    assert next(steps) == [2.0, 2.0]
    with pytest.raises(SyncError):  # not between two steps
        pending().tolist()
    assert list(steps) == [[2.0, 2.0]]
    assert asyncio.run(value()) == [2.0, 2.0]
    assert asyncio.run(collected()) == [[2.0, 2.0]] * 2


def test_wrong_arguments():
    with pytest.raises(ValueError, match="unknown mode 'loud', expected one of off, warn, error"):
        set_sync_debug_mode("loud")
    with pytest.raises(ValueError, match="allow_sync"):
        allow_sync(" ")
    with pytest.raises(TypeError, match="got int"):
        allow_sync(3)  # type: ignore[arg-type]


def test_mode_is_the_threads_own():
    seen = []

    def other():
        seen.append(pending().tolist())

    set_sync_debug_mode("error")
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [[2.0, 2.0]]


def test_warning_that_a_filter_makes_an_error():
    x = pending()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyncWarning)
        set_sync_debug_mode("warn")
        with pytest.raises(SyncWarning):
            x.tolist()


SUITE = """
import torch, lazyeng
from lazyeng import allow_sync, wrap

x = wrap(torch.ones(300, 300))

def test_waits():
    with lazyeng.lazy("deferred"):
        y = x @ x
    y.tolist()

def test_may_wait():
    with lazyeng.lazy("deferred"):
        y = x @ x
    with allow_sync("the result is compared"):
        y.tolist()

def test_does_not_wait():
    x @ x
"""


@pytest.mark.parametrize(("mode", "failed"), [("error", 1), ("off", 0), ("warn", 0)])
def test_pytest_option(mode, failed, tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_lazyeng", "-p", "no:cacheprovider",
         f"--lazyeng-sync={mode}", "test_suite.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path[1:]])},
    )  # fmt: skip
    assert ("1 failed, 2 passed" if failed else "3 passed") in done.stdout, done.stdout
    assert ("SyncError" in done.stdout) == bool(failed)
    assert ("test_waits" in done.stdout) == (mode != "off")
    assert ("SyncWarning" in done.stdout) == (mode == "warn")


def test_a_wait_of_a_thread_without_python_code(tmp_path, monkeypatch):
    """As threads of other libraries are."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    x = y = wrap(torch.ones(200, 200))
    with lazyeng.profile(tmp_path / "trace.json"):
        with lazy("deferred"):
            for _ in range(20):
                y = y @ x
        done = threading.Lock()
        done.acquire()
        _thread.start_new_thread(torch.equal, (y, y))
        _thread.start_new_thread(done.release, ())
        assert done.acquire(timeout=60)
        y.wait()
    time.sleep(0.1)
    assert not unraisable
