"""Requests: inference of models, or an operator, of 1 to 20 ms, whose result is read at once.

Each step returns a tensor of one element.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads import Step

CLASSES = 10


class Block(nn.Module):
    """Two convolutions with their norms, and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(2) for layer in (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
            nn.ReLU(),
        )))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Layer(nn.Module):
    """Of a transformer, four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, words, width = x.shape
        heads = self.into(self.norms[0](x)).view(batch, words, 3, 4, width // 4)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, words, width))
        return x + self.feed(self.norms[1](x))


def of_model(model: nn.Module, *shape: int) -> Step:
    """The best class of the first row."""
    model.eval().requires_grad_(False)
    x = torch.randn(shape)
    return lambda: model(x).argmax(-1)[0]


def mlp() -> Step:
    layers = [nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    return of_model(nn.Sequential(*layers, nn.Linear(1024, CLASSES)), 64, 1024)


def small_cnn() -> Step:
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
              nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]  # fmt: skip
    return of_model(nn.Sequential(*layers), 4, 3, 64, 64)


def residual_cnn() -> Step:
    layers = [nn.Conv2d(3, 32, 3, padding=1), *(Block(32) for _ in range(6)),
              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)]  # fmt: skip
    return of_model(nn.Sequential(*layers), 4, 3, 64, 64)


def lstm() -> Step:
    layer = nn.LSTM(128, 256, 2, batch_first=True).requires_grad_(False)
    x = torch.randn(16, 32, 128)
    return lambda: layer(x)[0][:, -1].argmax(1)[0]


def transformer() -> Step:
    model = nn.Sequential(*(Layer(256) for _ in range(4))).eval().requires_grad_(False)
    x = torch.randn(4, 64, 256)
    return lambda: model(x).mean(1).argmax(1)[0]


def product() -> Step:
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    return lambda: torch.sum(left @ right)


def pointwise() -> Step:
    x = torch.randn(4 << 20)
    return lambda: (x * 2 + 1).sin().mean()


def softmax() -> Step:
    x = torch.randn(1024, 4096)
    return lambda: x.softmax(-1).amax()


def sort() -> Step:
    x = torch.randn(1 << 18)
    return lambda: x.sort().values[5]


REQUEST_PROGRAMS: dict[str, Callable[[], Step]] = {
    "MLP": mlp,
    "small CNN": small_cnn,
    "residual CNN": residual_cnn,
    "LSTM": lstm,
    "transformer": transformer,
    "product": product,
    "pointwise": pointwise,
    "softmax": softmax,
    "sort": sort,
}
