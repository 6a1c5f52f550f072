"""Memory that is changed without a trace while a recorded call has yet to read it.

Eager gives a call what its arguments held when it was called; so must a recorded one, whoever
writes the memory afterwards: numpy, DLPack, a C library, `.data` (csrc/run/plain/unseen_writers.h).
Where that would cost too much, the change must at least not go unnoticed.
"""

import ctypes
import gc

import numpy as np
import pytest
import torch
from torch import nn

import lazyeng
from lazyeng import lazy

MODES = ("async", "deferred")
SMALL, LARGE = 64, 600_000  # elements; LARGE is too much to copy


def numpys(n):
    """A tensor over a numpy array, and what writes the array."""
    array = np.ones(n, dtype=np.float32)
    return torch.from_numpy(array), lambda value: array.fill(value)


def buffers(n):
    array = bytearray(np.ones(n, dtype=np.float32).tobytes())
    view = np.frombuffer(array, dtype=np.float32)
    return torch.frombuffer(array, dtype=torch.float32), lambda value: view.fill(value)


def dlpacks(n):
    array = np.ones(n, dtype=np.float32)
    return torch.from_dlpack(array), lambda value: array.fill(value)


def foreign_library(n):
    """A C library that has the address of memory that is numpy's."""
    array = np.ones(n, dtype=np.float32)

    def write(value):
        other = np.full(n, value, dtype=np.float32)
        ctypes.memmove(array.ctypes.data, other.ctypes.data, other.nbytes)

    return torch.from_numpy(array), write


def lent_to_numpy(n):
    """torch's memory, of which numpy has an array."""
    tensor = torch.ones(n)
    array = tensor.numpy()
    return tensor, lambda value: array.fill(value)


def lent_by_asarray(n):
    tensor = torch.ones(n)
    array = np.asarray(tensor.view(2, -1))[1:]
    array = np.asarray(tensor)
    return tensor, lambda value: array.fill(value)


def lent_by_dlpack(n):
    tensor = torch.ones(n)
    other = torch.from_dlpack(tensor.__dlpack__())
    return tensor, lambda value: _outside(other, value)


def _outside(other, value):
    other.numpy().fill(value)


FOREIGN = [numpys, buffers, dlpacks, foreign_library, lent_to_numpy, lent_by_asarray]
FOREIGN += [lent_by_dlpack]


def busy(mode):
    """A lazy tensor whose op keeps the worker for a while: what follows waits behind it."""
    with lazy(mode):
        a = torch.ones(700, 700) * 1
        for _ in range(6):
            a = (a @ a) * 1e-3
    return a.flatten()[0] * 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", (SMALL, LARGE))
