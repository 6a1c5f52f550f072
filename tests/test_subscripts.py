"""x[key] and x[key] = value of LazyTensors, for keys of numbers (csrc/record/methods/subscripts.h)
and for those left to torch: as in eager."""

import operator
import random
from typing import Any

import pytest
import torch

import lazyeng
from lazyeng import LazyTensor, lazy, wrap
from tests.support.outcomes import Raised, outcome

SHAPES = [(), (5,), (4, 3), (3, 1, 4), (2, 3, 2, 3), (0, 3), (3, 0)]


def random_bound(choice):
    return choice.choice([None, None, *range(-5, 6), 2**62, -(2**62), 2**70])


def random_part(choice):
    kind = choice.randrange(9)
    if kind < 3:
        return choice.randrange(-4, 4)
    if kind < 6:
        step = choice.choice([None, None, 1, 2, 3, 2**40] + [0, -1] * (kind == 5))
        return slice(random_bound(choice), random_bound(choice), step)
    return choice.choice([None, ..., ..., slice(None), True, torch.tensor(False), [], 2**64, 0.5])


def random_key(choice):
    if choice.random() < 0.3:
        return random_part(choice)
    return tuple(random_part(choice) for _ in range(choice.randrange(5)))


def layouts(shape):
    x = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    yield x
    yield torch.stack([x, -x], -1)[..., 0]
    if x.dim() >= 2:
        yield x.transpose(0, -1).contiguous().transpose(0, -1)


def result(function, *args) -> Any:
    return outcome(lambda: function(*args), Exception)


def look(x):
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x._is_view(), x.requires_grad


def same(got, expected):
    if isinstance(expected, Raised):
        assert got == expected
        return
    assert type(got) is LazyTensor
    assert look(got) == look(expected)
    torch.testing.assert_close(lazyeng.unwrap(got), expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reading(shape):
    choice = random.Random(str(shape))
    for x in layouts(shape):
        w = wrap(x.clone(memory_format=torch.preserve_format))
        x = lazyeng.unwrap(w).clone(memory_format=torch.preserve_format)
        for _ in range(250):
            key = random_key(choice)
            got, expected = (result(operator.getitem, y, key) for y in (w, x))
            try:
                same(got, expected)
                if isinstance(got, torch.Tensor) and expected._is_view():
                    assert got._base is w and got._version == w._version
            except AssertionError as error:
                raise AssertionError(f"{key} of {look(x)}: {error}") from None


def random_value(choice, shape):
    kind = choice.randrange(9)
    if kind < 3:
        return choice.choice([2, -1.5, True, 2**40, float("nan")])
    if kind < 5 or not shape:
        return torch.tensor(choice.choice([7.0, 8]))
    sizes = [choice.choice([n, 1]) if kind < 8 else n + (n == 2) for n in shape]
    return torch.rand([1] * (kind == 7) + sizes[choice.randrange(len(sizes)) * (kind == 6) :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_writing(shape, dtype):
    choice = random.Random(f"{shape} {dtype}")
    for x in layouts(shape):
        x = x.to(dtype)
        w = wrap(x.clone(memory_format=torch.preserve_format))
        for _ in range(150):
            key = random_key(choice)
            there = result(operator.getitem, x, key)
            value = random_value(choice, getattr(there, "shape", ()))
            lazily = (
                value
                if choice.random() < 0.5 or not isinstance(value, torch.Tensor)
                else wrap(value)
            )
            before = x._version, w._version
            expected, got = (
                result(operator.setitem, y, key, v) for y, v in ((x, value), (w, lazily))
            )
            assert got == expected, (key, value)
            assert isinstance(got, Raised) or w._version - before[1] == x._version - before[0]
            torch.testing.assert_close(lazyeng.unwrap(w).clone(), x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("key", [1, (1, 2), (slice(1, 3), 0), (..., 1), (None, 1)], ids=str)
@pytest.mark.parametrize("what", ["tensor", "value", "both", "leaf", "no_grad"])
def test_gradients(key, what):
    def program(as_lazy):
        x = as_lazy(torch.arange(12.0).reshape(3, 4)).requires_grad_(
            what in ("tensor", "both", "leaf")
        )
        v = as_lazy(torch.tensor(2.0)).requires_grad_(what in ("value", "both", "no_grad"))
        y = x if what == "leaf" else x * 2
        with torch.set_grad_enabled(what != "no_grad"):
            y[key] = v * 3
        part = y[key]
        (part.sum() * 2 + (y * y).sum()).backward()
        return [g for g in (x.grad, v.grad) if g is not None] + [y.detach(), part.detach()]

    expected = result(lambda: program(lambda x: x))
    got = result(lambda: program(wrap))
    if isinstance(expected, Raised):
        return same(got, expected)
    assert not isinstance(got, Raised), got
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(lazyeng.unwrap(a), b)


def test_views_of_views_share_memory(mode):
    def program(x):
        x[1][2, ::2] = -1
        row, cell = x[0, :, 1:], x[0, 1, 2]
        row[1] += 5
        cell.mul_(2)
        x[..., None, -1][0] = 3
        return x, row, cell, x._version, row._version

    x = torch.arange(24.0).reshape(2, 3, 4)
    expected = program(x.clone())
    with lazy(mode):
        got = lazyeng.unwrap(program(wrap(x)))
    assert got[3:] == expected[3:]
    for a, b in zip(got[:3], expected[:3], strict=True):
        assert torch.equal(a, b)


def test_deleting_and_other_values_are_refused_as_in_eager():
    x = torch.zeros(3, 3)
    w = wrap(x.clone())
    for value in ("a", None, [1, 2], [[1.0]], object):
        got, expected = (result(operator.setitem, y, (0, 1), value) for y in (w, x))
        assert got.name == expected.name and "tensor" in got.text.lower()
    got, expected = (result(operator.delitem, y, 0) for y in (w, x))
    same(got, expected)
