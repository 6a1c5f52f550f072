"""Reductions along dims as members of groups: softmax, norms and their like."""

import re

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import _C, lazy, wrap

from .programs.fusion_programs import FLOATS
from .support.fusion_runs import compare_random_programs, fused, same_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.usefixtures("inexact"),
]

aten = torch.ops.aten


def standardise(x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def softmax_by_hand(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def with_weight(norm):
    def run(x):
        weight = torch.linspace(0.5, 1.5, x.shape[-1]).to(x.dtype)
        return norm(x * 2, x.shape[-1:], weight)

    return run


# Each is one group. By name, as rows of 200 and of other lengths go through the same.
PROGRAMS = {
    "softmax": lambda x: F.softmax(x * 0.5 + 0.1, -1),
    "log_softmax": lambda x: F.log_softmax(x.clamp(-1, 1), -1),
    "softmax_backward": lambda x: aten._softmax_backward_data(x + 1, x * 0.1, -1, x.dtype),
    "log_softmax_backward": lambda x: aten._log_softmax_backward_data(
        x * 0.01 + 0.1, x * 0.1, -1, x.dtype
    ),
    "layer_norm": lambda x: F.layer_norm(F.gelu(x), x.shape[-1:]),
    "layer_norm with weight": with_weight(F.layer_norm),
    "native_layer_norm": lambda x: torch.native_layer_norm(
        x * 2 + 1, x.shape[-1:], torch.ones(x.shape[-1], dtype=x.dtype), None, 1e-5
    ),
    "rms_norm": with_weight(F.rms_norm),
    "sum": lambda x: ((x * 2 + 3).sum(-1), (x * 2 + 3).sum(-1, keepdim=True)),
    "mean": lambda x: ((x + 3).mean(-1), (x + 3).mean((-1,), keepdim=True)),
    "maximum": lambda x: ((x * 3).amax(-1), (x * 3).amin(-1, keepdim=True)),
    "count": lambda x: ((x > 0).sum(-1), (x > 0).amax(-1)),
    "variance": lambda x: ((x + 1).var(-1), (x + 1).std(-1, correction=0, keepdim=True)),
    "variance and mean": lambda x: torch.var_mean(x + 3, -1, correction=0),
    "deviation and mean": lambda x: torch.std_mean(x + 3, -1, keepdim=True),
    "logsumexp": lambda x: (x * 3).logsumexp(-1),
    "scale by a row": lambda x: (x * x[:, :1] + x[:, 1:2]).sum(-1) / x.shape[-1] + 1,
    "bias": lambda x: (x + x[0]).amax(-1, keepdim=True) * 2,
    "mse_loss": lambda x: F.mse_loss(x * 2, x),
    "mse_loss sum": lambda x: F.mse_loss(x * 2, x, reduction="sum"),
    "mse_loss none": lambda x: F.mse_loss(x * 2, x, reduction="none"),
}
# Of what eager rounds in between, and subtracts, nothing is left of the narrow dtypes' precision.
WIDE_PROGRAMS = {
    "softmax by hand": softmax_by_hand,
    "standardise": standardise,
    "two folds": lambda x: (x * x.amax(-1, keepdim=True) + x.amin(-1, keepdim=True)).sum(-1),
}


def check(function, *args):
    got, expected = fused(function, *args), function(*args)
    if torch.is_tensor(expected):
        got, expected = [got], [expected]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("shape", [(300, 200), (1024, 33), (3, 11000)], ids=str)
@pytest.mark.parametrize(
    "name, dtype",
    [(name, dtype) for name in PROGRAMS for dtype in FLOATS]
    + [(name, dtype) for name in WIDE_PROGRAMS for dtype in FLOATS[:2]],
)
def test_rows_are_one_group(name, dtype, shape, groups):
    function = (PROGRAMS | WIDE_PROGRAMS)[name]
    x = torch.rand(shape, dtype=torch.float64).to(dtype)
    fused(function, x)  # what the ops return is learnt
    groups()
    check(function, x)
    assert groups() == 1


def test_random_programs_with_reductions(groups):
    for floats in (FLOATS[:1], FLOATS[1:2], FLOATS[2:3], FLOATS[3:]):
        compare_random_programs(range(66), False, floats, rows=True, bits=False)
        assert groups() > 330


LAYOUTS = {
    "two dims": lambda: (torch.rand(60, 40, 6, 7), (-2, -1)),
    "middle dims in memory order": lambda: (torch.rand(40, 32, 35).permute(1, 2, 0), (0, 1)),
    "transposed": lambda: (torch.rand(180, 200).t(), (0,)),
    "channels last": lambda: (
        torch.rand(8, 64, 10, 10).contiguous(memory_format=torch.channels_last),
        (1,),
    ),
    "with gaps": lambda: (torch.rand(300, 400)[:, ::2], (-1,)),
    "rows apart": lambda: (torch.rand(300, 400)[:, 3:203], (-1,)),
    "outer dim": lambda: (torch.rand(200, 300), (0,)),
    "outer of three": lambda: (torch.rand(20, 30, 70), (0, 2)),
    "all but one": lambda: (torch.rand(2, 150, 200), (1, 2)),
    "expanded": lambda: (torch.rand(300, 1).expand(300, 200), (1,)),
}


def shared_by_all_rows(x, y):
    z = y.expand(x.shape) * 2
    return z, F.softmax(x + z, -1)


def overwritten_by_one_row(x, y):
    normed = F.layer_norm(x, x.shape[-1:])
    x.copy_(y)
    return normed, x


@pytest.mark.parametrize("rows", [3, 20_000])  # of one tile, of many
@pytest.mark.parametrize("length", [4, 33, 70])
@pytest.mark.parametrize("program", [shared_by_all_rows, overwritten_by_one_row])
def test_a_row_that_every_row_gets(program, length, rows):
    x, y = torch.rand(rows, length), torch.rand(length)
    for a, b in zip(fused(program, x.clone(), y), program(x, y), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name, keepdim):
    x, dims = LAYOUTS[name]()
    check(lambda x: (x * 2 + 1).sum(dims, keepdim=keepdim), x)
    check(lambda x: x.mean(dims, keepdim=keepdim), x)
    check(lambda x: x - x.amax(dims, keepdim=True), x)
    if len(dims) == 1:
        check(lambda x: F.softmax(x, dims[0]) * 2, x)


def test_dims_decide_a_plan():
    """The results look the same."""
    x = torch.rand(40, 40, 40)
    for dims in (0, 1, 2, (-1,)):
        check(lambda x, dims=dims: (x + 1).sum(dims), x)


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_corrections_decide_a_plan(correction):
    check(lambda x: (x * 2).var(-1, correction=correction), torch.rand(300, 200))


def test_weights_of_several_dims_and_of_another_dtype():
    x = torch.rand(50, 20, 40)
    weight, bias = torch.rand(20, 40), torch.rand(20, 40)
    check(lambda x, w, b: F.layer_norm(x + 1, (20, 40), w, b), x, weight, bias)
    check(lambda x, w: F.layer_norm(x + 1, (40,), w), x.bfloat16(), torch.rand(40))
    check(lambda x, b: F.layer_norm(x + 1, (40,), None, b), x, torch.rand(80)[::2])


def test_a_mask_over_heads(groups):
    """A tensor that neither rows nor columns describe."""
    scores, mask = torch.rand(4, 3, 64, 64), torch.rand(64, 64) > 0.5

    def program(scores, mask):
        masked = scores.masked_fill(mask, float("-inf"))
        return F.softmax(masked, -1), masked.amax(-1)

    fused(program, scores, mask)
    groups()
    check(program, scores, mask)
    assert groups() == 1


def test_strided_tensors_of_two_shapes_are_two_groups(groups):
    x, y = torch.rand(80_000)[::2], torch.rand(200, 410)[:, :200]
    check(lambda x, y: (x * 2, y * 2, x + 1, y.sum(-1)), x, y)
    assert groups() == 2


# --- values


HARD = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, 3e38, -3e38)


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "maximum", "sum", "softmax by hand"])
def test_hard_values_in_a_row(name):
    x = torch.rand(1100, 33)
    for i, value in enumerate(HARD):
        x[i, i] = value
        x[i + 20, :] = value
        x[i + 40, 10:20] = value
    check((PROGRAMS | WIDE_PROGRAMS)[name], x)
    check(lambda x: F.log_softmax(x, -1), x)


