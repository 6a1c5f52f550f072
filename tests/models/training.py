"""What the programs share: a table of them, and the loop that trains five steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import lazyeng

STEPS = 5

# A program builds, trains and returns what it found: nested lists of tensors and values. `side` is
# applied to each model before an optimizer sees it: the identity, or lazyeng.wrap.
Side = Callable[[Any], Any]
Program = Callable[[Side], Any]

# How a program is run lazily: (the block around all of it, its `side`).
WAYS: dict[str, tuple[Callable[[], Any], Side]] = {
    "lazy": (lazyeng.lazy, lambda model: model),
    "deferred": (lambda: lazyeng.lazy("deferred"), lambda model: model),
    "sync": (lambda: lazyeng.lazy("sync"), lambda model: model),
    "wrap": (contextlib.nullcontext, lazyeng.wrap),
}


def eager(program: Program) -> Any:
    torch.manual_seed(0)
    return program(lambda model: model)


def lazily(program: Program, way: str) -> Any:
    """As `eager`, by one of the WAYS; reads everything."""
    block, side = WAYS[way]
    torch.manual_seed(0)
    with block():
        found = program(side)
    return torch.utils._pytree.tree_map_only(Tensor, lambda x: lazyeng.unwrap(x.detach()), found)


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[], Any] = lambda: None,
) -> list[Any]:
    """STEPS steps of the loop that everybody writes; the losses and what `model` is then."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        after()
        losses.append(loss.detach())
    return [losses, state(model)]


def state(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers: running statistics and step counts are results too."""
    return [x.detach() for x in (*model.parameters(), *model.buffers())]
