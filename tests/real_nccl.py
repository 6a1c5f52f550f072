"""Collectives and DistributedDataParallel over NCCL, eager against lazy:
`python -m tests.real_nccl`, a process for each GPU (one is enough). With `--backend gloo` in two
processes on the CPU, which shows that the program itself is right.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lazyeng

Make = Callable[[Tensor], Tensor]


def collectives(to: Make) -> list[Tensor]:
    """Each kind, from numbers that are the rank's own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = to(torch.arange(6.0) + rank)
    reduced, tripled, sent = x.clone(), x * 3, x * (rank + 1)
    dist.all_reduce(reduced)
    work = dist.all_reduce(tripled, async_op=True)
    assert work is not None
    work.wait()
    parts = [to(torch.zeros(6)) for _ in range(world)]
    dist.all_gather(parts, x * 2)
    dist.broadcast(sent, 0)
    whole, share = to(torch.zeros(6 * world)), to(torch.zeros(6))
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(share, whole * 2)
    everybody = dist.group.WORLD
    assert everybody is not None
    functional = functional_collectives.all_reduce(x + 1, "sum", everybody)
    dist.barrier()
    return [reduced, tripled * 2, *parts, sent, whole, share + 1, functional * 2]


def training(to: Make) -> list[Tensor]:
    """Losses and parameters of five steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = model.to(to(torch.zeros(1)).device)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank() + 1)
    losses = []
    for _ in range(5):
        loss = replica(to(torch.randn(32, 8))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def check(device: torch.device) -> None:
    def there(x: Tensor) -> Tensor:
        return x.to(device)

    def wrapped(x: Tensor) -> Tensor:
        return lazyeng.wrap(there(x))

    for program in (collectives, training):
        expected = [x.cpu() for x in program(there)]
        sides: dict[str, Callable[[], list[Tensor]]] = {}
        if program is collectives:
            sides["wrap"] = lambda: collectives(wrapped)
        for mode in ("async", "deferred", "sync"):
            sides[mode] = lazyeng.lazy(mode)(lambda program=program: program(there))
        for name, side in sides.items():
            found: list[Any] = [lazyeng.unwrap(x).cpu() for x in side()]
            torch.testing.assert_close(found, expected, msg=lambda m, n=name: f"{n}: {m}")
            if dist.get_rank() == 0:
                print("equal:", program.__name__, name, flush=True)
    lazyeng.synchronize()


def run(rank: int, world: int, backend: str, meeting: str) -> None:
    # (torch 2.13 has other names for some collectives, which 2.11 does not have.)
    warnings.simplefilter("ignore", FutureWarning)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        check(device)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_nccl")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    backend = parser.parse_args().backend
    world = torch.cuda.device_count() if backend == "nccl" else 2
    if not world:
        parser.error("expected a GPU, got none (--backend gloo is for CPUs)")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world, backend, os.path.join(folder, "meeting"))
        torch.multiprocessing.spawn(  # pyright: ignore[reportPrivateImportUsage]
            run, arguments, nprocs=world
        )


if __name__ == "__main__":
    main()
