"""Programs that read after one operator or a few, each of which takes eager code 5 to 300 us on
all cores: longer than the wake-up of a thread, too short to make up for several.

Each step returns a tensor of one element.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads import Step


def rows(kilo: int) -> torch.Tensor:
    """[kilo, 1024]"""
    return torch.randn(kilo, 1024)


def exp(kilo: int) -> Step:
    x = rows(kilo)
    return lambda: x.exp()[0, 0]


def total(kilo: int) -> Step:
    x = rows(kilo)
    return lambda: torch.sum(x)


def softmax(kilo: int) -> Step:
    x = rows(kilo)
    return lambda: x.softmax(-1)[0, 0]


def best_class(kilo: int) -> Step:
    x, labels = rows(kilo), torch.randint(0, 1024, (kilo,))
    return lambda: torch.sum(x.argmax(1) == labels)


def product(n: int) -> Step:
    x, weight = rows(n), torch.randn(1024, 64)
    return lambda: (x @ weight)[0, 0]


def squared_error(kilo: int) -> Step:
    x, y = rows(kilo), rows(kilo)
    return lambda: (x - y).square().mean()


def gate(kilo: int) -> Step:
    x, y = rows(kilo), rows(kilo)
    return lambda: (x * y + x).sigmoid()[0, 0]


def classify(batch: int) -> Step:
    """An MLP 128-256-256-10."""
    model = nn.Sequential(
        nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    ).requires_grad_(False)
    x, labels = torch.randn(batch, 128), torch.randint(0, 10, (batch,))
    return lambda: F.cross_entropy(model(x), labels)


def convolve(batch: int) -> Step:
    """Images of 3x32x32."""
    layer = nn.Conv2d(3, 16, 3).requires_grad_(False)
    images = torch.randn(batch, 3, 32, 32)
    return lambda: layer(images).amax()


MEDIUM_PROGRAMS: dict[str, Callable[[], Step]] = {
    f"{name} {size}{unit}": lambda make=make, size=size: make(size)
    for name, make, sizes, unit in (
        ("exp", exp, (32, 128, 512), " Ki"),
        ("sum", total, (64, 512), " Ki"),
        ("softmax", softmax, (64, 256), " Ki"),
        ("argmax", best_class, (64, 256), " Ki"),
        ("product", product, (32, 256), "x1024x64"),
        ("squared error", squared_error, (64, 256), " Ki"),
        ("gate", gate, (64, 256), " Ki"),
        ("MLP, batch", classify, (1, 16, 128), ""),
        ("convolution, batch", convolve, (4, 32), ""),
    )
    for size in sizes
}