@pytest.mark.parametrize("memory", FOREIGN)
def test_in_a_block(memory, n, mode):
    tensor, write = memory(n)
    with lazy(mode):
        zero = torch.zeros(n) * 1
        results = []
        for value in range(1, 6):
            write(value)
            results.append(
                (zero + tensor, torch.mul(tensor, 2), tensor[1:].sum() if n < 100 else None)
            )
        write(9)
    for value, (total, twice, rest) in enumerate(results, 1):
        assert total.min().item() == total.max().item() == value
        assert twice.min().item() == twice.max().item() == 2 * value
        if rest is not None:
            assert rest.item() == value * (n - 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", (SMALL, LARGE))
@pytest.mark.parametrize("memory", FOREIGN)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
def test_outside_of_blocks(wrapped, memory, n, mode):
    """Arguments, plain or wrapped, beside lazy ones, behind an op that is still pending."""
    tensor, write = memory(n)
    x = lazyeng.wrap(tensor) if wrapped else tensor
    late = busy(mode)
    results = []
    for value in range(1, 4):
        write(value)
        results.append(late + x)
    write(9)
    for value, total in enumerate(results, 1):
        assert total.min().item() == total.max().item() == value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("memory", FOREIGN)
def test_writes_are_there_for_all_to_see(memory, mode):
    """What is written into such memory is complete when the call returns."""
    tensor, write = memory(SMALL)
    again = np.from_dlpack(tensor)
    with lazy(mode):
        tensor.add_(2)
        assert again.tolist() == [3.0] * SMALL
        write(5)
        twice = tensor * 2
        tensor.zero_()
        assert again.tolist() == [0.0] * SMALL
    assert twice.tolist() == [10.0] * SMALL


@pytest.mark.parametrize("mode", MODES)
def test_memory_lent_after_the_call(mode):
    """What was recorded before numpy got the array has run by then."""
    x = torch.ones(SMALL)
    with lazy(mode):
        y = x * 3
        array = x.numpy()
        array.fill(7)
        z = y * 2
        of_lazy = y.numpy()
        of_lazy.fill(1)
        last = y + z
    assert z.tolist() == [6.0] * SMALL and last.tolist() == [7.0] * SMALL


@pytest.mark.parametrize("mode", MODES)
def test_memory_of_a_lazy_tensor_lent_before_and_after(mode):
    with lazy(mode):
        y = torch.ones(SMALL) * 3
        array = y.numpy()
        first = y + 1
        array.fill(0)
        second = y + 1
        y.add_(5)
        assert array.tolist() == [5.0] * SMALL
    assert first.tolist() == [4.0] * SMALL and second.tolist() == [1.0] * SMALL


@pytest.mark.parametrize("mode", MODES)
def test_an_array_that_is_gone_costs_nothing(mode):
    x = torch.ones(LARGE)
    assert x.numpy().sum() == LARGE
    gc.collect()
    with lazy("deferred"):
        y = x * 2
        assert not y.is_ready()
        array = x.numpy()
        z = x * 2
        assert z.is_ready()
        del array
        last = x * 2
        assert not last.is_ready()
    assert last.sum().item() == 2 * LARGE


@pytest.mark.parametrize("mode", MODES)
def test_small_memory_whose_address_is_known(mode):
    x, other = torch.ones(SMALL), np.full(SMALL, 5, dtype=np.float32)
    with lazy(mode):
        address = x.data_ptr()
        y = x * 2
        ctypes.memmove(address, other.ctypes.data, other.nbytes)
        z = x * 2
    assert y.tolist() == [2.0] * SMALL and z.tolist() == [10.0] * SMALL


CHANGES = {
    "data": lambda x: x.data.fill_(9),
    "kept data": None,
    "in place": lambda x: x.fill_(9),
    "view": lambda x: x[:].fill_(9),
    "detach": lambda x: x.detach().fill_(9),
    "storage": lambda x: x.untyped_storage().fill_(0),
    "numpy": lambda x: x.numpy().fill(9),
    "dlpack": lambda x: torch.from_dlpack(x).numpy().fill(9),
    "memmove": lambda x: ctypes.memset(x.data_ptr(), 0, x.nbytes),
}


def change_by(name, x):
    if name != "kept data":
        return CHANGES[name]
    kept = x.data
    return lambda _: kept.fill_(9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHANGES)
def test_small_plain_arguments_outside_of_blocks(name, mode):
    """They have the values of the call, as in eager, also if they are changed openly."""
    x = torch.ones(SMALL)
    change = change_by(name, x)
    late = busy(mode)
    y = late + x
    change(x)
    assert y.tolist() == [1.0] * SMALL


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ("data", "kept data", "in place", "detach"))
def test_large_plain_arguments_outside_of_blocks(name, mode):
    """Too much to copy: they have the values of the call, or the read says what happened."""
    x = torch.ones(LARGE)
    change = change_by(name, x)
    late = busy("deferred")
    with lazy("deferred"):
        y = late + x
    change(x)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().item()


def test_data_that_is_forgotten_has_been_written_all_the_same():
    """The counters of 20 tensors that are gone are given up; what was written through them counts,
    and that of reads which come after it is right."""
    x = torch.ones(LARGE)
    late = busy("deferred")
    with lazy("deferred"):
        y = late + x
    for i in range(20):
        x.data.fill_(i)
    with lazy("deferred"):
        z = x * 2
        for _ in range(20):
            assert x.data is not x
    assert z[0].item() == 38
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().item()


