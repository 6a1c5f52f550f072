"""Programs people run: each makes its model and gives one step, eager code that knows no lazyeng.

A step returns the tensor that a program would look at (a loss, a prediction). Sizes are those of
small models, where eager's time is overhead rather than arithmetic; shapes in the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

Step = Callable[[], torch.Tensor]


def tiny_chain() -> Step:
    """1,000 pointwise ops on 64 elements."""
    x = torch.rand(64)

    def step() -> torch.Tensor:
        y = x
        for i in range(250):
            y = (y * 0.5 + x - 0.25).relu() if i % 2 else (y + 0.5) * x - y
        return y.sum()

    return step


def tiny_chain_with_products() -> Step:
    """As `tiny_chain`, a product of [16, 16] after every 10 pointwise ops."""
    x = torch.rand(16, 16)

    def step() -> torch.Tensor:
        y = x
        for _ in range(100):
            for _ in range(3):
                y = (y * 0.5 + x - 0.25).clamp(-1, 1)
            y = y @ x
        return y.sum()

    return step


def training(model: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor],
             optimizer: torch.optim.Optimizer) -> Step:  # fmt: skip
    def step() -> torch.Tensor:
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def mlp(device: str = "cpu") -> Step:
    """64-256-256-10, batch 64, AdamW."""
    with torch.device(device):
        model = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )
        x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return training(model, lambda m: F.cross_entropy(m(x), y), optimizer)


class Recommender(nn.Module):
    """DLRM: 26 embedding tables, bottom and top MLP, pairwise dot products between."""

    def __init__(self, rows: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(26))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 27 * 26 // 2, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(27, 27, offset=-1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        found = [table(column) for table, column in zip(self.tables, sparse.unbind(1), strict=True)]
        features = torch.stack([x, *found], 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


def dlrm(batch: int) -> Step:
    """26 lookups and their interaction, inference."""
    model = Recommender()
    dense, sparse = torch.rand(batch, 13), torch.randint(0, 1000, (batch, 26))

    @torch.no_grad()
    def step() -> torch.Tensor:
        return model(dense, sparse).sum()

    return step


def critic() -> nn.Module:
    return nn.Sequential(
        nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    )


def sac(device: str = "cpu") -> Step:
    """Update of twin critics 24-256-256-1, batch 256, with target networks."""
    with torch.device(device):
        critics, targets = nn.ModuleList([critic(), critic()]), nn.ModuleList([critic(), critic()])
        now, later = torch.randn(256, 24), torch.randn(256, 24)
        reward, done = torch.randn(256, 1), torch.zeros(256, 1)
    targets.load_state_dict(critics.state_dict())
    optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4)

    def step() -> torch.Tensor:
        with torch.no_grad():
            best = torch.min(targets[0](later), targets[1](later))
            wanted = reward + 0.99 * (1 - done) * best
        loss = sum((F.mse_loss(c(now), wanted) for c in critics), torch.zeros((), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for target, source in zip(targets.parameters(), critics.parameters(), strict=True):
                target.mul_(0.995).add_(source, alpha=0.005)
        return loss.detach()

    return step


class LanguageModel(nn.Module):
    def __init__(self, words: int = 200, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def next_word_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def lstm() -> Step:
    """Language model, hidden 128, batch 16, 32 words, SGD."""
    model, tokens = LanguageModel(), torch.randint(0, 200, (16, 33))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return training(model, lambda m: next_word_loss(m, tokens), optimizer)


class PackedClassifier(nn.Module):
    """Of sequences of different lengths, by the last states of an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 5)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(
            self.words(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.lstm(packed)
        return self.out(torch.cat(list(last), 1))


def packed_lstm() -> Step:
    """Bidirectional, hidden 32, batch 8 of 5 to 24 words, other lengths in each step, Adam."""
    model, labels = PackedClassifier(), torch.randint(0, 5, (8,))
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(model: nn.Module) -> torch.Tensor:
        lengths = torch.randint(5, 25, (8,))
        tokens = torch.randint(0, 100, (8, int(lengths.max())))
        return F.cross_entropy(model(tokens, lengths), labels)

    return training(model, loss_of, optimizer)


def cnn() -> Step:
    """Two 3x3 convolutions with BatchNorm, images of 8x8, batch 64, AdamW."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip
    x, y = torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))
    optimizer = torch.optim.AdamW(model.parameters())
    return training(model, lambda m: F.cross_entropy(m(x), y), optimizer)


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet18() -> Step:
    """ResNet-18, images of 64x64, batch 4, SGD with momentum."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels, width, stride), Block(width, width, 1)]
        channels = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    x, y = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return training(model, lambda m: F.cross_entropy(m(x), y), optimizer)


class Layer(nn.Module):
    """A transformer layer, norm first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, causal: bool, words: int = 1000, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layers = nn.Sequential(*(Layer(width, 2, causal) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x)))


def bert() -> Step:
    """BERT-tiny: 2 layers, width 128, batch 8, 64 words, a tenth of them masked, AdamW."""
    model, tokens = Transformer(causal=False), torch.randint(1, 1000, (8, 64))
    masked = torch.rand(8, 64) < 0.1
    seen, wanted = tokens.masked_fill(masked, 0), tokens.masked_fill(~masked, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return training(
        model, lambda m: F.cross_entropy(m(seen).flatten(0, 1), wanted.flatten()), optimizer
    )


def gpt2() -> Step:
    """GPT-2-tiny: 2 layers, width 128, batch 8, 63 words, AdamW."""
    model, tokens = Transformer(causal=True), torch.randint(0, 1000, (8, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return training(model, lambda m: next_word_loss(m, tokens), optimizer)


WORKLOADS: dict[str, Callable[[], Step]] = {
    "1,000 tiny ops": tiny_chain,
    "the same, with products": tiny_chain_with_products,
    "MLP, AdamW": mlp,
    "DLRM, batch 1": lambda: dlrm(1),
    "DLRM, batch 128": lambda: dlrm(128),
    "SAC, twin critics": sac,
    "LSTM": lstm,
    "LSTM, packed": packed_lstm,
    "small CNN": cnn,
    "ResNet-18": resnet18,
    "BERT-tiny": bert,
    "GPT-2-tiny": gpt2,
}
