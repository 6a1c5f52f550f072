"""linear_act.py against F.linear and torch's activations."""

import mmap

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import linear_act as kernels

from tests.kernels.compare import (
    ARCHES,
    assert_same,
    assert_same_as_eager,
    assert_same_error,
    compiling,
    kernels_of,
)

EAGER = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def both(activation):
    def ours(x, weight, bias=None):
        return kernels.linear_act(x, weight, bias, activation)

    def theirs(x, weight, bias=None):
        return EAGER[activation](F.linear(x, weight, bias))

    return ours, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", kernels.ACTIVATIONS)
def test_forward_and_backward(activation, dtype, device):
    x, weight, bias = (
        torch.randn(shape, device=device).to(dtype) for shape in ((17, 23), (19, 23), (19,))
    )
    # 16-bit: eager rounds the sum before it applies the activation.
    tolerances = None if dtype == torch.float32 else (2e-2, 4e-2)
    assert_same_as_eager(*both(activation), x, weight, bias, tolerances=tolerances)


@pytest.mark.parametrize("m, n, k", [(130, 300, 70), (1, 1, 1), (300, 3, 129)])
def test_several_tiles(m, n, k, device):
    """Also more blocks of rows and columns than one, none of them full; no bias."""
    x, weight = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    assert_same_as_eager(*both("silu"), x, weight, tolerances=(1e-5, 5e-5))


def test_groups_of_programs_cover_all_tiles(device):
    """10 blocks of rows: a full group of 8 and one that is not."""
    x, weight = torch.randn(10 * 128 - 5, 4, device=device), torch.randn(140, 4, device=device)
    assert_same(kernels.linear_act(x, weight), F.linear(x, weight), tolerances=(1e-5, 1e-5))


def test_shapes_and_strides(device):
    x = torch.randn(3, 4, 5, device=device)
    weight, bias = torch.randn(5, 6, device=device), torch.randn(12, device=device)
    assert_same_as_eager(*both("gelu"), x, weight.t(), bias[::2])
    assert_same_as_eager(*both("relu"), x.mT[:, ::2], weight[:4, ::2].t())
    assert_same_as_eager(*both("relu"), x[0, 0], weight.t())


def test_strides_beyond_32_bits():
    """A block of columns spans more than 2^31 elements; hardly any of that memory is touched."""
    k, stride = 64, 40_000_000
    no_reserve = 0x4000  # (Linux; `mmap` has no name for it)
    pages = mmap.mmap(-1, 2 * k * stride, flags=mmap.MAP_PRIVATE | no_reserve)
    x = torch.frombuffer(pages, dtype=torch.bfloat16).as_strided((4, k), (1, stride))
    x.fill_(1)
    weight = torch.ones(3, k, dtype=torch.bfloat16)
    assert_same(kernels.linear_act(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("m, n, k", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty(m, n, k, device):
    x, weight, bias = (torch.ones(shape, device=device) for shape in ((m, k), (n, k), (n,)))
    assert_same_as_eager(*both("silu"), x, weight, bias)


@pytest.mark.parametrize("activation", kernels.ACTIVATIONS)
def test_extreme_values(activation, device):
    """Far from 0 the activations and derivatives are exact; NaN stays."""
    x = torch.tensor([[-1e4], [-90.0], [-0.0], [90.0], [1e4], [torch.nan]], device=device)
    assert_same_as_eager(*both(activation), x, torch.ones(1, 1, device=device))


def test_errors(device):
    x, weight = torch.ones(2, 4, device=device), torch.ones(3, 4, device=device)
    ours, theirs = both("none")
    for arguments, text in (
        ((x[:, :3], weight), "shape of x does not fit, got [2, 3], expected [..., 4]"),
        ((x, weight, x[0]), "shape of bias does not fit, got [4], expected [3]"),
        ((x, weight.bfloat16()), "dtype of weight differs from x, got torch.bfloat16"),
    ):
        assert_same_error(lambda a=arguments: ours(*a), lambda a=arguments: theirs(*a), text)
    with pytest.raises(NotImplementedError, match="dtype of x is not supported"):
        ours(x.double(), weight.double())
    with pytest.raises(ValueError, match=r"unknown activation, got 'tanh', expected one of 'none'"):
        kernels.linear_act(x, weight, activation="tanh")
    with pytest.raises(RuntimeError, match=r"weight has 1 dims, got \[4\]"):
        ours(x, weight[0])


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "dtype, activation", [(torch.float32, "gelu"), (torch.bfloat16, "gelu_tanh")]
)
def test_compiles(arch, dtype, activation, tmp_path, monkeypatch):
    x, weight, bias = (torch.ones(s, dtype=dtype) for s in ((256, 128), (256, 128), (256,)))
    weight.requires_grad_()
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        kernels.linear_act(x, weight, bias, activation).sum().backward()
    assert compiled == kernels_of(kernels)
