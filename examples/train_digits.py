# examples/train_digits.py: train an MLP and a small CNN on handwritten digits, eagerly and lazily.
"""The 1797 handwritten digits of scikit-learn, 8 by 8 pixels, 80 % to train on and 20 % to test.

Each network is trained twice from the same seed: as plain PyTorch, and inside `lazyeng.lazy()`. The
training code is the same. At the end a label is out of range, and the error that comes up two lines
later names the line that caused it.

    python examples/train_digits.py --epochs 20 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lazyeng

CLASSES = 10


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set of (image [1, 8, 8] in 0..1, label); each digit in both alike."""
    pixels, digits = load_digits(return_X_y=True)
    split = train_test_split(pixels, digits, test_size=0.2, stratify=digits, random_state=0)
    train_images, test_images = (torch.tensor(x).float().view(-1, 1, 8, 8) / 16 for x in split[:2])
    train_labels, test_labels = (torch.tensor(y).long() for y in split[2:])
    return TensorDataset(train_images, train_labels), TensorDataset(test_images, test_labels)


def make_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(128, CLASSES),
    )  # fmt: skip


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, CLASSES),
    )  # fmt: skip


def train(model: nn.Module, data: TensorDataset, epochs: int, seed: int, title: str) -> None:
    shuffle = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, batch_size=64, shuffle=True, generator=shuffle)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=epochs * len(loader)
    )
    # Reading the loss of this step would wait for it. Read the one of the step before.
    lagged = lazyeng.Lagged(by=1)
    model.train()
    with Progress(title, epochs * len(loader)) as progress:
        for _ in range(epochs):
            for images, labels in loader:
                loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                previous = lagged.push(loss.detach())
                progress.advance(None if previous is None else float(previous))


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    images, labels = data.tensors
    return (model(images).argmax(dim=1) == labels).float().mean().item()


class Progress:
    """A progress bar with the loss, on a terminal only; at most ten updates a second."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps, self.done, self.shown = title, steps, 0, 0.0
        self.visible = sys.stderr.isatty()

    def advance(self, loss: float | None) -> None:
        self.done += 1
        if self.visible and loss is not None and time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            bar = "#" * (30 * self.done // self.steps)
            text = f"{self.title:<12} [{bar:<30}] {self.done}/{self.steps}  loss {loss:.4f}"
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.visible:
            print(f"\r{'':<79}\r", end="", file=sys.stderr, flush=True)


def run(
    make: Callable[[], nn.Module],
    block: AbstractContextManager,
    title: str,
    args: argparse.Namespace,
) -> tuple[float, float]:
    """Trains and tests one network inside `block`; its accuracy, and the seconds that took."""
    train_set, test_set = load_data()
    torch.manual_seed(args.seed)
    model = make()
    start = time.perf_counter()
    with block:
        train(model, train_set, args.epochs, args.seed, title)
        result = accuracy(model, test_set)
    return result, time.perf_counter() - start


def show_deferred_error() -> None:
    """An error inside an operator comes up where its result is read, and names its own line."""
    images, labels = next(iter(DataLoader(load_data()[1], batch_size=8)))
    model = make_mlp()
    with lazyeng.lazy():
        labels[3] = CLASSES  # one too many
        loss = F.cross_entropy(model(images), labels)
        print("The loss is recorded, and nothing has been raised so far.")
        try:
            print("loss", loss.item())
        except IndexError:
            traceback.print_exc(file=sys.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits, eagerly and lazily.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    run(make_cnn, nullcontext(), "warm-up", argparse.Namespace(epochs=1, seed=0))
    for name, make in (("MLP", make_mlp), ("CNN", make_cnn)):
        for how, block in (("eager", nullcontext()), ("lazy", lazyeng.lazy())):
            result, seconds = run(make, block, f"{name} {how}", args)
            print(f"{name} {how:<6} test accuracy {result:8.4%}  time {seconds:6.2f} s", flush=True)
    print()
    show_deferred_error()


if __name__ == "__main__":
    main()
