"""linear and matmul without gradients: one recorded op each, where nobody can tell."""

import itertools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lazyeng
from lazyeng import lazy, unwrap, wrap

from .support.outcomes import outcome

WAYS = ["async", "deferred", "sync", "wrap"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.complex64]
SCOPES = [torch.no_grad, torch.inference_mode, torch.enable_grad]
INPUTS = [(4,), (3, 4), (1, 4), (2, 3, 4), (2, 1, 3, 4), (5, 0, 4)]
LEFT = [(4,), (3, 4), (2, 3, 4), (5, 2, 3, 4), (1, 2, 3, 4), (1, 3, 4)]
RIGHT = [(4,), (4, 5), (2, 4, 5), (5, 2, 4, 5), (1, 4, 5), (3, 5)]


def numbers(shape, dtype, gaps=False):
    made = torch.randn(shape).mul(4).to(dtype)
    return made if not gaps else torch.stack([made, made], -1)[..., 0]


def tell(function, *args):
    """What a program can see of the result, or the error."""
    try:
        result = function(*args)
    except Exception as error:
        return type(error).__mro__[-4:], str(error).split("\n")[0]
    value = unwrap(result)
    look = value.shape, value.stride(), value.dtype, result._is_view(), result.is_inference()
    return *look, result.requires_grad, value.resolve_conj().tolist()


def tell_lazily(way, function, *args):
    if way == "wrap":
        return tell(function, *map(wrap, args))
    with lazy(way):
        return tell(function, *args)


def assert_the_same(way, function, *args):
    expected = tell(function, *args)
    for _ in range(3):  # as new, as learned, and as known
        assert tell_lazily(way, function, *args) == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scope", SCOPES)
def test_linear_is_eagers(way, dtype, scope):
    for shape, gaps, bias in itertools.product(INPUTS, (False, True), (None, (6,), (1,), (1, 6))):
        x, weight = numbers(shape, dtype, gaps), numbers((6, 4), dtype, gaps)
        others = [] if bias is None else [numbers(bias, dtype)]
        assert_the_same(way, scope()(F.linear), x, weight, *others)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scope", SCOPES)