def test_what_has_no_order_keeps_its_bits():
    x = torch.randint(-1000, 1000, (300, 200), dtype=torch.int16)

    def program(x):
        y = x * 3
        return y.sum(-1), (y > 5).sum(-1, keepdim=True), y.amax(-1), y.amin(-1), (y > 9).amax(-1)

    for got, want in zip(fused(program, x), program(x), strict=True):
        same_bits(got, want)
    y = torch.randn(300, 200)
    same_bits(fused(lambda y: (y * 2).amax(-1), y), (y * 2).amax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_as_accurate_as_torchs(dtype):
    x = torch.rand(20, 32768).to(dtype)
    exact = x.double().sum(-1) * 2
    worst = ((x.float() * 2).sum(-1) - exact).abs().max()  # torch's
    assert (fused(lambda x: (x.float() * 2).sum(-1), x) - exact).abs().max() <= worst
    y = x.float() + 1000
    variance = y.double().var(-1) * 4
    off = fused(lambda y: (y * 2).var(-1), y) - variance
    assert (off.abs() / variance).max() < 1e-6


def test_equal_elements_have_no_deviation():
    for n in range(33, 1000, 31):
        x = torch.full((1000, n), 0.1) + torch.rand(1000, 1)
        off = fused(lambda x: (x * 3).std(-1), x)
        assert off.max() < 1e-6


def test_exact_mode_gives_the_bits_of_eager():
    _C.set_inexact_fusion(False)
    x = torch.randn(300, 200)
    for name, function in PROGRAMS.items():
        with lazy("deferred"):
            got = lazyeng.unwrap(function(wrap(x)))
        want = function(x)
        for a, b in zip(*((v,) if torch.is_tensor(v) else v for v in (got, want)), strict=True):
            assert torch.equal(a, b), name


# --- order, gradients, failures


def test_rows_in_place():
    def program(x):
        before = x.sum(-1)
        mean = x.mean(-1, keepdim=True)
        x.sub_(mean)
        mean.mul_(2).add_(x[:, :1])
        return before, mean, x, x.amax(-1), x + mean

    x = torch.rand(300, 200)
    expected = program(x.clone())
    for a, b in zip(fused(program, x.clone()), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_views_of_a_result_of_rows():
    def program(x):
        total = x.sum(-1)
        total[1:].add_(total[:-1].clone())
        half = total.view(150, 2)[:, 0]
        half.mul_(3)
        return total, (x * total.unsqueeze(1)).amax(-1)

    x = torch.rand(300, 200)
    for a, b in zip(fused(program, x), program(x), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("size", [200, 250])
def test_gradients(size):
    target, weight = torch.rand(size, 200), torch.rand(200)

    def program(x, target, weight):
        x = x.detach().requires_grad_()
        y = F.layer_norm(F.softmax(x * 3, -1) + F.log_softmax(x, -1), (200,), weight)
        F.mse_loss(y, target).backward()
        return x.grad

    x = torch.rand(size, 200)
    torch.testing.assert_close(fused(program, x, target, weight), program(x, target, weight))


def test_a_member_whose_input_was_changed_fails_alone():
    x, y = torch.ones(300, 200), torch.ones(300, 200)
    with lazy("deferred"):
        a = F.softmax(wrap(y) * 2, -1)
        b = x + 1
        c = a.sum(-1)
        d = (b + a).mean(-1)
    _C.call_outside(x.add_, (1,), {})
    torch.testing.assert_close(lazyeng.unwrap(c), torch.ones(300))
    with pytest.raises(RuntimeError, match="was changed in place") as caught:
        lazyeng.unwrap(d)
    assert caught.value.op == "aten.add.Tensor"
    assert [re.sub(r"#\d+", "", name) for name in caught.value.path][-1].startswith("mean")


def test_a_failed_input_fails_what_reads_it():
    with lazy("deferred"):
        bad = torch.linalg.inv(wrap(torch.zeros(200, 200)))
        good = wrap(torch.rand(200, 200))
        a = F.layer_norm(good * 2, (200,))
        b = (bad + a).amax(-1)
        lazyeng.unwrap(a)
        with pytest.raises(torch.linalg.LinAlgError):
            lazyeng.unwrap(b)
    lazyeng.synchronize()
