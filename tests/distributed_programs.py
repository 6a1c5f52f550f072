"""What test_distributed.py runs in two processes: eager against lazy, with the gloo backend.

Usage: python -m tests.distributed_programs RANK FILE; FILE is where the processes meet.
"""

from __future__ import annotations

import datetime
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives

from tests.models.compare import check
from tests.models.training import WAYS, Program, Side

PROCESSES = 2
PATIENCE = datetime.timedelta(seconds=60)  # with a process that has failed


def collectives(side: Side) -> Any:
    rank = dist.get_rank()
    x = side(torch.arange(6.0) + rank)
    reduced, tripled, sent = x.clone(), x * 3, x * (rank + 1)
    dist.all_reduce(reduced)
    work = dist.all_reduce(tripled, async_op=True)
    assert work is not None
    work.wait()
    parts = [side(torch.zeros(6)) for _ in range(PROCESSES)]
    dist.all_gather(parts, x * 2)
    dist.broadcast(sent, 0)
    whole, half = side(torch.zeros(12)), side(torch.zeros(3))
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter(half, [(x * 2)[:3], (x * 2)[3:]])
    received = side(torch.zeros(6))
    dist.send(x * 5, 1) if rank == 0 else dist.recv(received, 0)
    dist.barrier()
    objects: list[Any] = [None] * PROCESSES
    dist.all_gather_object(objects, {"rank": rank, "x": x * 2})
    return [reduced, tripled * 2, parts, sent, whole, half, received + 1, objects]


def functional(side: Side) -> Any:
    """Results are read late."""
    group, x = dist.group.WORLD, side(torch.arange(6.0) + dist.get_rank())
    reduced = functional_collectives.all_reduce(x * 2, "sum", group) + 1
    whole = functional_collectives.all_gather_tensor(x * 2, 0, group) * 2
    half = functional_collectives.reduce_scatter_tensor(x * 2, "sum", 0, group) * 2
    p = side(torch.ones(3)).requires_grad_()
    total = functional_collectives.all_reduce(p * (dist.get_rank() + 1), "sum", group).sum()
    return [t.detach() for t in (reduced, whole, half, total)]


PROGRAMS: dict[str, Program] = {"collectives": collectives, "functional": functional}


def main(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES, timeout=PATIENCE
    )
    for name, program in PROGRAMS.items():
        for way in WAYS:
            print(name, way, flush=True)  # the last line before a failure says where
            check(program, way)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