def test_matmul_is_eagers(way, dtype, scope):
    for left, right, gaps in itertools.product(LEFT, RIGHT, (False, True)):
        assert_the_same(
            way, scope()(torch.matmul), numbers(left, dtype), numbers(right, dtype, gaps)
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_transposed_factors(way, requires_grad):
    """torch looks at `requires_grad`, also under no_grad, to choose the kernel: one that rounds
    otherwise."""
    x = torch.randn(3, 5, 16).transpose(0, 1)
    weight, bias = torch.randn(48, 16), torch.randn(48)
    one_each = torch.randn(3, 16, 1).transpose(1, 2)  # contiguous, by strides that tell nothing
    for factor in (x, x.contiguous(), x[0], x[:, None], one_each):
        for other in (weight, weight.t().contiguous().t()):
            parameter = other.detach().requires_grad_(requires_grad)
            assert_the_same(way, torch.no_grad()(F.linear), factor, parameter, bias)
            assert_the_same(way, torch.no_grad()(F.linear), factor, parameter)
            assert_the_same(way, torch.no_grad()(torch.matmul), factor, parameter.t())
            assert_the_same(way, torch.no_grad()(torch.matmul), parameter, factor.mT)
        left = factor.detach().requires_grad_(requires_grad)
        assert_the_same(way, torch.no_grad()(torch.matmul), left, torch.randn(16, 3))
        assert_the_same(way, torch.no_grad()(torch.matmul), left, torch.randn(5, 16, 3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("who", ["left", "right", "both", "nobody"])
def test_batches_of_one(way, who):
    for left, right in itertools.product([(2, 2, 2), (1, 2, 2)], [(1, 2, 64), (2, 2, 64), (2, 64)]):
        x = torch.randn(left).requires_grad_(who in ("left", "both"))
        y = torch.randn(right).requires_grad_(who in ("right", "both"))
        assert_the_same(way, torch.no_grad()(torch.matmul), x, y)


def test_a_small_product_is_one_op_and_a_large_one_is_not():
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(6, 4), torch.randn(6)
    large = torch.randn(256, 256)
    with lazy("deferred"), torch.no_grad():
        for _ in range(3):
            lazyeng.synchronize()
            y = F.linear(x, weight, bias)
            z = torch.matmul(x, weight.t())
            w = F.linear(large, large, large[0])
        assert "aten::linear" in str(lazyeng.graph(y)) and "view" not in str(lazyeng.graph(z))
        assert "aten::matmul" in str(lazyeng.graph(z)) and "aten::addmm" in str(lazyeng.graph(w))


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.called.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_what_it_sees_in_eager(mode):
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(6, 4), torch.randn(6)

    def called():
        with torch.no_grad(), Names() as names:
            F.linear(x, weight, bias) @ torch.ones(2, 6, 5)
        return names.called

    expected = called()
    assert "aten.addmm.default" in expected
    with lazy(mode):
        assert called() == expected


def test_gradients_have_eagers_nodes():
    weight, bias = torch.randn(6, 4, requires_grad=True), torch.randn(6, requires_grad=True)
    x = torch.randn(2, 3, 4)

    def name(function, *args):
        return type(function(*args).grad_fn).__name__

    calls = (F.linear, x, weight, bias), (torch.matmul, x, weight.t())
    expected = [name(*call) for call in calls]
    with lazy():
        assert [name(*call) for call in calls] == expected
        with torch.no_grad():
            assert F.linear(x, weight, bias).grad_fn is None


def test_a_view_made_without_gradients_may_not_be_written_with(mode):
    factor = torch.ones(6, requires_grad=True)
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(6, 4), torch.randn(6)

    def write():
        with torch.no_grad():
            y = F.linear(x, weight, bias)
        y.mul_(factor)

    expected = outcome(write)  # torch 2.15 returns no view
    with lazy(mode):
        assert outcome(write) == expected


def test_forward_mode_derivatives():
    x, tangent, weight = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(6, 4)

    def derivative():
        return torch.func.jvp(lambda x: F.linear(x, weight), (x,), (tangent,))[1]

    with torch.no_grad():
        expected = derivative()
        with lazy():
            found = derivative()
    assert torch.equal(unwrap(found), expected)


def test_vmap():
    x, weight = torch.randn(5, 2, 3, 4), torch.randn(5, 6, 4)
    with torch.no_grad():
        expected = torch.vmap(F.linear)(x, weight)
        with lazy():
            found = torch.vmap(F.linear)(x, weight)
    assert torch.equal(unwrap(found), expected)


def test_autocast():
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(6, 4), torch.randn(6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = F.linear(x, weight, bias)
        with lazy():
            found = [F.linear(x, weight, bias) for _ in range(3)]
    assert found[0].dtype == torch.bfloat16
    for value in found:
        assert torch.equal(unwrap(value), expected)


def test_tracing_sees_a_product_of_the_input():
    weight = torch.randn(6, 4)
    with lazy(), torch.no_grad():
        traced = torch.jit.trace(lambda x: F.linear(x, weight), torch.randn(2, 3, 4))
    x = torch.randn(2, 3, 4)
    assert torch.allclose(traced(x), F.linear(x, weight))


@pytest.mark.parametrize("way", WAYS)
def test_errors_are_eagers(way):
    for x, weight in [
        ((3, 5), (6, 4)),
        ((2, 3, 5), (6, 4)),
        ((5,), (6, 4)),
        ((2, 3, 4), (3, 4, 5)),
    ]:
        assert_the_same(way, torch.no_grad()(F.linear), torch.randn(x), torch.randn(weight))
        assert_the_same(way, torch.no_grad()(torch.matmul), torch.randn(x), torch.randn(weight))
    assert_the_same(
        way, torch.no_grad()(F.linear), torch.randn(2, 3, 4), torch.randn(6, 4).double()
    )


FIRST_CALLS = """
import sys
import torch
from lazyeng import lazy
weight, bias = torch.rand(5, 4), torch.rand(5)
with torch.no_grad(), lazy():
    for shape in ((4,), (3, 4), (2, 3, 4)):
        torch.nn.functional.linear(torch.rand(shape), weight, bias).tolist()
        (torch.rand(shape) @ weight.t()).tolist()
assert not {"torch._dynamo", "sympy"} & {*sys.modules}
"""


def test_the_first_calls_import_nothing():
    """As meta functions of torch's that are written in Python do, which takes a second."""
    subprocess.run([sys.executable, "-c", FIRST_CALLS], check=True, timeout=120)
