"""What test_distributed.py runs in two processes: eager against lazy, with the gloo backend.

Usage: python -m tests.distributed_programs RANK FILE; FILE is where the processes meet.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lazyeng
from tests.models.compare import check
from tests.models.training import WAYS, Program, Side, state

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
    in_place = torch.ops._c10d_functional.all_reduce_(x * 2, "sum", dist.group.WORLD.group_name)
    in_place = torch.ops._c10d_functional.wait_tensor(in_place) * 2
    p = side(torch.ones(3)).requires_grad_()
    total = functional_collectives.all_reduce(p * (dist.get_rank() + 1), "sum", group).sum()
    return [t.detach() for t in (reduced, whole, half, in_place, total)]


class Branches(nn.Module):
    """Of the two branches a step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.left, self.right = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        y = self.shared(x)
        return self.left(y) if left else self.right(y)


def data_parallel(left_of: Callable[[int], bool], side: Side, **options: Any) -> Any:
    """Gradients are means over the processes: each has other data, and they end up equal."""
    model = DistributedDataParallel(side(Branches()), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for step in range(4):
        if step != 2:
            optimizer.zero_grad()
        x = side(torch.randn(5, 6, generator=data))
        # The gradients of this step are added to those of the next.
        with model.no_sync() if step == 1 else contextlib.nullcontext():
            loss = model(x, left_of(step)).square().mean()
            loss.backward()
        if step != 1:
            optimizer.step()
        found.append([loss.detach(), [p.grad for p in model.parameters()]])
    return [found, state(model)]


def fully_sharded(side: Side) -> Any:
    """FSDP2: parameters are DTensors, gathered for each layer and freed again."""
    model = side(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(side(torch.randn(5, 6, generator=data))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [losses, [p.detach().to_local() for p in model.parameters()]]


PROGRAMS: dict[str, Program] = {
    "collectives": collectives,
    "functional": functional,
    "ddp": partial(data_parallel, lambda step: step % 2 == 1, find_unused_parameters=True),
    "ddp_static": partial(data_parallel, lambda step: True, static_graph=True),
    "ddp_views": partial(
        data_parallel, lambda step: step < 2,
        find_unused_parameters=True, gradient_as_bucket_view=True, bucket_cap_mb=1e-4,
    ),
    "fsdp": fully_sharded,
}  # fmt: skip


def check_that_collectives_are_recorded() -> None:
    """They run in program order when somebody reads, and their failure is raised there."""
    group = dist.group.WORLD
    with lazyeng.lazy("deferred"):
        x = torch.arange(3.0) + dist.get_rank()
        total = functional_collectives.all_reduce(x * 2, "sum", group)
        bad = torch.ops._c10d_functional.all_reduce(x, "sum", "no such group")
        whole = functional_collectives.all_gather_tensor(total[:1], 0, group)
        for y in (total, bad, whole):
            assert type(y) is lazyeng.LazyTensor and not y.is_ready()
    assert whole.tolist() == [2.0, 2.0] and total.tolist() == [2.0, 6.0, 10.0]
    try:
        bad.tolist()
    except RuntimeError as error:
        assert isinstance(error, lazyeng.LazyError) and "no such group" in str(error), error
    else:
        raise AssertionError("no failure")


def main(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES, timeout=PATIENCE
    )
    for name, program in PROGRAMS.items():
        for way in WAYS:
            print(name, way, flush=True)  # the last line before a failure says where
            check(program, way)
    check_that_collectives_are_recorded()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
