"""Generated kernels against eager, in Triton's interpreter or on a GPU."""

import dataclasses
import os

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from lazyeng.fuse.launches import launches_of
from lazyeng.fuse.source import source_of
from tests.fuse.programs import PARTS, SAMPLES, groups_of, plans_of
from tests.fuse.replay import Replay, check, close
from tests.programs.fusion_programs import FLOATS, exact_functions, hard_values
from tests.support.fusion_runs import same_bits

# Groups of random programs, each of another source; more by the variable.
GROUPS = int(os.environ.get("LAZYENG_TEST_GROUPS", "200"))
LARGE = 16384  # elements of a program: the interpreter's time goes by operations
# Ops whose groups stay within a tolerance: what eager has from MKL or adds up in another order.
SQUARE_ROOTS = ("sqrt", "pow 0.5", "pow -0.5")


@pytest.mark.parametrize("name", SAMPLES)
def test_random_programs(name, device):
    """Bit for bit those of exact ops: with the signs of zeros, NaN, infinities and denormals."""
    sample, groups = SAMPLES[name], 0
    for plans, new in sample.plans(GROUPS):
        if sample.exact:
            ran = check(Replay(plans, device), same_bits)
        else:
            ran = check(Replay(plans, device, LARGE), close)
        assert ran >= len(new)
        groups += len(new)
    assert groups >= GROUPS // PARTS * sample.share


@pytest.mark.parametrize("columns", [32, 33, 700, 4096])
def test_rows_of_each_length(columns, device):
    """Several rows a program, and one; rows that do not fill their block; folds after them."""
    x = torch.randn(65536 // columns + 3, columns)

    def program(x):
        y = torch.softmax(x * 2, -1)
        return y, y.sum(-1) + 1, (y * x).sum(), (y > 0.01).sum(-1), x.var(-1, correction=0)

    assert check(Replay(plans_of(program, x), device, 2048), close) >= 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_exact_function_of_hard_values(dtype, device):
    for name, (tensors, function) in exact_functions().items():
        # What rounds several times in two bytes is no exact function of these: it joins groups with
        # `on` only, and eager itself rounds differently in its vectors and in what is left of them.
        if dtype.itemsize == 2 and ("pow" in name or "backward" in name):
            continue
        values = [x[:: 61 if tensors == 1 else 5].contiguous() for x in hard_values(dtype, tensors)]
        plans = plans_of(lambda *args, function=function: torch.clone(function(*args)), *values)
        inexact = name in SQUARE_ROOTS or "sqrt" in name
        check(Replay(plans, device, LARGE), close if inexact else same_bits)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int16, torch.bool], ids=str)
def test_folds(dtype, device):
    """More elements than the programs take in one go, and a block that is not full."""
    x, y = (torch.randn(300, 201).mul(9).to(dtype) for _ in range(2))

    def program(x, y):
        d = x * y
        folds = d.sum(), d.amax(), d.amin(), (d > 0).sum(), d.double().mean(), (x + 0).t().sum()
        if dtype.is_floating_point:
            return d, *folds
        return d, *folds, d.prod(), d.sum(1), d.prod(1), (d > 0).any(1), d.any(), (d > 0).all()

    plans = plans_of(program, x, y)
    exact = not dtype.is_floating_point
    assert check(Replay(plans, device, 2048), same_bits if exact else close) >= 1


def test_nan_wins_a_fold(device):
    x = torch.randn(40_000)
    x[20_037] = torch.nan
    plans = plans_of(lambda x: ((x + 1).amax(), (x * 2).amin(), (x - 1).mean()), x)
    assert check(Replay(plans, device, 2048), same_bits) == 1


def test_views_and_writes_in_place(device):
    x, y = torch.randn(40, 30), torch.randn(30, 40)

    def program(x, y):
        z = (x * 2).add_(y.t())
        z[1:, ::2].mul_(3)
        y.t().mul_(2).add_(x)
        x.t()[:, 3:9].sub_(1).div_(3)
        return z.t() + y, x, y

    assert check(Replay(plans_of(program, x, y), device), same_bits) >= 3


