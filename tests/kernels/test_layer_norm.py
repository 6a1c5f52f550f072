"""layer_norm.py against F.layer_norm and aten::native_layer_norm."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import layer_norm as kernels
from lazyeng.triton_kernels._launch import LOOP_BLOCK

from tests.kernels.compare import (
    ARCHES,
    DTYPES,
    assert_same,
    assert_same_as_eager,
    assert_same_error,
    compiling,
    kernels_of,
)

LONG = 2 * LOOP_BLOCK + 5


def both(normalized, eps=1e-5):
    def ours(x, weight=None, bias=None):
        return kernels.layer_norm(x, normalized, weight, bias, eps)

    def theirs(x, weight=None, bias=None):
        return F.layer_norm(x, normalized, weight, bias, eps)

    return ours, theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, dims", [((7, 33), 1), ((2, 3, 5), 2), ((5,), 1)], ids=str)
def test_forward_and_backward(shape, dims, dtype, device):
    normalized = shape[-dims:]
    x = (torch.randn(shape, device=device) * 2 + 1).to(dtype)
    weight, bias = (torch.randn(normalized, device=device).to(dtype) for _ in range(2))
    assert_same_as_eager(*both(normalized), x, weight, bias)


@pytest.mark.parametrize("given", [(False, False), (True, False), (False, True)])
def test_without_weight_or_bias(given, device):
    x = torch.randn(6, 9, device=device)
    weight, bias = (torch.randn(9, device=device) if is_given else None for is_given in given)
    assert_same_as_eager(*both((9,), eps=0.1), x, weight, bias)


def test_rows_longer_than_a_block(device):
    x = torch.randn(2, LONG, device=device) + 3
    weight, bias = torch.randn(LONG, device=device), torch.randn(LONG, device=device)
    assert_same_as_eager(*both((LONG,)), x, weight, bias, tolerances=(1e-5, 2e-5))


def test_more_rows_than_groups(device):
    """Several blocks of rows in a partial sum, a last group that is not full; always the same."""
    x, dy = torch.randn(2, 64 * 32 + 40, 3, device=device, dtype=torch.float64)
    weight = torch.ones(3, device=device, dtype=torch.float64)
    _, mean, rstd = torch.native_layer_norm(x, (3,), weight, weight, 1e-5)
    ours = kernels.layer_norm_backward_weight(dy, x, (3,), mean, rstd)
    arguments = (dy, x, (3,), mean, rstd, weight, weight, [False, True, True])
    assert_same(ours, torch.ops.aten.native_layer_norm_backward(*arguments)[1:])
    again = kernels.layer_norm_backward_weight(dy, x, (3,), mean, rstd)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


def test_large_mean_does_not_cancel(device):
    """The variance of values around 10,000; a sum of squares would lose it in float32."""
    x = torch.randn(3, 1000, device=device) + 1e4
    expected = F.layer_norm(x.double(), (1000,)).float()
    assert_same(kernels.layer_norm(x, (1000,)), expected, tolerances=(1e-3, 2e-3))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_empty(shape, device):
    x = torch.empty(shape, device=device)
    weight, bias = torch.ones(shape[-1], device=device), torch.ones(shape[-1], device=device)
    assert_same_as_eager(*both(shape[-1:]), x, weight, bias)


def test_not_contiguous(device):
    x = torch.randn(5, 6, 16, device=device)
    weight = torch.randn(16, device=device)
    for view in (x.mT, x[:, ::2, 1::3], x[0, 0].expand(3, 16)):
        n = view.shape[-1]
        assert_same_as_eager(*both((n,)), view, weight[::2].repeat(2)[:n], weight[:n].flip(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_are_those_of_aten(dtype, device):
    x = torch.randn(4, 3, 5, device=device, dtype=dtype)
    ours = kernels.layer_norm_forward(x, (3, 5))
    assert_same(ours, torch.native_layer_norm(x, (3, 5), None, None, 1e-5))


def test_errors(device):
    ours, theirs = both((4,))
    x = torch.ones(2, 4, device=device)
    for arguments, text in (
        ((x.long(),), "dtype of x is not supported, got torch.int64"),
        ((x[:, :3],), "normalized_shape does not fit, got [4]"),
        ((x, x[0, :3]), "shape of weight does not fit, got [3], expected [4]"),
        ((x, None, x), "shape of bias does not fit, got [2, 4], expected [4]"),
    ):
        assert_same_error(lambda a=arguments: ours(*a), lambda a=arguments: theirs(*a), text)


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        x, weight = torch.empty(8, 100, dtype=torch.bfloat16), torch.empty(100)
        _, mean, rstd = kernels.layer_norm_forward(x, (100,), weight, weight)
        kernels.layer_norm_backward(x, x, (100,), mean, rstd, weight)
        kernels.layer_norm_backward_weight(x, x, (100,), mean, rstd)
    assert compiled == kernels_of(kernels) | {"column_sums_kernel"}
