"""Reductions of floats that join groups by default, as a trial found that they give eager's bits
(csrc/fuse/bits/row_trials.cpp)."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

from lazyeng import _C
from tests.support.threads import threads_of_torch

from .support.fusion_runs import compare_random_programs, fused, same_bits, without_fusion

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64)
NARROW = (torch.float16, torch.bfloat16)
# About multiples of vectors, of four of them, of the pieces of torch's kernels.
LENGTHS = (*range(2, 71), 95, 96, 97, 127, 128, 129, 255, 257, 300, 511, 512, 513, 777, 1023, 1024)
LONG = (1025, 2049, 4096, 4099, 8200, 16385, 32767, 32768, 50257, 131_073)
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 1e38, -1e38, 88.5)


def weights(x, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape[-1], generator=generator, dtype=torch.float64).to(x.dtype)


def backward(x):
    return x * 0.5, (x * 0.25).abs()


# Each is one group.
ROWS = {
    "softmax": lambda x: F.softmax(x * 0.5 + 0.1, -1),
    "log_softmax": lambda x: F.log_softmax(x.clamp(-3, 3), -1),
    "softmax_backward": lambda x: aten._softmax_backward_data(*backward(x), -1, x.dtype),
    "log_softmax_backward": lambda x: aten._log_softmax_backward_data(*backward(x), -1, x.dtype),
    "layer_norm": lambda x: F.layer_norm(x * 2 + 1, x.shape[-1:]),
    "layer_norm with weight": lambda x: F.layer_norm(x * 2, x.shape[-1:], weights(x)),
    "layer_norm with bias": lambda x: F.layer_norm(x * 2, x.shape[-1:], None, weights(x)),
    "layer_norm with both": lambda x: F.layer_norm(
        x * 2 - 1, x.shape[-1:], weights(x), weights(x, 8), 1e-3
    ),
    "native_layer_norm": lambda x: torch.native_layer_norm(
        x + 1, x.shape[-1:], weights(x), weights(x, 8), 1e-5
    ),
    "sum": lambda x: (x * 3).sum(-1),
    "mean": lambda x: (x * 3).mean(-1, keepdim=True) * 2,
    "var": lambda x: (x * 3).var(-1),
    "std": lambda x: (x * 3).std(-1, correction=0),
    "var_mean": lambda x: torch.var_mean(x * 3, -1, correction=2),
    "std_mean": lambda x: torch.std_mean(x * 3, -1, keepdim=True),
    "logsumexp": lambda x: (x * 3).logsumexp(-1),
    "logsumexp, keepdim": lambda x: x - (x * 0.5).logsumexp(-1, keepdim=True),
    "by hand": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
    "softmax of softmax": lambda x: F.log_softmax(F.softmax(x * 2, -1) * 3, -1),
}
SUMS = {
    "sum": lambda x, y: (x * y).sum(),
    "sum of a result that is used": lambda x, y: ((x - y).sum(), (x - y) * 2),
    "mean": lambda x, y: (x - y).square().mean(),
    "mse_loss": lambda x, y: F.mse_loss(x * 2, y),
    "mse_loss, sum": lambda x, y: F.mse_loss(x * 2, y, reduction="sum"),
    "two": lambda x, y: ((x + y).sum(), (x - y).mean()),
}
# Of these, what has the order of torch's kernels for narrow dtypes.
NARROW_ROWS = (
    "sum", "mean", "var", "std", "var_mean", "std_mean", "softmax", "log_softmax",
    "layer_norm", "layer_norm with weight", "layer_norm with bias", "layer_norm with both",
    "native_layer_norm", "softmax of softmax",
)  # fmt: skip


def numbers(*shape, dtype, seed=0, special=0.0):
    """`special`: so many of them are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    which = torch.rand(shape, generator=generator)
    for i, number in enumerate(SPECIAL):
        x[(which >= special * i / len(SPECIAL)) & (which < special * (i + 1) / len(SPECIAL))] = (
            number
        )
    return x.to(dtype)


