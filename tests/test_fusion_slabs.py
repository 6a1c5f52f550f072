"""softmax and log_softmax along a dim that is not the last one join groups, with eager's bits
(csrc/fuse/tiles/across_kernels.inc)."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from tests.support.threads import threads_of_torch

from .support.fusion_runs import fused, same_bits
from .test_fusion_exact_rows import SPECIAL, numbers

FUNCTIONS = (torch.softmax, torch.log_softmax)
DTYPES = (torch.float32, torch.float64)
# [slabs, reduced, layer]: one slab, one vector and some, and what torch's threads share.
SHAPES = (
    (2, 2, 16), (4, 5, 48), (7, 21, 64), (4, 100, 80), (8, 1000, 16), (2, 19, 4096), (66, 10, 144),
    (5, 3, 32768), (2, 2, 131_072),
)  # fmt: skip
# A thread of two, or of three, has no whole vectors of these.
UNEVEN = ((3, 5, 16), (3, 7, 48), (5, 21, 80))

by_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


def program(function, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
    return function(x * 0.5 + 0.1, dim) * 2


def compare(function, x: torch.Tensor, dim: int = 1) -> None:
    same_bits(fused(lambda x: program(function, x, dim), x), program(function, x, dim))


@pytest.fixture(autouse=True)
def tried():
    for dtype in DTYPES:
        for function in FUNCTIONS:
            fused(functools.partial(program, function), numbers(2, 3, 16, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@by_function
def test_slabs_join_groups_and_have_eagers_bits(function, dtype, groups):
    for threads in (1, 2, 3):
        with threads_of_torch(threads):
            for shape in SHAPES + UNEVEN:
                compare(function, numbers(*shape, dtype=dtype))
    groups()
    with threads_of_torch(2):
        for shape in SHAPES:
            compare(function, numbers(*shape, dtype=dtype))
    assert groups() == len(SHAPES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@by_function
def test_special_values(function, dtype):
    for share in (0.01, 0.1, 0.7, 1.0):
        for shape in SHAPES[:6]:
            compare(function, numbers(*shape, dtype=dtype, special=share))
    for value in SPECIAL:
        compare(function, torch.full((2, 5, 16), value, dtype=dtype))


@by_function
def test_any_dim_of_more_than_three(function, groups):
    x = numbers(4, 4, 6, 32, dtype=torch.float32)
    groups()
    for dim in (1, 2, -2, -3):
        compare(function, x, dim)
    assert groups() == 4
    compare(function, x, 0)  # one slab, which threads would not share
    compare(function, x.permute(0, 2, 3, 1), 1)
    compare(function, x.transpose(2, 3), 2)
    compare(function, x[:, :, :, ::2], 2)
    compare(function, x[:, :1].expand(4, 4, 6, 32), 1)
    compare(function, x.unsqueeze(2), 1)
    compare(function, x[:, :, :, :16].to(memory_format=torch.channels_last), 1)


@by_function
def test_what_comes_before_and_after_joins(function, groups):
    x, scale = numbers(4, 21, 64, dtype=torch.float32), numbers(21, 1, dtype=torch.float32)

    def both(x):
        y = function(x * scale, 1)
        return y.exp() - x.abs(), y * scale

    fused(both, x)  # (the first call of exp tries it)
    groups()
    for a, b in zip(fused(both, x), both(x), strict=True):
        torch.testing.assert_close(a, b)
    assert groups() >= 1
    for a, b in zip(fused(lambda x: (y := function(x, 1), y.sum(-1)), x), (
        y := function(x, 1), y.sum(-1),
    ), strict=True):  # fmt: skip
        same_bits(a, b)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@by_function
def test_what_is_left_to_torch(function, dtype, groups):
    groups()
    compare(function, numbers(3, 5, 48, dtype=dtype))
    for shape in ((4, 5, 15), (4, 5, 24), (2, 3, 131_072)):
        compare(function, numbers(*shape, dtype=torch.float32))
    assert groups() <= 4  # (the ops around it may be)


@by_function
def test_written_in_place_and_read_before(function):
    def overwritten(x):
        x = x.clone()
        before = x * 2
        x.copy_(function(x + 1, 1))
        return before, x

    x = numbers(3, 6, 32, dtype=torch.float32)
    for a, b in zip(fused(overwritten, x), overwritten(x), strict=True):
        same_bits(a, b)


@by_function
def test_gradients(function):
    def gradient(x):
        x = x.detach().requires_grad_()
        (program(function, x) * x).sum().backward()
        return x.grad

    x = numbers(3, 6, 32, dtype=torch.float32)
    torch.testing.assert_close(fused(gradient, x), gradient(x))


STEPS = (
    lambda a, b, c: a * c + b,
    lambda a, b, c: (a - b).abs(),
    lambda a, b, c: torch.maximum(a, b * c),
    lambda a, b, c: torch.softmax(a, 1) + b,
    lambda a, b, c: torch.log_softmax(b, -2) * c,
    lambda a, b, c: a.clamp(-2, 2).softmax(1),
    lambda a, b, c: a - b.amax(-1, keepdim=True),
    lambda a, b, c: a * b.sum(),
    lambda a, b, c: a.clone().mul_(c),
)


def random_program(seed: int, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Exact steps over [4, 6, 32], and what broadcasts to it: one for each of the reduced ones, of
    a layer, of the slabs, or of neither."""
    choice, values = random.Random(seed), [x, x * 0.5]
    shapes = ((6, 1), (32,), (4, 1, 1), (4, 6, 32), (1, 1, 32))
    operands = [numbers(*shape, dtype=x.dtype, seed=i) for i, shape in enumerate(shapes)]
    for _ in range(12):
        step, a, b = choice.choice(STEPS), choice.choice(values), choice.choice(values)
        values.append(step(a, b, choice.choice(operands)).clamp(-9, 9))
    return tuple(values[-3:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_programs(dtype, groups):
    groups()
    for seed in range(60):
        run, x = functools.partial(random_program, seed), numbers(4, 6, 32, dtype=dtype, seed=seed)
        for a, b in zip(fused(run, x), run(x), strict=True):
            same_bits(a, b)
    assert groups() > 60