@pytest.mark.parametrize("mode", MODES)
def test_data_in_a_block(mode):
    """Through `.data` a block writes in order."""
    x = torch.ones(SMALL)
    with lazy(mode):
        y = x * 2
        x.data.fill_(9)
        z = x * 2
        kept = x.data
        u = x * 2
        kept.fill_(1)
        v = x * 2
    assert [t[0].item() for t in (y, z, u, v)] == [2, 18, 18, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_wrapped_module_fed_from_one_buffer(mode):
    """The loop of reinforcement learning: one buffer for the observations of every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))

    def run(forward):
        rng = np.random.default_rng(0)
        buffer = np.zeros((4, 8), dtype=np.float32)
        outputs = []
        for _ in range(20):
            buffer[:] = rng.standard_normal((4, 8))
            outputs.append(forward(torch.from_numpy(buffer)))
        return [lazyeng.unwrap(y).detach() for y in outputs]

    def in_a_block(forward):
        with lazy(mode):
            return run(forward)

    expected = run(model)
    got = in_a_block(model)
    lazyeng.wrap(model)
    for result in (got, in_a_block(model), run(model), run(lambda x: model(lazyeng.wrap(x)))):
        for ours, theirs in zip(result, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_a_buffer_that_changes(mode):
    """What autograd keeps is the tensor itself: as in eager, it is what is there in the backward
    pass."""

    def run():
        buffer = np.ones(4, dtype=np.float32)
        w = torch.ones(4, requires_grad=True)
        y = (w * torch.from_numpy(buffer)).sum()
        buffer[:] = 3
        y.backward()
        return y, w.grad

    expected = run()
    with lazy(mode):
        got = run()
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(lazyeng.unwrap(ours.detach()), theirs.detach())


@pytest.mark.parametrize("mode", MODES)
def test_copies_look_as_the_original(mode):
    """Strides, offsets, conjugation and overlap are those of the argument."""
    array = np.arange(64, dtype=np.float32)
    looks = {
        "offset": lambda t: t[3:19],
        "transposed": lambda t: t.view(8, 8).t(),
        "strided": lambda t: t[1::3],
        "expanded": lambda t: t[2:4, None].expand(2, 5),
        "overlapping": lambda t: t.as_strided((4, 4), (2, 1), 5),
        "conjugate": lambda t: torch.view_as_complex(t.view(32, 2)).conj(),
        "negative": lambda t: torch.view_as_complex(t.view(32, 2)).conj().imag,
        "empty": lambda t: t[:0],
        "number": lambda t: t[7],
        "bytes": lambda t: t.view(torch.uint8)[1:9],
    }
    for name, look in looks.items():
        array[:] = np.arange(64)
        plain = look(torch.from_numpy(array))
        expected = plain + plain, plain.clone(), torch.mul(plain, 3)
        with lazy(mode):
            got = plain + plain, plain.clone(), torch.mul(plain, 3)
            array[:] = 0
        for ours, theirs in zip(got, expected, strict=True):
            ours = lazyeng.unwrap(ours)
            assert ours.stride() == theirs.stride(), name
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("mode", MODES)
def test_views_share_the_memory(mode):
    """A view is no read: it has what is there when it is read."""
    array = np.ones(8, dtype=np.float32)
    with lazy(mode):
        view = torch.from_numpy(array)[2:]
        array[:] = 4
        twice = view * 2
        array[:] = 5
    assert view.tolist() == [5.0] * 6 and twice.tolist() == [8.0] * 6


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_that_is_pending_keeps_no_array(mode):
    import weakref

    class Array(np.ndarray):
        pass

    with lazy(mode):
        array = np.ones(8, dtype=np.float32).view(Array)
        alive = weakref.ref(array)
        y = torch.from_numpy(array) * 2
        del array
        gc.collect()
        assert mode == "async" or alive() is None
    assert y.tolist() == [2.0] * 8
