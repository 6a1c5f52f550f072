"""Reductions that give eager's bits in any order, and those along dims that are not innermost."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from lazyeng import _C

from .programs.fusion_programs import FLOATS, INTS
from .support.fusion_runs import compare_random_programs, fused, same_bits

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

aten = torch.ops.aten
DIMS = [(), (0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2)]


@pytest.fixture
def exact():
    """As by default, also if the tests run with LAZYENG_FUSION=on."""
    _C.set_inexact_fusion(False)


def learnt(function, *args):
    """What the ops return is learnt when they are first called."""
    fused(function, *args)
    return fused(function, *args)


def all_equal(got, expected):
    if torch.is_tensor(expected):
        got, expected = [got], [expected]
    for a, b in zip(got, expected, strict=True):
        same_bits(a, b)


def all_close(got, expected):
    if torch.is_tensor(expected):
        got, expected = [got], [expected]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


# --- exact mode


def exact_folds(x, dims, keepdim):
    """Of all dtypes."""
    made = [x.amax(dims, keepdim), x.amin(dims, keepdim), torch.any(x, dims or None, keepdim)]
    made += [torch.all(x, dims or None, keepdim), (x > 1).sum(dims, keepdim)]
    if not dims:
        made += [x.max(), x.min(), x.any(), x.all()]
    if len(dims) == 1:
        made += [x.any(dims[0], keepdim), x.all(dims[0], keepdim)]
        made += [(x != 0).to(torch.int16).prod(dims[0], keepdim)]
    if not x.is_floating_point():
        made += [x.sum(dims, keepdim), x.sum(dims, keepdim, dtype=torch.int16), x.prod()]
        if x.dtype != torch.bool:
            made += [x.prod(dtype=torch.int32), x.prod(dtype=x.dtype)]
    return made


@pytest.mark.parametrize("shape", [(5, 40, 70), (17, 16, 33), (2, 3, 4), (6, 1, 5000)], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
def test_folds_without_an_order_have_the_bits_of_eager(dtype, shape, exact):
    x = torch.randn(shape, dtype=torch.float64) * 100
    x = (x.abs() if dtype == torch.uint8 else x).to(dtype)
    for dims, keepdim in itertools.product(DIMS, (False, True)):

        def program(x, dims=dims, keepdim=keepdim):
            return exact_folds(x.clone(), dims, keepdim)

        all_equal(learnt(program, x), program(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, 1)], ids=str)
def test_exact_folds_end_a_group(dims, dtype, exact, groups):
    x = (torch.rand(40, 100) + 1).to(dtype)

    def program(x):
        y = x.clone()
        return y.amax(dims), y.amin(dims), (y > 1).sum(dims), torch.any(y, dims or None)

    learnt(program, x)
    groups()
    all_equal(fused(program, x), program(x))
    assert groups() == 1


def test_sums_of_floats_along_outer_dims_are_left_to_torch(exact, groups):
    """Others add in its order: test_fusion_exact_rows.py."""
    x = torch.rand(300, 200)
    program = lambda x: ((x * 2).sum(0), (x * 3).mean(0), (x * 4).var(0))  # noqa: E731
    all_equal(learnt(program, x), program(x))
    assert groups() == 0


def test_integers_wrap_around(exact):
    x = torch.full((33, 100), 2**62)
    small = torch.full((33, 100), 127, dtype=torch.int8)

    def program(x, small):
        y, z = x + 1, small * 1
        return (
            y.sum(), y.sum(0), y.sum(1), y.prod(), y.prod(0), z.sum(dtype=torch.int8),
            z.prod(1, dtype=torch.int8), z.sum(0, dtype=torch.int8), z.prod(1),
        )  # fmt: skip

    all_equal(learnt(program, x, small), program(x, small))


def test_long_sums_of_narrow_integers(exact):
    for dtype in (torch.int8, torch.uint8, torch.int16):
        x = torch.full((70_000, 33), torch.iinfo(dtype).max, dtype=dtype)
        program = lambda x: ((x * 1).sum(0), (x * 1).sum())  # noqa: E731
        all_equal(learnt(program, x), program(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_keep_eagers_signs(dtype, exact):
    """Which of 0.0 and -0.0 is the maximum depends on the order: then the members run."""
    new = itertools.count()  # (a plan that was uncertain once is not tried again)
    for size, share in itertools.product((1, 50, 200, 1000, 30_000), (0.0, 0.5, 0.9, 1.0)):
        for others in (0.0, -1.0, 1.0):
            n = size + next(new)
            signs = torch.where(torch.rand(4, n) < share, 0.0, -0.0).to(dtype)
            x = torch.where(torch.rand(4, n) < 0.5, signs, others)

            def program(x):
                y = x.clone()
                return (
                    y.amax(), y.max(), y.amin(), y.min(), y.amax(0), y.amin(0), y.amax(1),
                    y.amin(1), y,
                )  # fmt: skip

            all_equal(fused(program, x), program(x))


def test_zeros_of_one_kind_are_fused(exact, groups):
    x = torch.randn(100, 100).relu()
    program = lambda x: ((x * 2).amin(), (x * 2).amin(0), (x * 2).amin(1))  # noqa: E731
    learnt(program, x)
    groups()
    all_equal(fused(program, x), program(x))
    assert groups() == 1


def test_denormals_that_count_as_zero(exact):
    x = torch.tensor([1e-40, 0.0, -1e-40, -0.0] * 30).reshape(2, 60)

    def program(x):
        y = x.clone()
        return y.amax(), y.amin(), y.amax(0), y.amin(0), y.amax(1), y.amin(1), y.max()

    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        got, expected = learnt(program, x), program(x)
    finally:
        torch.set_flush_denormal(False)
    all_equal([a.view(torch.int32) for a in got], [a.view(torch.int32) for a in expected])


def test_nan_and_infinities(exact, groups):
    x = torch.randn(40, 70)
    x[3, 5], x[4], x[:, 6], x[7, 7], x[:, 8] = (
        torch.nan,
        torch.nan,
        torch.inf,
        -torch.inf,
        -torch.inf,
    )

    def program(x):
        y = x * 2
        return [f(y, dims) for f in (torch.amax, torch.amin) for dims in DIMS[:3]]

    learnt(program, x)
    groups()
    all_equal(fused(program, x), program(x))
    assert groups() == 1


def test_what_must_run_again_does_not_write_what_was_there(exact):
    """The maximum is uncertain: the group's members run, on what they would have read."""
    zeros = torch.tensor([0.0, -0.0] * 50)

    def before(x):
        top = x.amax()
        x.add_(1)
        return top, x, x.amax()

    def after(x):
        x.mul_(-1)
        y = x * 2
        y.mul_(3)
        return x.amax(), y.amax(), x.amin(0), x

    for program in (before, after):
        for _ in range(3):
            all_equal(fused(program, zeros.clone()), program(zeros.clone()))


