"""Ops that torch takes apart into others, and that look at the memory of what they have made."""

import contextlib

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import lazy, wrap

MODES = ["async", "deferred", "sync"]


LENGTHS = {
    "as they are": lambda n: torch.full((38,), n),
    "expanded": lambda n: torch.full((1,), n).expand(38),
    "with gaps": lambda n: torch.full((76,), n)[::2],
    "int32": lambda n: torch.full((38,), n, dtype=torch.int32),
    "int32 with gaps": lambda n: torch.full((76,), n, dtype=torch.int32)[::2],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_ctc_loss_takes_lengths_however_they_lie(mode, lengths, wrapped):
    scores = torch.randn(72, 38, 42).log_softmax(2)
    targets = torch.randint(1, 20, (38, 52))
    sizes = LENGTHS[lengths](72), LENGTHS[lengths](20)
    expected = F.ctc_loss(scores, targets, *sizes)
    with lazy(mode):
        if wrapped:
            scores, targets, *sizes = (wrap(x) for x in (scores, targets, *sizes))
        found = F.ctc_loss(scores, targets, *sizes)
    assert torch.equal(lazyeng.unwrap(found), expected)


def test_ctc_loss_waits_for_lengths_that_a_block_has_written():
    scores = torch.randn(72, 38, 42).log_softmax(2)
    targets = torch.randint(1, 20, (38, 52))
    lengths = torch.full((76,), 70)
    with lazy("deferred"):
        lengths.add_(2)
        found = F.ctc_loss(scores, targets, lengths[::2], torch.full((38,), 20))
    expected = F.ctc_loss(scores, targets, torch.full((38,), 72), torch.full((38,), 20))
    assert torch.equal(lazyeng.unwrap(found), expected)


@pytest.mark.parametrize("mode", MODES)
def test_plain_integers_that_a_block_has_written(mode):
    with lazy(mode):
        parts = torch.zeros(2, dtype=torch.long)
        parts += 2
        assert [len(part) for part in torch.ones(5).tensor_split(parts)] == [2, 0, 3]


@pytest.mark.parametrize("mode", MODES)
def test_plain_integers_whose_write_has_failed(mode):
    with contextlib.suppress(IndexError), lazy(mode):  # (the block raises it once more)
        parts = torch.zeros(2, dtype=torch.long)
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            parts.copy_(torch.arange(4)[torch.tensor([1, 9])])
            torch.ones(5).tensor_split(parts)


def test_istft_refuses_in_eagers_words(mode):
    """The error prints a tensor that it has computed."""
    spectrum = torch.randn(33, 20) + 0j

    def refused(x):
        with pytest.raises(RuntimeError) as caught:
            torch.istft(x, 64, 64, window=torch.zeros(64)).sum().item()
        return str(caught.value)

    expected = refused(spectrum)
    assert "window overlap add min" in expected
    with lazy(mode):
        assert refused(spectrum) == expected
        assert refused(wrap(spectrum)) == expected
        window = torch.hann_window(64)
        found = torch.istft(spectrum, 64, 16, window=window)
    assert torch.equal(lazyeng.unwrap(found), torch.istft(spectrum, 64, 16, window=window))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_sparse_products_that_reduce_have_gradients(mode, reduce):
    """(The kernel keeps where the largest was only if somebody wants a gradient.)"""
    sparse = torch.rand(7, 7).relu().to_sparse_csr()
    dense = torch.rand(7, 3, requires_grad=True)

    def gradient():
        product = torch.sparse.mm(sparse, dense, reduce)
        return torch.autograd.grad(product.square().sum(), dense)[0]

    expected = gradient()
    with lazy(mode):
        found = gradient()
    assert torch.equal(lazyeng.unwrap(found), expected)
