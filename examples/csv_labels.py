# examples/csv_labels.py: a CSV dataset with fewer labels than rows; the error names the batch.
"""The case of MXNet's tutorial on exceptions in asynchronous iterators, on files on disk.

`pixels.csv` has a row for each image, `labels.csv` should have as many. The loader runs ahead of
the training loop, so it meets the missing label batches before the loop does; the loop gets all
batches before it, and then the error in the place of the batch that lacks a label.

    python examples/csv_labels.py --rows 64 --labels 43 --workers 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

import lazyeng


class MissingLabelError(LookupError):
    """There is no label for a row."""

    def __init__(self, file: Path, row: int) -> None:
        super().__init__(f"{file.name} has no label for row {row}")
        self.row = row


class CsvDataset(Dataset[tuple[torch.Tensor, int]]):
    """Rows of one CSV file and labels of another, read when they are asked for.

    Args:
        rows: one sample a line, its values separated by commas.
        labels: one integer a line.
    """

    def __init__(self, rows: Path, labels: Path) -> None:
        self.rows, self.labels = rows, labels
        self.row_starts, self.label_starts = line_starts(rows), line_starts(labels)

    def __len__(self) -> int:
        return len(self.row_starts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        values = line_at(self.rows, self.row_starts[index]).split(",")
        if index >= len(self.label_starts):
            raise MissingLabelError(self.labels, index)
        label = int(line_at(self.labels, self.label_starts[index]))
        return torch.tensor([float(value) for value in values]), label


def line_starts(path: Path) -> list[int]:
    """Where each line of a file begins, in bytes."""
    starts, position = [], 0
    with path.open("rb") as file:
        for line in file:
            starts.append(position)
            position += len(line)
    return starts


def line_at(path: Path, start: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return file.readline().decode()


def write_files(folder: Path, rows: int, labels: int) -> CsvDataset:
    """Writes the first digits of scikit-learn as CSV, with so many of their labels."""
    pixels, digits = load_digits(return_X_y=True)
    pixels_csv, labels_csv = folder / "pixels.csv", folder / "labels.csv"
    pixels_csv.write_text("".join(",".join(map(str, row)) + "\n" for row in pixels[:rows]))
    labels_csv.write_text("".join(f"{digit}\n" for digit in digits[:labels]))
    return CsvDataset(pixels_csv, labels_csv)


def train(loader: lazyeng.DataLoader) -> int:
    """One epoch of a linear classifier; returns how many batches it saw."""
    weights = lazyeng.wrap(torch.zeros(64, 10)).requires_grad_()
    steps = 0
    for images, labels in loader:
        loss = F.cross_entropy(images / 16 @ weights, labels)
        (gradient,) = torch.autograd.grad(loss, weights)
        weights = (weights - 0.1 * gradient).detach().requires_grad_()
        steps += 1
        print(f"batch {steps - 1}: loss {loss.item():.3f}")
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description="A CSV dataset with fewer labels than rows.")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--labels", type=int, default=43)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        dataset = write_files(Path(folder), args.rows, args.labels)
        loader = lazyeng.DataLoader(dataset, batch_size=8, num_workers=args.workers)
        try:
            train(loader)
        except MissingLabelError as error:
            traceback.print_exc(file=sys.stdout)
            print(f"caught: {error} (a LazyError: {isinstance(error, lazyeng.LazyError)})")
        complete = write_files(Path(folder), args.rows, args.rows)
        loader = lazyeng.DataLoader(complete, batch_size=8, num_workers=args.workers)
        print(f"with all labels: {train(loader)} batches")


if __name__ == "__main__":
    main()
