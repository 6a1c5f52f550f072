"""Packed sequences: the shapes of what is packed depend on lengths, which are values."""

import random

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import lazyeng
from lazyeng import lazy, unwrap, wrap
from tests.support.outcomes import outcome

DTYPES = [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool]

NETWORKS = {
    "LSTM": lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
    "LSTM with projections": lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True),
    "GRU": lambda: nn.GRU(3, 4, batch_first=True),
    "tanh": lambda: nn.RNN(3, 4, batch_first=True),
    "relu": lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True),
}


def run(make, side):
    """Two sets of lengths of one look, so that what was learned from the first would show."""
    torch.manual_seed(0)
    network, x = side(make()), side(torch.randn(3, 5, 3)).requires_grad_()
    found = []
    for lengths in ([5, 2, 4], [1, 3, 5]):
        packed = pack_padded_sequence(
            x, side(torch.tensor(lengths)), batch_first=True, enforce_sorted=False
        )
        out, sizes = pad_packed_sequence(network(packed)[0], batch_first=True, padding_value=-1)
        out.square().sum().backward()
        found += [packed.data, packed.batch_sizes, packed.unsorted_indices, out, sizes]
    return [t.detach() for t in (*found, x.grad, *(p.grad for p in network.parameters()))]


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_recurrent_networks(make, mode):
    expected = run(make, lambda x: x)
    with lazy(mode):
        inside = run(make, lambda x: x)
    for found in (inside, run(make, wrap)):
        torch.testing.assert_close(unwrap(found), expected, rtol=0, atol=0)


def test_lengths_that_differ_in_sum(mode):
    """Packing from lists; unpacking to a total length."""
    with lazy(mode):
        for sizes in ([4, 2], [3, 3], [5, 1]):
            packed = pack_sequence([torch.ones(n, 2) * n for n in sizes], enforce_sorted=False)
            out, lengths = pad_packed_sequence(packed, batch_first=True, total_length=6)
            assert packed.data.shape == (sum(sizes), 2) and out.shape == (2, 6, 2)
            assert out.sum().item() == 2 * sum(n * n for n in sizes)
            assert lengths.tolist() == sizes


def padded_batches(draw):
    """Layouts with one dim of rows or without, and lengths that fit."""
    steps, sequences = draw.randint(1, 6), draw.randint(1, 5)
    batch_first = draw.random() < 0.5
    features = draw.choice(((), (3,), (2, 3), (1,)))
    sizes = ((sequences, steps) if batch_first else (steps, sequences)) + features
    x = (torch.rand(sizes) * 4).to(draw.choice(DTYPES))
    layout = draw.choice(("dense", "offset", "gaps", "swapped", "expanded"))
    if layout == "offset":
        x = torch.cat([x, x])[x.shape[0] :]
    elif layout == "gaps":
        x = torch.stack([x, x], -1)[..., 0]
    elif layout == "swapped":
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "expanded":
        x = x[:1].expand(sizes)
    lengths = sorted((draw.randint(1, steps) for _ in range(sequences)), reverse=True)
    return x, torch.tensor(lengths), batch_first


@pytest.mark.parametrize("seed", range(30))
def test_what_is_packed_is_what_eager_packs(seed: int, mode: str):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(10):
        x, lengths, batch_first = padded_batches(draw)
        grad = draw.random() < 0.5 and x.is_floating_point()
        arguments = [x.detach().requires_grad_() if grad else x for _ in range(3)]
        expected = torch._VF._pack_padded_sequence(arguments[0], lengths, batch_first)
        with lazy(mode):
            inside = torch._VF._pack_padded_sequence(arguments[1], lengths, batch_first)
            for result in inside:
                assert type(result) is lazyeng.LazyTensor
        outside = torch._VF._pack_padded_sequence(
            lazyeng.wrap(arguments[2].detach()).requires_grad_(grad), wrap(lengths), batch_first
        )
        for found in (inside, outside):
            assert str(found[0].grad_fn).partition(" ")[0] == (
                str(expected[0].grad_fn).partition(" ")[0])  # fmt: skip
            for result, one in zip(found, expected, strict=True):
                assert (result.dtype, result.stride()) == (one.dtype, one.stride())
                assert torch.equal(unwrap(result.detach()), one.detach())


@pytest.mark.parametrize(
    "lengths",
    [[4, 5, 1], [5, 4, 0], [5, -1, -1], [6, 5, 1], [5, 4], [5, 4, 3, 2], [], [[5, 4, 3]],
     [5.0, 4.0, 1.0]],
    ids=str,
)  # fmt: skip
def test_lengths_that_do_not_fit_are_refused_at_the_call(lengths: list[int], mode: str):
    def pack():
        torch._VF._pack_padded_sequence(torch.ones(5, 3, 2) * 2, torch.tensor(lengths), False)

    expected = outcome(pack, Exception)
    with lazy(mode):
        assert outcome(pack, Exception) == expected


@pytest.mark.parametrize("sort", [True, False])
def test_packing_waits_for_nothing_but_lengths(sort: bool):
    x, lengths = torch.rand(3, 5, 2), torch.tensor([5, 4, 1])
    with lazy():  # (the first calls of a kind run at once)
        pack_padded_sequence(x * 2, lengths, True, not sort)
    with lazy("deferred"):
        pending = x * 2
        before = lazyeng.engine_stats()["executed"]
        packed = pack_padded_sequence(pending, lengths, True, enforce_sorted=not sort)
        assert packed.batch_sizes.tolist() == [3, 2, 2, 2, 1]
        # (Sorting the lengths, and what pads them.)
        assert lazyeng.engine_stats()["executed"] <= before + 3
        assert lazyeng.engine_stats()["pending_ops"] >= 2
    assert torch.equal(packed.data[:3], x[:, 0] * 2)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
@pytest.mark.parametrize("features", [(), (3,)], ids=str)
def test_dtypes_of_few_kernels_are_packed(features: tuple[int, ...], dtype: torch.dtype, mode: str):
    x = torch.arange(6 * max(1, sum(features))).view(3, 2, *features)
    expected = pack_padded_sequence(x, torch.tensor([3, 1])).data
    with lazy(mode):
        packed = pack_padded_sequence(x.to(dtype), torch.tensor([3, 1]))
        assert packed.data.dtype == dtype
        assert torch.equal(packed.data.long(), expected)
