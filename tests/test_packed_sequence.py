"""Packed sequences: the shapes of what is packed depend on lengths, which are values."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from lazyeng import lazy, unwrap, wrap

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