def test_random_programs_with_folds(exact, groups):
    compare_random_programs(range(100), True, folds=True)
    assert groups() > 100


# --- dims that are not innermost


LAYOUTS = {
    "outer": lambda: (torch.rand(300, 200), (0,)),
    "outer, an odd width": lambda: (torch.rand(1000, 77), (0,)),
    "few columns": lambda: (torch.rand(5000, 16), (0,)),
    "too few columns": lambda: (torch.rand(40_000, 3), (0,)),
    "many columns": lambda: (torch.rand(20, 9000), (0,)),
    "one of three": lambda: (torch.rand(30, 40, 70), (1,)),
    "two of three": lambda: (torch.rand(30, 40, 70), (0, 1)),
    "all but the middle": lambda: (torch.rand(30, 40, 70), (0, 2)),
    "batch statistics": lambda: (torch.rand(16, 24, 14, 14), (0, 2, 3)),
    "channels last": lambda: (
        torch.rand(16, 24, 14, 14).contiguous(memory_format=torch.channels_last),
        (0, 2, 3),
    ),
    "rows in columns": lambda: (torch.rand(200, 300).t(), (1,)),
    "with gaps": lambda: (torch.rand(300, 400)[:, ::2], (0,)),
    "rows apart": lambda: (torch.rand(300, 400)[:, 3:203], (0,)),
    "permuted": lambda: (torch.rand(30, 40, 70).permute(1, 2, 0), (0,)),
    "expanded": lambda: (torch.rand(1, 200).expand(300, 200), (0,)),
    "long rows": lambda: (torch.rand(8, 50_000), (1,)),
    "short rows": lambda: (torch.rand(2000, 20), (1,)),
    "ones": lambda: (torch.rand(300, 1, 200, 1), (0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name, keepdim, inexact):
    x, dims = LAYOUTS[name]()
    for function in (
        lambda x: (x * 2 + 1).sum(dims, keepdim=keepdim),
        lambda x: ((x * 3).mean(dims, keepdim=keepdim), x * 2),
        lambda x: ((x - 0.5).amax(dims, keepdim=keepdim), (x > 0.5).sum(dims, keepdim=keepdim)),
    ):
        all_close(learnt(function, x), function(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["outer", "one of three", "batch statistics", "long rows"])
def test_they_end_a_group(name, dtype, inexact, groups):
    x, dims = LAYOUTS[name]()
    x = x.to(dtype)

    def program(x):
        y = x * 2 + 1
        return y.sum(dims), y.mean(dims, keepdim=True), y.amax(dims), y.sum()

    learnt(program, x)
    groups()
    all_close(fused(program, x), program(x))
    assert groups() == 1


def test_sums_over_several_dims_in_one_group(inexact, groups):
    x = torch.rand(64, 48, 32)
    # (Of rows there is one length in a group.)
    program = lambda x: tuple((x * 2).sum(dims) for dims in DIMS if dims != (1, 2))  # noqa: E731
    learnt(program, x)
    groups()
    all_close(fused(program, x), program(x))
    assert groups() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_of_columns_are_as_accurate_as_torchs(dtype, inexact):
    x = torch.rand(100_000, 20).to(dtype)
    exact = x.double().sum(0) * 2
    assert ((learnt(lambda x: (x.float() * 2).sum(0), x) - exact).abs() / exact).max() < 2e-7


def test_columns_of_what_is_written_in_place(inexact):
    def program(x):
        before = x.sum(0)
        x.mul_(2)
        x.sub_(x.mean(1, keepdim=True))
        return before, x.sum(0), x, x.amax(0)

    x = torch.rand(300, 200)
    all_close(fused(program, x.clone()), program(x.clone()))


def test_views_of_a_sum_of_columns(inexact):
    def program(x):
        total = (x * 2).sum(0)
        total[1:].add_(total[:-1].clone())
        return total * x, total.view(10, 20)[:, 3] + 1

    x = torch.rand(300, 200)
    all_close(learnt(program, x), program(x))


# --- layer_norm's backward


@pytest.mark.parametrize("mask", [m for m in itertools.product((True, False), repeat=3) if any(m)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm_backward(dtype, mask, inexact, groups):
    x, grad = torch.randn(30, 20, 70).to(dtype), torch.randn(30, 20, 70).to(dtype)
    weight, bias = torch.rand(70).to(dtype) + 0.5, torch.rand(70).to(dtype)
    _, mean, rstd = torch.native_layer_norm(x, (70,), weight, bias, 1e-5)

    def program(grad, x, mean, rstd, weight, bias):
        made = aten.native_layer_norm_backward(
            grad * 2, x, (70,), mean, rstd, weight, bias, list(mask)
        )
        return [value for value in made if value is not None]

    args = (grad, x, mean, rstd, weight, bias)
    learnt(program, *args)
    groups()
    got, expected = fused(program, *args), program(*args)
    assert groups() == 1
    # (torch adds up the columns in a row, in the dtype.)
    for a, b, exact in zip(got, expected, program(*(v.double() for v in args)), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        least = torch.finfo(dtype).eps * exact.abs().max() * (8 if dtype in FLOATS[:2] else 1)
        assert (a - exact).abs().max() <= torch.maximum(least, (b - exact).abs().max())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(70,), (20, 35)], ids=str)
def test_gradients_of_layer_norm(shape, affine, inexact):
    x, target = torch.randn(1000, *shape), torch.randn(1000, *shape)
    weight, bias = torch.rand(shape), torch.rand(shape)

    def program(x, target, weight, bias):
        leaves = [value.detach().requires_grad_() for value in (x, weight, bias)]
        y = F.layer_norm(leaves[0], shape, *(leaves[1:] if affine else ()))
        F.mse_loss(y * 2, target, reduction="sum").backward()
        return [leaf.grad for leaf in leaves[: 3 if affine else 1]]

    args = (x, target, weight, bias)
    for a, b in zip(learnt(program, *args), program(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
