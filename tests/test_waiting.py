"""What small operators see of the thread that waits for them: nothing."""

import json
import linecache
import threading
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lazyeng
from lazyeng import lazy, wrap


def chain(x, w):
    for _ in range(3):
        x = (x @ w).tanh()
    return x


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def pending():
    """Of three small operators, not run; and what they give."""
    x, w = torch.rand(8, 8), torch.rand(8, 8)
    with lazy("deferred"):
        chain(x, w).wait()
        y = chain(x, w)
    assert not y.is_ready()
    return y, chain(x, w)


def test_a_dispatch_mode_of_the_reader_sees_nothing_of_them(pending):
    y, expected = pending
    with Seen() as seen:
        y.wait()
        assert seen.names == []
        x = torch.ones(2) + 1  # the mode is there again
    assert "add.Tensor" in seen.names
    assert torch.equal(lazyeng.unwrap(y), expected)
    assert x.tolist() == [2.0, 2.0]


def test_inference_mode_of_the_reader_is_not_theirs(pending):
    y, expected = pending
    with torch.inference_mode():
        y.wait()
        assert torch.is_inference_mode_enabled()
    plain = lazyeng.unwrap(y)
    assert not plain.is_inference()
    assert torch.equal(plain, expected)


def test_autocast_of_the_reader_is_not_theirs(pending):
    y, expected = pending
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y.wait()
        assert (torch.rand(4, 4) @ torch.rand(4, 4)).dtype is torch.bfloat16
    assert torch.equal(lazyeng.unwrap(y), expected)


def test_a_transform_of_the_reader_is_not_theirs(pending):
    y, expected = pending

    def read(x):
        y.wait()
        return x * 2

    assert torch.equal(torch.func.vmap(read)(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(lazyeng.unwrap(y), expected)


def test_saved_tensor_hooks_and_grad_mode_are_there_again(pending):
    y, _ = pending
    packed = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t)
    x = torch.ones(3, requires_grad=True)
    with hooks:
        y.wait()
        assert packed == []
        assert torch.is_grad_enabled()
        x.exp().sum().backward()
    assert packed
    assert x.grad is not None


def test_settings_of_the_recording_thread_are_not_the_readers():
    """Flushing denormals is a setting of the thread; small operators bring theirs along."""
    tiny = torch.full((4,), 1e-40)
    found = []

    def record():
        torch.set_flush_denormal(True)
        with lazy("deferred"):
            found.append((tiny + 0).tanh() * 1)

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert found[0].tolist() == [0.0] * 4  # as eager on that thread
    assert (tiny * 1).tolist() != [0.0] * 4  # this thread keeps denormals


def test_kernels_that_make_tensors_make_plain_ones(lazy_mode):
    """In a backward pass factories give lazy tensors; not to kernels that the thread runs there."""
    x = wrap(torch.rand(4, 6)).requires_grad_()
    norm = torch.nn.BatchNorm1d(6)

    def hook(gradient):
        torch.manual_seed(0)
        y = torch.nn.functional.dropout(gradient.tanh(), 0.3)
        read.append(norm(y).detach().tolist())

    read = []
    with lazy(lazy_mode):
        for _ in range(5):
            y = x.exp()
            y.register_hook(hook)
            y.sum().backward()
    assert read == read[:1] * 5


def test_warnings_of_kernels_name_the_line_that_recorded():
    x = wrap(torch.rand(3, 4))
    with lazy("deferred"):
        y = torch.linalg.qr(x)[0] + torch.rand(3, 3)
        z = torch.ones(2, dtype=torch.complex64).to(torch.float32) + 1  # LINE
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        z.wait()
        y.wait()
    lines = [linecache.getline(w.filename, w.lineno) for w in caught]
    assert [line for line in lines if "# LINE" in line] == lines


def test_failures_are_those_of_the_operators():
    with pytest.raises(torch.linalg.LinAlgError) as caught, lazy("deferred"):
        (torch.linalg.inv(torch.zeros(3, 3)) + 1).sum().item()
    assert caught.value.op.startswith("aten.")  # type: ignore[attr-defined]
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_many_threads_read_small_results():
    x = torch.rand(8, 8)
    w = wrap(torch.rand(8, 8))
    expected = chain(x, lazyeng.unwrap(w))
    wrong = []

    def work():
        for _ in range(200):
            y = chain(x, w)
            if not torch.equal(lazyeng.unwrap(y), expected):
                wrong.append(y)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def threads_of_runs(read, tmp_path):
    """Names of the threads on which what `read` waits for ran."""
    path = tmp_path / "trace.json"
    with lazyeng.profile(str(path)):
        read()
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {names[e["tid"]] for e in events if e.get("cat") in ("run", "group")}


def test_small_operators_run_on_the_waiting_thread(tmp_path):
    x, w = torch.rand(8, 8), torch.rand(8, 8)

    def names():
        with lazy("deferred"):
            y = chain(x, w)
            return threads_of_runs(lambda: lazyeng.unwrap(y), tmp_path)

    # (A thread that is not scheduled for 2 ms asks for signals next, and leaves ops to a worker.)
    assert any(not any(n.startswith("lazyeng") for n in found) and found
               for found in (names() for _ in range(10)))  # fmt: skip


def test_large_operators_are_left_to_the_engine(tmp_path):
    """A wait can be interrupted; an operator that runs on the waiting thread cannot."""
    x, w = torch.rand(1500, 1500), torch.rand(1500, 1500)
    with lazy("deferred"):
        y = chain(x, w)
        names = threads_of_runs(lambda: lazyeng.unwrap(y), tmp_path)
    assert all(name.startswith("lazyeng") for name in names) and names
