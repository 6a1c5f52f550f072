"""softmax.py against F.softmax and F.log_softmax."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import softmax as kernels
from lazyeng.triton_kernels._launch import MAX_BLOCK

from tests.kernels.compare import (
    ARCHES,
    DTYPES,
    assert_same_as_eager,
    assert_same_error,
    compiling,
    kernels_of,
)

PAIRS = {"softmax": (kernels.softmax, F.softmax), "log": (kernels.log_softmax, F.log_softmax)}
LONG = 2 * MAX_BLOCK + 5


def both(name):
    ours, theirs = PAIRS[name]
    return ours, lambda x: theirs(x, -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("shape", [(7, 33), (2, 3, 5), (1,), ()])
def test_forward_and_backward(name, shape, dtype, device):
    assert_same_as_eager(*both(name), torch.randn(shape, device=device).mul(3).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PAIRS)
def test_rows_longer_than_a_block(name, dtype, device):
    x = torch.randn(2, LONG, device=device).mul(3).to(dtype)
    # The gradients contain a sum of 32,773 values, of which eager's has rounding errors too.
    assert_same_as_eager(*both(name), x, tolerances=(1e-5, 5e-5))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,)])
def test_empty(name, shape, device):
    assert_same_as_eager(*both(name), torch.empty(shape, device=device))


@pytest.mark.parametrize("name", PAIRS)
def test_not_contiguous(name, device):
    x = torch.randn(5, 6, 8, device=device)
    for view in (x.mT, x[:, ::2, 1::3], x[0, 0].expand(3, 8)):
        assert_same_as_eager(*both(name), view)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("n_cols", [6, LONG])
def test_infinities(name, n_cols, device):
    """Large values do not overflow; -inf counts as nothing; a row of -inf alone, or one with +inf
    or NaN, is NaN as in eager."""
    x = torch.randn(5, n_cols, device=device)
    x[0] = 1e30
    x[1, : n_cols - 2] = -torch.inf  # also the whole first blocks of a long row
    x[2] = -torch.inf
    x[3, 1] = torch.inf
    x[4, 2] = torch.nan
    ours, theirs = both(name)
    torch.testing.assert_close(ours(x), theirs(x), equal_nan=True)


@pytest.mark.parametrize("name", PAIRS)
def test_wrong_dtype(name, device):
    ours, theirs = both(name)
    x = torch.ones(2, 2, dtype=torch.int64, device=device)
    assert_same_error(lambda: ours(x), lambda: theirs(x), "got torch.int64, expected one of")


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        for n_cols in (100, LONG):
            x = torch.empty(8, n_cols, dtype=torch.bfloat16)
            kernels.softmax_backward(x, kernels.softmax_forward(x, log=False), log=False)
    assert compiled == kernels_of(kernels)
