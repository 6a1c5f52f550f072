# examples/loss_buffer.py: read each loss one step late, so that reading never stalls the engine.
"""`loss.item()` waits for the step that was just recorded: the engine and Python take turns.

The loss of the step *before* has usually been computed by now. `lazyeng.Lagged` keeps it for one
step: `previous = lagged.push(loss)`. Nothing is lost: `flush()` gives the last ones.

    python examples/loss_buffer.py --steps 100
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import lazyeng


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A regression problem: inputs [256, 64] and targets [256, 1] of one linear map, with noise."""
    generator = torch.Generator().manual_seed(0)
    true_map = torch.randn(64, 1, generator=generator)
    inputs = [torch.randn(256, 64, generator=generator) for _ in range(steps)]
    return [(x, x @ true_map + 0.1 * torch.randn(256, 1, generator=generator)) for x in inputs]


def train(steps: int, read: Callable[[torch.Tensor], float | None]) -> tuple[list[float], float]:
    """Trains a network; `read` turns each loss into a number, or None. The numbers, and seconds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    start = time.perf_counter()
    with lazyeng.lazy():
        for inputs, targets in lazyeng.prefetch(batches(steps)):
            loss = F.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            number = read(loss.detach())
            if number is not None:
                seen.append(number)
    return seen, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Read losses at once, or one step late.")
    parser.add_argument("--steps", type=int, default=200)
    steps = max(parser.parse_args().steps, 1)
    train(5, lambda loss: None)  # the first calls of each operator are slower

    at_once, seconds = train(steps, lambda loss: loss.item())
    print(f"read at once        {seconds:6.3f} s  last loss {at_once[-1]:.6f}")

    lagged = lazyeng.Lagged(by=1)

    def read_late(loss: torch.Tensor) -> float | None:
        previous = lagged.push(loss)
        return None if previous is None else previous.item()

    late, seconds = train(steps, read_late)
    late += [loss.item() for loss in lagged.flush()]
    print(f"read one step late  {seconds:6.3f} s  last loss {late[-1]:.6f}")
    print(f"the same {len(late)} losses: {late == at_once}")


if __name__ == "__main__":
    main()