def cancelling(*shape, dtype, seed=0):
    """Of a narrow dtype, whose sums are as large as their errors: the order of additions shows in
    the few bits that are left when they are rounded."""
    generator = torch.Generator().manual_seed(seed)
    small, large = (
        torch.randn(shape, generator=generator).clamp(-3, 3) * size for size in (2**-8, 2**12)
    )
    pairs = torch.rand(shape, generator=generator) < 0.5
    n = shape[-1]
    large[..., (n + 1) // 2 :] = -large[..., : n // 2].flip(-1)
    pairs[..., (n + 1) // 2 :] = pairs[..., : n // 2].flip(-1)
    if n % 2:
        pairs[..., n // 2] = False
    return torch.where(pairs, large, small).to(dtype)


def telling(name, rows, n, dtype, seed):
    """Such numbers of a narrow dtype, and so many, that the order of additions shows."""
    if "softmax" not in name and "layer_norm" not in name:
        return cancelling(rows, n, dtype=dtype, seed=seed)
    x = numbers(max(rows, rows * MORE // n), n, dtype=torch.float32, seed=seed)
    # (Far from 0 the elements without their mean are as large as what rounding takes from it.)
    return (x + 256 if "layer_norm" in name else x).to(dtype)


def mirrored(*shape, dtype, seed=0):
    """Numbers near 1; what cancels still does when it is multiplied by them."""
    x = numbers(*shape, dtype=torch.float32, seed=seed).sigmoid() + 0.5
    n = shape[-1]
    x[..., (n + 1) // 2 :] = x[..., : n // 2].flip(-1)
    return x.to(dtype)


def compare(function, *inputs):
    for a, b in zip(
        *(listed(made) for made in (fused(function, *inputs), function(*inputs))), strict=True
    ):
        same_bits(a, b)


def listed(made):
    return list(made) if isinstance(made, tuple) else [made]


@pytest.fixture
def tried():
    """What the trial is for has been found out."""
    for dtype in DTYPES:
        for program in ROWS.values():
            fused(program, numbers(2, 40, dtype=dtype))
        for program in SUMS.values():
            fused(program, *(numbers(2, 40, dtype=dtype) for _ in range(2)))


@pytest.fixture
def narrow_tried():
    for dtype in NARROW:
        for name in NARROW_ROWS:
            fused(ROWS[name], numbers(2, 40, dtype=dtype))
        for program in SUMS.values():
            fused(program, *(numbers(2, 40, dtype=dtype) for _ in range(2)))


def joins(name, row, dtype=torch.float32):
    """Where it pays, and the bits do not depend on the number of threads."""
    if name == "softmax_backward":
        return row < 8
    if name == "log_softmax_backward":
        return row < 16
    if "logsumexp" in name:
        return row >= 512
    if name == "log_softmax":
        return row < 16 or (row >= 32 and dtype != torch.float16)
    if "layer_norm" in name and dtype in NARROW:
        return row < (64 if dtype == torch.float16 else 256)
    return name != "var_mean" or row > 2  # (with nothing left to divide by torch warns)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_join_groups_and_have_eagers_bits(name, dtype, tried, groups):
    program = ROWS[name]
    groups()
    expected = 0
    for threads in (1, 2, 3):
        # (Torch shares 11 rows only if they are longer than 186: of shorter ones some will do.)
        lengths = LENGTHS if threads == 1 else LENGTHS[threads:70:8] + LENGTHS[70:]
        with threads_of_torch(threads):
            for rows in (11, 3):
                for n in lengths:
                    compare(program, numbers(rows, n, dtype=dtype, seed=n))
                    expected += joins(name, n)
    assert groups() >= expected
    for n in LONG:
        compare(program, numbers(5, n, dtype=dtype, seed=n))
    assert groups() >= 3 * joins(name, LONG[0])  # (a variance of so many elements is torch's)


@pytest.mark.parametrize("n", (50257, 1 << 18))
def test_losses_over_a_vocabulary_are_one_group(n, tried, groups):
    groups()
    logits, targets = numbers(8, n, dtype=torch.float32), torch.tensor([0, n - 1, 7, 5] * 2)
    compare(lambda x: F.cross_entropy(x * 0.5, targets), logits)
    assert groups() == 1


@pytest.mark.parametrize("rows, n", [(8, (1 << 18) + 1), (7, 1 << 18), (2, (1 << 17) + 1)])
def test_longer_rows_are_left_to_torch(rows, n, tried, groups):
    groups()
    compare(lambda x: (x * 2).softmax(-1), numbers(rows, n, dtype=torch.float32))
    assert groups() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_special_values(name, dtype, tried):
    for share in (0.01, 0.1, 0.7):
        for n in (3, 5, 10, 17, 31, 32, 39, 64, 77, 200):
            compare(ROWS[name], numbers(40, n, dtype=dtype, seed=n, special=share))


LOOKS = {
    "every other column": lambda x: x[:, ::2],
    "transposed": lambda x: x.t(),
    "every other row": lambda x: x[::2],
    "part": lambda x: x[3:, 5:],
    "expanded": lambda x: x[:1].expand_as(x),
    "one number a row": lambda x: x[:, :1].expand_as(x),
    "with more dims": lambda x: x.view(8, 10, -1),
    "with swapped dims": lambda x: x.view(8, 10, -1).transpose(0, 1),
    "rows inside": lambda x: x.view(8, -1, 10).transpose(1, 2),
    "one column": lambda x: x.unsqueeze(-1),
    "one row": lambda x: x[:1],
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ROWS)
def test_rows_as_they_lie_in_memory(name, look, tried):
    for columns in (80, 20):
        compare(lambda x: ROWS[name](LOOKS[look](x)), numbers(80, columns, dtype=torch.float32))


@pytest.mark.parametrize("dims", [(1,), (2,), (1, 2), (0, 1, 2), (0, 2), (-1, 0)])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_dims_in_any_order_of_memory(dims, order, tried):
    x = numbers(34, 36, 38, dtype=torch.float32).permute(order)
    compare(lambda x: ((x * 2).sum(dims), (x * 3).mean(dims), (x * 4).var(dims)), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_all_elements(name, dtype, tried, groups):
    groups()
    counts = (*range(2, 71), 127, 128, 129, 500, 1000, 4096, 4099, 32767, 50_001, 65536)
    for threads in (1, 2, 3):
        with threads_of_torch(threads):
            for n in (*counts, 32768, 32769, 65537, 98305, 200_003, 1 << 18):
                compare(SUMS[name], *(numbers(n, dtype=dtype, seed=n + i) for i in range(2)))
    assert groups() >= 3 * len(counts)


# torch has vectors of 16 such elements, four side by side, and sums of 16 of these at least.
NARROW_LENGTHS = (
    *range(2, 36),
    47,
    48,
    49,
    63,
    64,
    65,
    79,
    80,
    81,
    95,
    127,
    128,
    129,
    191,
    192,
    255,
)
MORE = 3000
NARROW_LENGTHS += (256, 257, 300, 511, 512, 1023, 1024, 1025, 1039, 1100, 2047, 2048, 2100)
NARROW_LONG = (4096, 4099, 8200, 16384, 16385, 32768, 50257)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", NARROW_ROWS)
def test_narrow_rows_join_groups_and_have_eagers_bits(name, dtype, narrow_tried, groups):
    program = ROWS[name]
    groups()
    expected = 0
    for threads in (1, 2, 3):
        with threads_of_torch(threads):
            for rows, n in itertools.product((11, 2), NARROW_LENGTHS[threads - 1 :: threads]):
                compare(program, telling(name, rows, n, dtype, seed=n))
                expected += joins(name, n, dtype)
    assert groups() >= expected
    for n in NARROW_LONG:
        compare(program, telling(name, 5, n, dtype, seed=n))
    assert groups() >= 3 * joins(name, NARROW_LONG[0], dtype)


@pytest.mark.parametrize("n", [2, 7, 9, 15, 16, 17, 24, 31, 33, 48, 65, 100, 257, 300])
def test_narrow_softmax_of_many_rows(n, narrow_tried, groups):
    """Torch rounds each sum before it takes its logarithm: of some thousand rows the order of one
    shows."""
    groups()
    expected = 0
    for dtype in NARROW:
        expected += 1 + joins("log_softmax", n, dtype)
        x = numbers(400_000 // n, n, dtype=dtype, seed=n)
        compare(lambda x: F.log_softmax(x * 1, -1), x)
        compare(lambda x: F.softmax(x * 1, -1), x)
    assert groups() == expected


def test_narrow_log_softmax_of_sums_between_two_numbers(narrow_tried, groups):
    """257 ones, and what the order leaves of 43 that are very small beside them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(1000, 300, dtype=torch.bfloat16)
    x.scatter_(1, torch.rand(x.shape, generator=generator).argsort(-1)[:, :43], -14.0)
    groups()
    compare(lambda x: F.log_softmax(x * 1, -1), x)
    assert groups() == 1
    assert x.log_softmax(-1).amax(-1).unique().numel() == 2


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)], ids=str)
def test_layer_norm_of_narrow_elements_with_float32_weights(given, dtype, narrow_tried, groups):
    def program(x, w, b):
        weight, bias = (
            made if is_given else None for made, is_given in zip((w, b), given, strict=True)
        )
        return torch.native_layer_norm(x * 2, x.shape[-1:], weight, bias, 1e-5)

    groups()
    for n in NARROW_LENGTHS:
        x = telling("layer_norm", 11, n, dtype, seed=n)
        compare(program, x, weights(x.float()), weights(x.float(), 8))
    assert groups() == sum(joins("layer_norm", n, dtype) for n in NARROW_LENGTHS)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_layer_norm_refuses_weights_of_two_dtypes(dtype, narrow_tried):
    x = numbers(40, 48, dtype=dtype)
    for weight, bias in ((weights(x), weights(x.float())), (weights(x.float()), weights(x))):
        for run in (fused, lambda program, *args: program(*args)):
            with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
                run(lambda x, w, b: F.layer_norm(x * 2, x.shape[-1:], w, b), x, weight, bias)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_narrow_sums_of_all_elements(name, dtype, narrow_tried, groups):
    groups()
    counts = (*NARROW_LENGTHS, *NARROW_LONG, 32767, 32769, 50_001, 65536, 65537, 98305, 200_003)
    for threads in (1, 2, 3):
        with threads_of_torch(threads):
            for n in (*counts, 1 << 18):
                made = [make(n, dtype=dtype, seed=n) for make in (cancelling, mirrored)]
                compare(SUMS[name], *made)
    assert groups() >= 3 * len(counts)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sums_of_many_threads_are_added_like_elements(dtype, narrow_tried):
    """There is one more vector of them with 16."""
    for threads in (15, 16, 17, 33):
        with threads_of_torch(threads):
            for n in (32768, 40_000, 700_001):
                compare(SUMS["sum"], *(cancelling(n, dtype=dtype, seed=i) for i in range(2)))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_rows_of_special_values(dtype, narrow_tried):
    for name, share, n in itertools.product(
        NARROW_ROWS, (0.01, 0.1, 0.7), (3, 10, 16, 17, 32, 39, 64, 77, 200)
    ):
        compare(ROWS[name], numbers(40, n, dtype=dtype, seed=n, special=share))
    for share, n in itertools.product((0.001, 0.5, 1), (3, 17, 200, 5000)):
        x, y = (numbers(n, dtype=dtype, seed=n + i, special=share) for i in range(2))
        for program in SUMS.values():
            compare(program, x, y)
    zeros = torch.full((20, 40), -0.0, dtype=dtype)
    for name in NARROW_ROWS:
        compare(ROWS[name], zeros)
        compare(ROWS[name], torch.full((20, 40), torch.finfo(dtype).max, dtype=dtype))
    compare(lambda x: ((x * 1).sum(-1), (x * 1).sum(), (x * 1).mean(-1), (x * 1).mean()), zeros)
    large = torch.full((20, 1000), torch.finfo(dtype).max, dtype=dtype)
    compare(lambda x: ((x * 1).sum(-1), (x * 1).sum(), (x * 1).mean(-1), (x * 1).mean()), large)


# Of two tensors of one shape and the dims that are reduced.
CHAINS = {
    "sum of products": lambda x, y, dims: (x * y).sum(dims),
    "mean of products": lambda x, y, dims: (x * y).mean(dims, keepdim=True),
    "mean of squares": lambda x, y, dims: (x - y).square().mean(dims),
    "variance": lambda x, y, dims: (x * y).var(dims),
    "what is done with sums": lambda x, y, dims: (x * y).sum(dims, keepdim=True) * 0.5 + x,
    "standardised": lambda x, y, dims: (x - (x * y).mean(dims, keepdim=True)) * y,
    "two sums": lambda x, y, dims: ((x * y).sum(dims), (x * 0.5).sum(dims), x * y),
    "in float32": lambda x, y, dims: (x * y).sum(dims, dtype=torch.float32),
    "softmax": lambda x, y, dims: F.softmax(x.clamp(-2, 2) * y, dims[-1]),
    "log_softmax": lambda x, y, dims: F.log_softmax(y * 3 - x.clamp(-2, 2), dims[-1]) * y,
    "layer_norm": lambda x, y, dims: F.layer_norm(x + y, x.shape[-1:]),
    "layer_norm of large numbers": lambda x, y, dims: F.layer_norm(
        y * 8 + 256, x.shape[-1:], y[(0,) * (y.dim() - 1)], None, 1e-3
    ),
    "to the narrow dtype": lambda x, y, dims: (x.float() * y).sum(dims, dtype=x.dtype),
}


def any_shape(choice):
    """Elements about vectors and blocks, in up to 5000 rows."""
    near = choice.choice((8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096))
    n = max(2, near + choice.randint(-2, 2)) if choice.random() < 0.7 else choice.randint(2, 5000)
    rows = min(choice.choice((1, 2, 3, 7, 16, 64, 300, 5000)), max(1, 400_000 // n))
    return (rows, n) if choice.random() < 0.6 else (choice.randint(1, 4), rows, n)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_narrow_reductions_of_any_size(name, dtype, narrow_tried):
    choice = random.Random(name)
    for seed in range(40):
        shape = any_shape(choice)
        x, y = (make(*shape, dtype=dtype, seed=seed) for make in (cancelling, mirrored))
        dims = choice.choice([(-1,), (-1,), (0,), (-2, -1), tuple(range(len(shape)))])
        if choice.random() < 0.3:  # rows are columns, or in any order
            order = choice.sample(range(len(shape)), len(shape))
            x, y = x.permute(order), y.permute(order)
        with threads_of_torch(choice.choice((1, 2, 3))):
            compare(lambda x, y, dims=dims: CHAINS[name](x, y, dims), x, y)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("look", LOOKS)
def test_narrow_rows_as_they_lie_in_memory(look, dtype, narrow_tried):
    for name, columns in itertools.product(NARROW_ROWS, (80, 20)):
        x = telling(name, 80, columns, dtype, seed=0)[:80]
        compare(lambda x, name=name: ROWS[name](LOOKS[look](x)), x)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_random_programs_with_narrow_rows(dtype, narrow_tried, groups):
    groups()
    compare_random_programs(range(20), False, (dtype,), rows=True)
    assert groups() > 100


def test_a_sum_and_rows(tried):
    """torch's threads share the elements of a sum, and not by rows."""
    x = numbers(301, 333, dtype=torch.float32)
    compare(lambda x: (F.softmax(x * 2, -1), (x * 2).sum(), (x * 2).mean(-1)), x)
    compare(lambda x: ((x * 2).sum(), F.softmax(x * 2, -1), (x * 3).amax()), x)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_narrow_dtypes_have_eagers_bits(name, dtype, tried):
    for n in (10, 32, 45, 64, 100):
        compare(ROWS[name], numbers(9, n, dtype=dtype, seed=n))


def test_a_dtype_that_is_asked_for(tried):
    x = numbers(40, 40, dtype=torch.float32)
    compare(lambda x: ((x * 2).sum(-1, dtype=torch.float64), (x * 2).mean(dtype=torch.float64)), x)
    compare(lambda x: F.softmax(x * 2, -1, dtype=torch.float64), x)


@pytest.mark.parametrize("name", ROWS)
def test_fused_rows_equal_the_op_alone(name, tried):
    """However the window was cut."""
    for shape in ((64, 100), (300, 10)):
        x = numbers(*shape, dtype=torch.float32)
        with_fusion, without = fused(ROWS[name], x), without_fusion(fused, ROWS[name], x)
        for a, b in zip(listed(with_fusion), listed(without), strict=True):
            same_bits(a, b)


@pytest.mark.parametrize("row", [2, 3, 7, 10, 16, 31])
def test_short_rows_with_what_there_is_once_a_row_or_column(row, tried, groups):
    def program(x):
        mean = x.mean(-1, keepdim=True)
        scaled = (x * 2 - mean) * (weights(x) + 1) / (mean * mean + 1)
        return scaled, mean * 3, (scaled > mean).to(x.dtype).sum(-1), F.softmax(scaled + x, -1)

    for dtype in DTYPES:
        for rows in (2, 5, 33, 1000):
            compare(program, numbers(rows, row, dtype=dtype))
    assert groups() >= 8


@pytest.mark.parametrize("name", ["gelu, tanh", "sigmoid", "silu", "exp2"])
def test_functions_of_whole_vectors(name, groups):
    """torch has another function for what is left over at the end of each thread's share."""
    function = FUNCTIONS[name]
    fused(function, numbers(64, dtype=torch.float32))
    groups()
    for threads in (1, 2, 3):
        with threads_of_torch(threads):
            for n in (64 * threads, 1920, 5 * 64, 16448, 32832, 64 * 1536, 100_000, 100_001):
                compare(function, numbers(n, dtype=torch.float32))
    assert groups() >= 9


FUNCTIONS = {
    "gelu, tanh": lambda x: F.gelu(x * 2, approximate="tanh"),
    "sigmoid": lambda x: (x * 2).sigmoid(),
    "silu": lambda x: F.silu(x * 2),
    "exp2": lambda x: (x * 2).exp2(),
}


def test_a_trial_is_reported():
    fused(ROWS["softmax"], numbers(2, 40, dtype=torch.float32))
    assert _C.tried_ops()["aten::_softmax"][0] in ("same", "other")
