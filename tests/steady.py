"""python -m tests.steady: training steps by the hundred thousand; resident memory stays as it is.

Steps of several kinds take turns: on plain parameters and on lazy ones, read and unread, in blocks
and outside of them, of changing shapes, and some that fail. Memory is printed at equal distances.
The first tenth is warm-up; what is resident after it may grow by --bound, or the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

import lazyeng
from lazyeng import lazy, synchronize, wrap

MIB = 1 << 20
PRINTS = 20
Step = Callable[[int], object]


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)
    )


def training(lazy_model: bool, mode: str, reads: bool) -> Step:
    """Forward, backward and AdamW in a block."""
    model = wrap(network()) if lazy_model else network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 16), torch.randint(4, (32,))

    def one() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def step(_: int) -> object:
        with lazy(mode):
            loss = one()
            return loss.item() if reads else None

    return step


def inference(i: int) -> object:
    """Outside any block, with a new shape each time."""
    x = wrap(torch.ones(i % 97 + 1, 16))
    return ((x * 2 + 1).softmax(-1) @ x.t()).sum().item()


def views_and_writes(i: int) -> object:
    x = torch.zeros(64)
    with lazy():
        x[i % 60 :].add_(i)
        x[:4].copy_(x[-4:] * 0.5)
        return torch.rand_like(x)  # dropped unread


def failing(i: int) -> object:
    """Fails at a read, at the end of a block, or unread and unseen."""
    index = torch.tensor([99, 0, 0])
    x = torch.zeros(3)
    with contextlib.suppress(IndexError):
        if i % 3 == 0:
            return wrap(x)[wrap(index)].tolist()
        with lazy():
            if i % 3 == 1:
                x += x[index]
            else:
                x[index].mul(2)
    return None


def steps() -> Iterator[Step]:
    """Endlessly, one of each kind after the other; of those that fail few."""
    torch.manual_seed(0)
    kinds: list[Step] = [
        training(lazy_model, mode, reads)
        for lazy_model in (False, True)
        for mode in ("async", "deferred")
        for reads in (False, True)
    ]
    kinds += [inference, views_and_writes]
    while True:
        for _ in range(9):
            yield from kinds
        yield from [*kinds, failing]


def run(count: int, show: Callable[[str], object] = print) -> int:
    """Takes that many steps; by how many bytes the resident memory has grown since a tenth of
    them, or has been larger meanwhile."""
    settled = grown = 0
    begin = time.monotonic()
    each = max(count // PRINTS, 1)
    for i, step in zip(range(1, count + 1), steps(), strict=False):
        step(i)
        if i % each and i != count:
            continue
        synchronized()
        now = resident()
        if i <= max(count // 10, each):
            settled = now
        grown = max(grown, now - settled)
        show(f"{i:9} steps, {time.monotonic() - begin:6.0f} s, {now / MIB:7.1f} MiB resident")
    return grown


def synchronized() -> None:
    with contextlib.suppress(IndexError, ExceptionGroup):
        synchronize()
    gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--bound", type=float, default=8, help="MiB; less than 50 bytes a step")
    args = parser.parse_args()
    warnings.simplefilter("ignore", lazyeng.errors.UnseenFailureWarning)
    grown = run(args.steps)
    print(f"grown by {grown / MIB:.1f} MiB since the first tenth")
    sys.exit(grown > args.bound * MIB)


if __name__ == "__main__":
    main()
