# benchmarks/data.py: how much of loading is hidden behind computing, and what it leaves behind.
"""python -m benchmarks.data [--rounds 5] [--batches 24] [--json FILE]

Loading is real: PNG files made from scikit-learn's sample images are read, decoded and turned into
float tensors. Computing is a chain of matrix products on the batch, by one thread, sized so that it
takes as long as loading does (balanced), a third (load-bound) or three times as long
(compute-bound); once more with a sleep in its place, which stands for work on a device and shows
the loaders alone, as it does not compete with them for the cores.

A round runs one epoch of every loader, in an order that turns with the rounds. Columns are medians
over rounds of ratios taken within a round, so that drift of a shared machine cancels:
  max     time of a step over the larger of loading alone and computing alone (both of that round);
          1.0 is perfect overlap. Target for lazyeng 1.10, where torch's plain loop shows their sum
  torch   time over that of torch's DataLoader with the same workers (target at most 1.02)
  MiB     growth of the process's peak memory during its epochs (without worker processes)
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset

import lazyeng

BATCH, SIDE, WIDTH = 8, 192, 256
WORKLOADS = {"balanced": 1.0, "load-bound": 1 / 3, "compute-bound": 3.0}
Loaders = dict[str, Callable[[], Iterable[torch.Tensor]]]


class Pictures(Dataset[torch.Tensor]):
    """PNG files, decoded to float [3, SIDE, SIDE] when they are asked for."""

    def __init__(self, folder: Path, count: int) -> None:
        self.files = [folder / f"{i}.png" for i in range(count)]
        photos = [Image.fromarray(image) for image in load_sample_images().images]
        for i, file in enumerate(self.files):
            photo = photos[i % len(photos)]
            left, top = 37 * i % (photo.width - SIDE), 23 * i % (photo.height - SIDE)
            photo.crop((left, top, left + SIDE, top + SIDE)).save(file)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(io.BytesIO(self.files[index].read_bytes())) as image:
            data = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
        return data.view(SIDE, SIDE, 3).permute(2, 0, 1).float().div_(255)


# ---- the loaders


def torch_loader(dataset: Dataset, **more: Any) -> Callable[[], Iterable[torch.Tensor]]:
    return lambda: DataLoader(dataset, batch_size=BATCH, **more)


def lazy_loader(dataset: Dataset, **more: Any) -> Callable[[], Iterable[torch.Tensor]]:
    return lambda: lazyeng.DataLoader(dataset, batch_size=BATCH, **more)


def all_loaders(dataset: Pictures) -> Loaders:
    pinned = {"num_workers": 1, "pin_memory": True, "prefetch_factor": 2}
    loaders: Loaders = {
        "torch": torch_loader(dataset),
        "lazyeng": lazy_loader(dataset),
        "torch, 1 worker": torch_loader(dataset, num_workers=1),
        "torch, 1 worker, pinned": torch_loader(dataset, **pinned),
        "lazyeng, 1 worker": lazy_loader(dataset, num_workers=1),
    }
    with contextlib.suppress(ImportError):
        loaders["SPDL"] = spdl_loader(dataset)
    with contextlib.suppress(ImportError):
        from torchdata.stateful_dataloader import StatefulDataLoader

        loaders["torchdata, 1 worker"] = lambda: StatefulDataLoader(
            dataset, batch_size=BATCH, num_workers=1
        )
        loaders["lazyeng.prefetch(torchdata)"] = lambda: lazyeng.prefetch(
            StatefulDataLoader(dataset, batch_size=BATCH)
        )
    return loaders


def spdl_loader(dataset: Pictures) -> Callable[[], Iterable[torch.Tensor]]:
    from spdl.pipeline import PipelineBuilder

    def batches() -> Iterator[torch.Tensor]:
        pipeline = (
            PipelineBuilder()
            .add_source(range(len(dataset)))
            .pipe(dataset.__getitem__, concurrency=1)
            .aggregate(BATCH)
            .pipe(torch.stack)
            .add_sink(2)
            .build(num_threads=1)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    return batches


def counterpart(name: str) -> str:
    """torch's own loader with as many workers."""
    return "torch, 1 worker" if "1 worker" in name else "torch"


# ---- steps


def products(count: int) -> Callable[[torch.Tensor], None]:
    """A step of so many matrix products; reads one number at its end, as a training loop does."""
    weight = torch.eye(WIDTH)

    def step(batch: torch.Tensor) -> None:
        x = batch.flatten()[: 4 * WIDTH * WIDTH].view(4 * WIDTH, WIDTH)
        for _ in range(count):
            x = x @ weight
        x.sum().item()

    return step


