"""rms_norm.py against F.rms_norm."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import rms_norm as kernels
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


def both(normalized, eps=None):
    def ours(x, weight=None):
        return kernels.rms_norm(x, normalized, weight, eps)

    def theirs(x, weight=None):
        return F.rms_norm(x, normalized, weight, eps)

    return ours, theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, dims", [((7, 33), 1), ((2, 3, 5), 2), ((5,), 1)], ids=str)
def test_forward_and_backward(shape, dims, dtype, device):
    normalized = shape[-dims:]
    x = (torch.randn(shape, device=device) * 2 + 1).to(dtype)
    weight = torch.randn(normalized, device=device).to(dtype)
    assert_same_as_eager(*both(normalized), x, weight)


@pytest.mark.parametrize("eps", [None, 0.5])
def test_without_weight(eps, device):
    assert_same_as_eager(*both((9,), eps), torch.randn(6, 9, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_default_eps(dtype, device):
    """Values so small that eps decides."""
    x = torch.full((2, 4), 1e-4, device=device).to(dtype)
    ours, theirs = both((4,))
    assert_same(ours(x), theirs(x))


def test_rows_longer_than_a_block(device):
    x, weight = torch.randn(2, LONG, device=device), torch.randn(LONG, device=device)
    assert_same_as_eager(*both((LONG,)), x, weight, tolerances=(1e-5, 2e-5))


def test_more_rows_than_groups(device):
    """Several blocks of rows in a partial sum, a last group that is not full; always the same."""
    x, dy = torch.randn(2, 64 * 32 + 40, 3, device=device, dtype=torch.float64)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    first, second = (kernels.rms_norm_backward_weight(dy, x, (3,), rstd) for _ in range(2))
    assert_same(first, (dy * x * rstd).sum(0))
    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_empty(shape, device):
    x, weight = torch.empty(shape, device=device), torch.ones(shape[-1], device=device)
    assert_same_as_eager(*both(shape[-1:]), x, weight)


def test_not_contiguous(device):
    x, weight = torch.randn(5, 6, 16, device=device), torch.randn(16, device=device)
    for view in (x.mT, x[:, ::2, 1::3], x[0, 0].expand(3, 16)):
        n = view.shape[-1]
        assert_same_as_eager(*both((n,)), view, weight.flip(0)[:n])


def test_errors(device):
    ours, theirs = both((4,))
    x = torch.ones(2, 4, device=device)
    for arguments, text in (
        ((x[:, :3],), "normalized_shape does not fit, got [4]"),
        ((x, x[0, :3]), "shape of weight does not fit, got [3], expected [4]"),
    ):
        assert_same_error(lambda a=arguments: ours(*a), lambda a=arguments: theirs(*a), text)
    with pytest.raises(NotImplementedError, match="dtype of x is not supported"):
        ours(x.long())  # eager computes integers


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        x, weight = torch.empty(8, 100, dtype=torch.bfloat16), torch.empty(100)
        _, rstd = kernels.rms_norm_forward(x, (100,), weight)
        kernels.rms_norm_backward(x, x, (100,), rstd, weight)
        kernels.rms_norm_backward_weight(x, x, (100,), rstd)
    assert compiled == kernels_of(kernels) | {"column_sums_kernel"}
