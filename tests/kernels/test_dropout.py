"""dropout.py against Philox in Python, whose numbers are those of its authors."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import dropout as kernels

from tests.kernels.compare import (
    ARCHES,
    DTYPES,
    assert_same,
    assert_same_as_eager,
    assert_same_error,
    compiling,
    kernels_of,
)

WORD = 2**32


def philox(counter, key):
    """Philox 4x32-10 as in the paper: four numbers for four counter words and two of the key."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = b // WORD ^ c1 ^ k0, b % WORD, a // WORD ^ c3 ^ k1, a % WORD
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return c0, c1, c2, c3


def mask_of(n, p, seed, offset=0):
    """Which of n elements are kept."""
    numbers = []
    for i in range(-(-n // 4)):
        counter = (offset % WORD, offset // WORD, i % WORD, i // WORD)
        numbers += philox(counter, (seed % WORD, seed // WORD))
    return torch.tensor([(r >> 8) / 2**24 < 1 - p for r in numbers[:n]])


def test_reference_has_the_published_numbers():
    """Known answers of Random123's kat_vectors."""
    assert philox((0,) * 4, (0,) * 2) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((WORD - 1,) * 4, (WORD - 1,) * 2) == (
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD
    )  # fmt: skip


@pytest.mark.parametrize(
    "p, seed, offset", [(0.5, 0, 0), (0.1, 123456789012345, 7), (0.75, 2**63 - 1, 2**40 + 3)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mask_is_philox(dtype, p, seed, offset, device):
    """More than one block, which is not full; forward and backward have the same mask."""
    kept = mask_of(1203, p, seed, offset).to(device)
    x = torch.randn(3, 401, device=device).to(dtype)

    def eager(x):
        return x * kept.view(3, 401) / (1 - p)

    def ours(x):
        return kernels.dropout(x, p, seed=seed, offset=offset)

    assert_same_as_eager(ours, eager, x)


def test_share_of_zeros(device):
    x = torch.ones(10_000, device=device)
    for p in (0.1, 0.5):
        zeros = (kernels.dropout(x, p, seed=1) == 0).float().mean().item()
        assert abs(zeros - p) < 4 * (p * (1 - p) / 10_000) ** 0.5, (p, zeros)


def test_all_or_nothing(device):
    x = torch.randn(9, device=device)
    assert_same(kernels.dropout(x, 0.0, seed=3), x)
    assert_same_as_eager(
        lambda x: kernels.dropout(x, 1.0, seed=3), lambda x: F.dropout(x, 1.0, True), x
    )
    assert kernels.dropout(x, 0.5, seed=3, training=False) is x


def test_not_contiguous_and_empty(device):
    x = torch.randn(8, 6, device=device)
    expected = x.t().contiguous() * mask_of(48, 0.5, 5).view(6, 8).to(device) * 2
    assert_same(kernels.dropout(x.t(), seed=5), expected)
    assert kernels.dropout(x[:0], seed=5).shape == (0, 6)


def test_errors(device):
    x = torch.ones(2, device=device)
    assert_same_error(
        lambda: kernels.dropout(x, 1.5, seed=0), lambda: F.dropout(x, 1.5), "p is out of range"
    )
    with pytest.raises(ValueError, match=r"seed is out of range, got -1, expected 0 to 2\*\*63"):
        kernels.dropout(x, seed=-1)
    with pytest.raises(NotImplementedError, match="dtype of x is not supported"):
        kernels.dropout(x.long(), seed=0)


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        kernels.dropout(torch.ones(4096, dtype=torch.bfloat16), 0.1, seed=2**40)
    assert compiled == kernels_of(kernels)