def sleeping(seconds: float) -> Callable[[torch.Tensor], None]:
    def step(batch: torch.Tensor) -> None:
        time.sleep(seconds)
        batch.sum().item()

    return step


def per_call(function: Callable[[], Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - start) / repeat


def epoch(loader: Iterable[torch.Tensor], step: Callable[[torch.Tensor], None]) -> float:
    """Seconds for a step; the first batch, with the start of workers, is not counted."""
    iterator = iter(loader)
    step(next(iterator))
    start, steps = time.perf_counter(), 0
    for batch in iterator:
        step(batch)
        steps += 1
    return (time.perf_counter() - start) / steps


# ---- measuring


def peak_mib(reset: bool = False) -> float:
    """The process's peak of resident memory; since the last reset where the system allows one."""
    if reset:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_round(
    loaders: Loaders, step: Callable[[torch.Tensor], None], batch: torch.Tensor, turn: int
) -> dict[str, tuple[float, float, float]]:
    """For each loader: step time, its ratio to the larger of both parts, growth of the peak."""
    names = list(loaders)
    order = names[turn % len(names) :] + names[: turn % len(names)]
    loading = epoch(loaders["torch"](), lambda batch: None)
    larger = max(loading, per_call(lambda: step(batch), 10))
    rows = {}
    for name in order:
        gc.collect()
        before = peak_mib(reset=True)
        seconds = epoch(loaders[name](), step)
        rows[name] = (seconds, seconds / larger, peak_mib() - before)
    return rows


def measure(
    loaders: Loaders, step: Callable[[torch.Tensor], None], batch: torch.Tensor, rounds: int
) -> list[dict[str, Any]]:
    made = [measure_round(loaders, step, batch, turn) for turn in range(rounds)]
    rows = []
    for name in loaders:
        base = counterpart(name)
        rows.append({
            "loader": name,
            "ms": 1e3 * statistics.median(r[name][0] for r in made),
            "max": statistics.median(r[name][1] for r in made),
            "torch": statistics.median(r[name][0] / r[base][0] for r in made),
            "mib": max(r[name][2] for r in made),
        })  # fmt: skip
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}\n{'':30s}{'ms/step':>9s}{'max':>7s}{'torch':>7s}{'MiB':>7s}")
    for row in rows:
        print(
            f"{row['loader']:30s}{row['ms']:9.2f}{row['max']:7.2f}{row['torch']:7.2f}"
            f"{row['mib']:7.1f}"
        )


def num_children(task: Path) -> int:
    """Of one thread. It may have ended since its folder was listed."""
    try:
        return len((task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def counts() -> dict[str, int]:
    gc.collect()
    tasks = Path("/proc/self/task").iterdir()
    children = sum(num_children(task) for task in tasks)
    files = len(os.listdir("/proc/self/fd"))
    return {"threads": threading.active_count(), "processes": children, "descriptors": files}


def abandon(dataset: Pictures, workers: int, times: int) -> dict[str, Any]:
    loader = lazyeng.DataLoader(dataset, batch_size=BATCH, num_workers=workers)
    next(iter(loader))
    before = counts()
    start = time.perf_counter()
    for _ in range(times):
        next(iter(loader))
    seconds = time.perf_counter() - start
    time.sleep(0.5)  # the threads that feed torch's queues are told to end, and take a moment
    return {"workers": workers, "before": before, "after": counts(), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=24, help="in an epoch")
    parser.add_argument("--abandoned", type=int, default=100)
    parser.add_argument("--json", help="write the rows to this file")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*worker processes.*")
    torch.set_num_threads(1)
    report: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count(), "tables": {}}

    with tempfile.TemporaryDirectory() as folder:
        dataset = Pictures(Path(folder), args.batches * BATCH)
        loaders = all_loaders(dataset)
        batch = next(iter(loaders["torch"]()))
        loading = epoch(loaders["torch"](), lambda batch: None)
        product = per_call(lambda: products(20)(batch), 10) / 20
        print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {report['load']:.1f};")
        print(f"loading {loading * 1e3:.1f} ms a batch, a product {product * 1e3:.2f} ms")
        for (name, part), kind in itertools.product(WORKLOADS.items(), ("products", "sleep")):
            wanted = part * loading
            step = products(round(wanted / product)) if kind == "products" else sleeping(wanted)
            rows = measure(loaders, step, batch, args.rounds)
            report["tables"][f"{name}, {kind}"] = rows
            show(f"{name}, computing is {kind}", rows)
        report["abandoned"] = [abandon(dataset, workers, args.abandoned) for workers in (0, 1)]
    for row in report["abandoned"]:
        print(f"\n{args.abandoned} abandoned iterators, {row['workers']} workers")
        print(f"before {row['before']}\nafter  {row['after']}  in {row['seconds']:.1f} s")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
