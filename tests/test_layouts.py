"""Results have eager's shape and strides, also for dims of one element, where none shows them."""

import itertools
import random

import pytest
import torch

import lazyeng

DTYPES = [torch.int64, torch.float32, torch.float64, torch.bool, torch.bfloat16]
UNARY = ["exp", "sqrt", "sigmoid", "neg", "logical_not", "isfinite", "clone", "abs"]
BINARY = ["add", "true_divide", "atan2", "pow", "gt", "eq", "maximum", "logical_and", "copysign"]


def layouts(count):
    """Shapes with dims of one element, and strides that repeat elements, leave gaps, or both."""
    rng = random.Random(7)
    for _ in range(count):
        shape = tuple(rng.choice([1, 1, 2, 4]) for _ in range(rng.randrange(1, 4)))
        yield shape, tuple(rng.choice([0, 1, 2, 4, 8]) for _ in shape), rng.randrange(4)


def look(x):
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype


def outcome(function, args):
    try:
        return look(function(*args))
    except (RuntimeError, NotImplementedError) as error:
        return type(error)


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unary(mode, dtype):
    base = torch.ones(64, dtype=dtype)
    for name, layout in itertools.product(UNARY, layouts(150)):
        function = getattr(torch, name)
        expected = outcome(function, [base.as_strided(*layout)])
        with lazyeng.lazy(mode):
            got = outcome(function, [lazyeng.wrap(base).as_strided(*layout)])
        assert got == expected, (name, layout)


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES[:3])), ids=str)
def test_binary(mode, dtypes):
    bases = [torch.ones(64, dtype=dtype) for dtype in dtypes]
    lazy = [lazyeng.wrap(base) for base in bases]
    for name, (first, second) in itertools.product(BINARY, itertools.pairwise(layouts(80))):
        function = getattr(torch, name)
        expected = outcome(function, [bases[0].as_strided(*first), bases[1].as_strided(*second)])
        with lazyeng.lazy(mode):
            args = [lazy[0].as_strided(*first), lazy[1].as_strided(*second)]
            got = outcome(function, args)
        assert got == expected, (name, first, second)


@pytest.mark.parametrize("mode", ["async", "deferred"])
def test_an_index_is_not_promoted(mode):
    """It has another dtype than the result and may repeat elements: that decides no strides."""
    x = lazyeng.wrap(torch.rand(300, 200))
    index = lazyeng.wrap(torch.randint(300, (250, 1))).expand(250, 200)
    lazyeng.set_sync_debug_mode("error")
    try:
        with lazyeng.lazy(mode):
            result = (x * 2).gather(
                0, index
            )  # (of what is pending: learning from a run would wait)
    finally:
        lazyeng.set_sync_debug_mode("off")
    expected = (lazyeng.unwrap(x) * 2).gather(0, lazyeng.unwrap(index))
    assert torch.equal(lazyeng.unwrap(result), expected)