def test_numbers_are_no_part_of_a_source():
    def text(rate, x):
        plans = plans_of(lambda x: (x * rate + rate).clamp(-rate, rate) / (rate + 1), x)
        (group,) = groups_of(plans)
        return source_of(group.program, group.ops).text

    x = torch.randn(50, 7)
    assert text(0.1, x) == text(0.25, x)
    assert text(0.1, x.t()) == text(0.1, torch.randn(90, 8).t())


@pytest.mark.parametrize(
    "dtypes, folded, size",
    [
        ((torch.float32,), False, 1024),
        ((torch.float64,), False, 1024),
        ((torch.bfloat16, torch.bfloat16), False, 2048),
        ((torch.bfloat16, torch.float32), False, 1024),
        ((torch.bfloat16,), True, 1024),
    ],
)
def test_a_thread_loads_32_bytes(dtypes, folded, size):
    tensors = [torch.ones(5000, dtype=dtype) for dtype in dtypes]

    def function(*tensors):
        y = sum(x * 2 + 1 for x in tensors)
        return y.sum() if folded else y

    (group,) = groups_of(plans_of(function, *tensors))
    assert launches_of(group.program, source_of(group.program, group.ops))[0].constants == {
        "BLOCK_SIZE": size
    }


def test_sizes_beyond_int32_are_counted_in_int64():
    plans = plans_of(lambda x: x.t() * 2 + x[:, 0], torch.randn(6, 6))
    (group,) = groups_of(plans)
    program = dataclasses.replace(group.program, numel=1 << 31)
    source = source_of(program, group.ops)
    assert "tl.program_id(0).to(tl.int64)" in source.text
    numbers = [a for a in source.group.arguments if a.kind in ("n_elements", "size", "stride")]
    assert {a.type for a in numbers} == {"i64"} and len(numbers) > 2


def test_a_source_with_rows_reads_like_this():
    plans = plans_of(lambda x: torch.softmax(x * 2, -1), torch.randn(500, 70))
    (group,) = groups_of(plans)
    _, _, kernel = source_of(group.program, group.ops).text.rpartition("@triton.jit\n")
    assert (
        kernel
        == """\
def group_kernel(x0_ptr, y0_ptr, number0, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    a0 = tl.full((), number0, tl.float32)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    row_mask = rows < n_rows
    column_mask = columns < n_columns
    mask = row_mask & column_mask
    offsets = rows * n_columns + columns
    x0 = tl.load(x0_ptr + offsets, mask=mask)
    v0 = x0 * a0  # aten::mul.Tensor
    v1 = tl.reduce(tl.where(mask, v0, tl.full((), -float("inf"), tl.float32)), 1, maximum, keep_dims=True)  # aten::_softmax
    v2 = v0 - v1  # aten::_softmax
    v3 = libdevice.exp(v2)  # aten::_softmax
    v4 = tl.reduce(tl.where(mask, v3, tl.full((), 0, tl.float32)), 1, total, keep_dims=True)  # aten::_softmax
    v5 = reciprocal(v4)  # aten::_softmax
    v6 = v3 * v5  # aten::_softmax
    tl.store(y0_ptr + offsets, v6, mask=mask)
"""  # noqa: E501 (as it is written)
    )


def test_a_source_reads_like_this():
    def program(x, bias):
        return torch.relu((x + bias) * 0.5)

    plans = plans_of(program, torch.randn(6, 5), torch.randn(5))
    (group,) = groups_of(plans)
    _, _, kernel = source_of(group.program, group.ops).text.rpartition("@triton.jit\n")
    assert (
        kernel
        == """\
def group_kernel(x0_ptr, x1_ptr, y0_ptr, number0, n_elements, size1, BLOCK_SIZE: tl.constexpr):
    a0 = tl.full((), number0, tl.float32)
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    i1 = offsets % size1
    x0 = tl.load(x0_ptr + offsets, mask=mask)
    x1 = tl.load(x1_ptr + i1, mask=mask)
    v0 = x0 + x1  # aten::add.Tensor
    v1 = v0 * a0  # aten::mul.Tensor
    v2 = tl.where(v1 < 0, 0, v1)  # aten::relu
    tl.store(y0_ptr + offsets, v2, mask=mask)
"""
    )
