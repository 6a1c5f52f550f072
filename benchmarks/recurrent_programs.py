"""Training steps of recurrent layers, 20 words, batch 16: their kernels are many and small.

Each step returns a tensor of one element.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.workloads import Step

WORDS, BATCH, CLASSES = 20, 16, 5


def classifier(layer: nn.RNNBase, packed: bool = False) -> Step:
    """Embedding, layer, linear layer, Adam. `packed`: of other lengths in each step."""
    words, out = nn.Embedding(100, 32), nn.Linear(layer.proj_size or layer.hidden_size, CLASSES)
    parameters = [*words.parameters(), *layer.parameters(), *out.parameters()]
    optimizer = torch.optim.Adam(parameters)
    tokens = torch.randint(0, 100, (BATCH, WORDS))
    labels = torch.randint(0, CLASSES, (BATCH,))

    def step() -> torch.Tensor:
        x = words(tokens)
        if packed:
            lengths = torch.randint(5, WORDS + 1, (BATCH,))
            lengths[0] = WORDS
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        state = layer(x)[1]
        last = state[0] if isinstance(state, tuple) else state
        loss = F.cross_entropy(out(last[-1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


RECURRENT_PROGRAMS: dict[str, Callable[[], Step]] = {
    "LSTM, hidden 64": lambda: classifier(nn.LSTM(32, 64, batch_first=True)),
    "LSTM, projected": lambda: classifier(nn.LSTM(32, 64, proj_size=16, batch_first=True)),
    "LSTM 64, packed": lambda: classifier(nn.LSTM(32, 64, batch_first=True), packed=True),
    "GRU, hidden 64": lambda: classifier(nn.GRU(32, 64, batch_first=True)),
    "GRU, hidden 256": lambda: classifier(nn.GRU(32, 256, batch_first=True)),
    "GRU 64, packed": lambda: classifier(nn.GRU(32, 64, batch_first=True), packed=True),
    "RNN, hidden 64": lambda: classifier(nn.RNN(32, 64, batch_first=True)),
}
