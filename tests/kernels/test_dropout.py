"""dropout.py against Philox in Python, whose numbers are those of its authors."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import numpy as np
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


class Curand:
    """curandStatePhilox4_32_10 after curand_init(seed, subsequence, offset): for one thread."""

    def __init__(self, seed, subsequence, offset):
        assert offset % 4 == 0
        self.key = seed % WORD, seed // WORD
        self.high = subsequence % WORD, subsequence // WORD
        self.counter = offset // 4

    def uniform4(self):
        """Four float32 in (0, 1]: the word as a float32 is rounded, the rest is exact."""
        words = philox((self.counter % WORD, self.counter // WORD, *self.high), self.key)
        self.counter += 1
        return np.float32(words) * np.float32(2**-32) + np.float32(2**-33)


def torchs_mask(n, itemsize, p, seed, offset, resident):
    """That of torch's kernel for CUDA, thread by thread, as its source has it
    (aten/src/ATen/native/cuda/Dropout.cu, fused_dropout_kernel_vec and fused_dropout_kernel)."""
    vector = next(v for v in (8, 4, 2, 1) if v * itemsize <= 16 and n % v == 0)
    threads = min(-(-n // 256), resident) * 256
    keep = (np.float64 if itemsize == 8 else np.float32)(1 - p)
    kept = np.zeros(n, bool)
    for thread in range(threads):
        state = Curand(seed, thread, offset)
        if vector > 1:
            for start in range(thread * vector, n, threads * vector):
                drawn = np.concatenate([state.uniform4() for _ in range(-(-vector // 4))])
                kept[start : start + vector] = (drawn < keep)[:vector]
        else:
            for start in range(thread, n, threads * 4):
                places = start + threads * np.arange(4)
                there = places < n
                kept[places[there]] = (state.uniform4() < keep)[there]
    return torch.from_numpy(kept)


# A size a block does not fill, one that needs several blocks, and several turns of each thread; of
# each vector width.
SIZES = [
    (n, resident)
    for n, resident in ((3, 4), (255, 4), (258, 4), (1026, 4), (1028, 1), (1201, 1), (5001, 2),
                        (5002, 2), (5004, 1), (8200, 2))
]  # fmt: skip


@pytest.mark.parametrize("n, resident", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_dropout_is_torchs(dtype, n, resident, device):
    """The number of each element is that which torch's thread draws for it; what is dropped is
    multiplied by 0, so that what is infinite becomes NaN."""
    seed, offset, p = 2**63 + 12345678901234567, 4 * (2**33 + 5), 0.3
    kept = torchs_mask(n, dtype.itemsize, p, seed, offset, resident).to(device)
    x = torch.randn(n, device=device).to(dtype)
    x[::5] = torch.inf
    y, mask = kernels.native_dropout(x, p, seed=seed, offset=offset, resident=resident)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scale = torch.tensor(1 / torch.tensor(1 - p, dtype=wide).double().item(), dtype=wide)
    assert_same(mask, kept)
    # (Triton's interpreter cuts bfloat16 off where a GPU rounds.)
    exact = None if dtype == torch.bfloat16 else (0, 0)
    assert_same(y, (x.to(wide) * kept.to(wide) * scale.to(device)).to(dtype), exact)


def test_native_dropout_at_the_ends(device):
    x = torch.ones(64, device=device)
    y, mask = kernels.native_dropout(x, 0.0, seed=0, offset=0, resident=1)
    assert_same(y, x)
    assert mask.all()
    assert kernels.native_dropout(x[:0], 0.5, seed=0, offset=0, resident=1)[0].shape == (0,)
    for error, arguments in (
        ("p is out of range, got 1.0", (1.0, 0, 0)),
        ("seed is out of range, got -1", (0.5, -1, 0)),
        ("offset does not fit, got 6", (0.5, 0, 6)),
    ):
        p, seed, offset = arguments
        with pytest.raises(ValueError, match=error):
            kernels.native_dropout(x, p, seed=seed, offset=offset, resident=1)


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        kernels.dropout(torch.ones(4096, dtype=torch.bfloat16), 0.1, seed=2**40)
        for n, dtype in ((4096, torch.bfloat16), (4096, torch.float32), (4098, torch.float16),
                         (4096, torch.float64), (4097, torch.float32)):  # fmt: skip
            x = torch.ones(n, dtype=dtype)
            kernels.native_dropout(x, 0.1, seed=2**63, offset=4, resident=1056)
    assert compiled == kernels_of(kernels)
