"""What test_distributed.py runs in two processes: eager against lazy, with the gloo backend.

Usage: python -m tests.programs.distributed_programs NAME RANK FILE; FILE is where the processes
meet. NAME: a function of ROLES. Without RANK and FILE: under_torchrun, in the processes that
torchrun starts.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

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


def more_collectives(side: Side) -> Any:
    rank = dist.get_rank()
    x = side(torch.arange(6.0) + rank)
    least, product, half, swapped = x.clone(), x + 1, side(torch.zeros(3)), side(torch.zeros(6))
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(product, dist.ReduceOp.PRODUCT)
    dist.reduce_scatter_tensor(half, x * 2)
    dist.all_to_all_single(swapped, x * 3)
    uneven = side(torch.zeros(4 if rank == 0 else 8))
    dist.all_to_all_single(uneven, x, [2, 2] if rank == 0 else [4, 4], [2, 4])
    exchanged = [side(torch.zeros(3)) for _ in range(PROCESSES)]
    dist.all_to_all(exchanged, [x[:3] * 7, x[3:] * 7])
    kept, gathered = x * 11, [side(torch.zeros(6)) for _ in range(PROCESSES)]
    dist.reduce(kept, 1)
    dist.gather(x, gathered if rank == 1 else None, 1)
    mine = side(torch.zeros(6))
    dist.scatter(mine, [x * 2, x * 5] if rank == 0 else None, 0)
    numbers = side(torch.arange(4)) * (rank + 2)
    dist.all_reduce(numbers)
    turned = side(torch.ones(2, dtype=torch.complex64)) * (1 + 2j)
    dist.all_reduce(turned)
    strided = (x * 2).reshape(2, 3).t()
    dist.all_reduce(strided)
    if rank == 0:
        kept = kept * 0  # (what it is there is the backend's business)
    results = [least, product, half, swapped, uneven, exchanged, kept, gathered, mine]
    return [*results, numbers, turned, strided]


def crossing(side: Side) -> Any:
    """What ends in another order than it begins; each process has the other's order."""
    rank = dist.get_rank()
    first, second = side(torch.zeros(3)), side(torch.zeros(2))
    total = side(torch.ones(2)) * (rank + 1)
    if rank == 0:
        late = dist.irecv(first, 1)
        dist.all_reduce(total)
        sent = dist.isend(total * 2, 1)
        assert late is not None
        late.wait()
    else:
        dist.all_reduce(total)
        late = dist.irecv(second, 0)
        assert late is not None
        late.wait()
        sent = dist.isend(torch.cat([total, second[:1] * 5]), 0)
    assert sent is not None
    sent.wait()
    # Both send first.
    other = side(torch.zeros(100_000))
    works = [dist.isend(side(torch.ones(100_000)) * rank, 1 - rank), dist.irecv(other, 1 - rank)]
    for work in works:
        assert work is not None
        work.wait()
    return [first + 1, second + 1, total, other]


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


def five_steps(side: Side) -> Any:
    """The usual loop: a new batch in each step, whose loss is read. Everything of each step is a
    result, in the order in which it is made: the first that differs tells where."""
    layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model = DistributedDataParallel(side(layers))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.Generator().manual_seed(dist.get_rank())
    steps = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        moments = [optimizer.state[p] for p in model.parameters()]
        kept = [[p.grad for p in model.parameters()], moments, state(model)]
        steps.append([loss.item(), tree_map_only(Tensor, Tensor.clone, kept)])
    return steps


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


def fully_sharded_in_bfloat16(side: Side) -> Any:
    """Weights are gathered in bfloat16 and gradients reduced in float32; their norm is a DTensor,
    for which the processes meet once more."""
    model = side(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)))
    mesh = init_device_mesh("cpu", (PROCESSES,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(side(torch.randn(5, 6, generator=data))).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        found.append([loss.detach(), whole])
    return [found, [p.detach().to_local() for p in model.parameters()]]


def sparse_gradients(side: Side) -> Any:
    """Sparse tensors are reduced as they are, whose values may be lazy."""
    rank = dist.get_rank()
    summed = torch.eye(3).to_sparse()
    summed._values().mul_(rank + 1)
    dist.all_reduce(summed)
    table = nn.Embedding(6, 3, sparse=True)
    model = DistributedDataParallel(side(table))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.tensor([1, 2 + rank])).square().sum().backward()
        optimizer.step()
    return [summed.to_dense(), state(model)]


PROGRAMS: dict[str, Program] = {
    "collectives": collectives,
    "more_collectives": more_collectives,
    "crossing": crossing,
    "functional": functional,
    "ddp": partial(data_parallel, lambda step: step % 2 == 1, find_unused_parameters=True),
    "ddp_static": partial(data_parallel, lambda step: True, static_graph=True),
    "ddp_views": partial(
        data_parallel, lambda step: step < 2,
        find_unused_parameters=True, gradient_as_bucket_view=True, bucket_cap_mb=1e-4,
    ),
    "sparse": sparse_gradients,
    "fsdp": fully_sharded,
    "fsdp_bfloat16": fully_sharded_in_bfloat16,
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


def check_that_calls_return_at_once() -> None:
    """Also those that write their arguments; in program order with what is recorded around them."""
    rank = dist.get_rank()
    with lazyeng.lazy("deferred"):
        x = torch.arange(4.0) + rank
        total, root, whole, half = x * 2, x * (rank + 5), x.repeat(2), x[:2] * 1
        parts = [x * 0 for _ in range(PROCESSES)]
        got = x * 1
        dist.all_reduce(total)
        dist.broadcast(root, 1)
        dist.all_gather_into_tensor(whole, total)
        dist.reduce_scatter_tensor(half, total)
        dist.all_gather(parts, total)
        dist.all_to_all_single(got, total + rank)
        works = [dist.isend(total, 1 - rank), dist.irecv(x, 1 - rank)]
        total += 1  # after all of these
        lazies = [x, total, root, whole, half, got, *parts]
        assert not any(y.is_ready() for y in lazies)
        assert all(type(y) is lazyeng.LazyTensor for y in lazies)
    expected = torch.tensor([2.0, 6.0, 10.0, 14.0])
    assert total.tolist() == (expected + 1).tolist()
    assert root.tolist() == ((torch.arange(4.0) + 1) * 6).tolist()
    assert whole.tolist() == [*expected.tolist(), *expected.tolist()]
    assert half.tolist() == (expected * 2).chunk(2)[rank].tolist()
    assert [part.tolist() for part in parts] == [expected.tolist()] * PROCESSES
    assert got.tolist() == torch.cat([expected.chunk(2)[rank] + i for i in range(2)]).tolist()
    assert x.tolist() == expected.tolist()
    for work in works:
        assert work is not None
        assert work.wait()


def check_works() -> None:
    """What a Work says of a collective that is recorded and not run, and after it."""
    with lazyeng.lazy("deferred"):
        x = torch.ones(3) * 2
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        assert work.wait()
        assert not x.is_ready()
        future = work.get_future()
        (value,) = future.wait()
        assert type(value) is lazyeng.LazyTensor
        doubled = future.then(lambda done: done.value()[0] * 2).wait()
        (result,) = work.result()
        assert not x.is_ready()
        assert not doubled.is_ready()
        limit = time.monotonic() + 30
        while not work.is_completed():  # asking is enough
            assert time.monotonic() < limit
        assert work.is_success()
    assert doubled.tolist() == [8.0] * 3
    assert value.tolist() == result.tolist() == x.tolist() == [4.0] * 3
    received = lazyeng.wrap(torch.zeros(2))
    if dist.get_rank() == 0:
        dist.send(lazyeng.wrap(torch.ones(2)) * 3, 1)
    else:
        assert dist.recv(received) == 0  # from whom
        assert received.tolist() == [3.0, 3.0]


def check_limits_of_waits() -> None:
    """Who says how long to wait hears that the other process was not there in time."""
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(3)
    with lazyeng.lazy():
        x = x * 2
        if dist.get_rank() == 1:
            store.wait(["was waited for"])
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        if dist.get_rank() == 0:
            try:
                work.wait(datetime.timedelta(milliseconds=50))
                raise AssertionError("it came in time")
            except RuntimeError as error:
                assert "timed out" in str(error), error
            store.set("was waited for", "yes")
        assert work.wait(datetime.timedelta(seconds=60)) and work.is_completed()
    assert x.tolist() == [4.0] * 3


def check_plain_tensors() -> None:
    """Those that a block writes are complete at its end; a Work that is waited for is, too."""
    x, y = torch.ones(3), torch.ones(3)
    with lazyeng.lazy("deferred"):
        dist.all_reduce(x)
        z = x * 2
        work = dist.all_reduce(y, async_op=True)
        assert not z.is_ready()
        assert work is not None
        work.wait()
        assert y.data_ptr()
        dist.all_reduce(y)
    assert y.tolist() == [4.0] * 3
    assert x.tolist() == [2.0] * 3
    # Outside of a block nothing is recorded, but it may not overtake what is.
    for mode in ("deferred", "async"):
        with lazyeng.lazy(mode):
            total = torch.ones(3) * 2
            dist.all_reduce(total)
        dist.all_reduce(x)
        assert x.tolist() == [4.0 if mode == "deferred" else 8.0] * 3
        assert total.tolist() == [4.0] * 3
        with lazyeng.lazy(mode):
            dist.all_reduce(total)
        dist.barrier()
        assert total.tolist() == [8.0] * 3


def check_refusals() -> None:
    """What the backend refuses at the call, it refuses there; the message is eager's."""
    calls: list[Callable[[Callable[..., Tensor]], Any]] = [
        lambda zeros: dist.all_gather([zeros(3), zeros(4)], zeros(3)),
        lambda zeros: dist.all_gather([zeros(3)], zeros(3)),
        lambda zeros: dist.all_gather_into_tensor(zeros(7), zeros(3)),
        lambda zeros: dist.all_gather_into_tensor(zeros(6).double(), zeros(3)),
        lambda zeros: dist.broadcast(zeros(3), 5),
        lambda zeros: dist.all_reduce(zeros(3).short()),
        lambda zeros: dist.gather(zeros(3), [zeros(3), zeros(4)] if dist.get_rank() == 0 else None),
    ]
    for i, call in enumerate(calls):
        errors = []
        for zeros in (torch.zeros, lambda *sizes: lazyeng.wrap(torch.zeros(*sizes))):
            if i == len(calls) - 1 and dist.get_rank() != 0:
                continue
            try:
                call(zeros)
            except Exception as error:
                assert not isinstance(error, lazyeng.LazyError), error
                errors.append((type(error), str(error)))
            else:
                raise AssertionError(f"call {i} was not refused")
        assert len({*errors}) <= 1, errors


def check_failures() -> None:
    """A collective whose input has failed is not begun; nor is what would take its place."""
    x = lazyeng.wrap(torch.ones(3))
    with lazyeng.lazy("deferred"):
        bad = x[torch.tensor([7])] * 2
        dist.all_reduce(bad)
        other = x * 2
        dist.all_reduce(other)
        independent = x * 5
    assert independent.tolist() == [5.0] * 3
    for y in (other, bad):
        try:
            y.tolist()
        except IndexError as error:
            assert isinstance(error, lazyeng.LazyError)
        else:
            raise AssertionError("no failure")
    # It has been told: the program goes on, as in eager.
    again = x * 3
    dist.all_reduce(again)
    assert again.tolist() == [6.0] * 3


def check_models_made_outside_of_blocks() -> None:
    """Their buckets of gradients are plain tensors, at whose memory the reducer looks."""
    ways: dict[str, dict[str, Any]] = {
        "usual": {}, "parts": {"bucket_cap_mb": 1e-4}, "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True}, "compressed": {}, "compiled": {},
        "kept": {"gradient_as_bucket_view": True},
    }  # fmt: skip

    def train(way: str, mode: Any) -> Any:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        data_parallel = DistributedDataParallel(layers, **ways[way])
        if way == "compressed":
            data_parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
        model = (
            torch.compile(data_parallel, backend="eager") if way == "compiled" else data_parallel
        )
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(dist.get_rank())
        with lazyeng.lazy(mode) if mode else contextlib.nullcontext():
            for step in range(4):
                model(torch.randn(5, 6, generator=data)).square().mean().backward()
                if step % 2:  # (gradients that depend on no collective come in between)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=way != "kept")
        return [p.tolist() for p in layers.parameters()]

    for way in ways:
        expected = train(way, None)
        for mode in ("async", "deferred", "sync"):
            assert train(way, mode) == expected, (way, mode)


def check_models_made_inside_of_blocks() -> None:
    """And used outside, where a hook looks at the buckets."""

    def train(block: Any) -> Any:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        with block():
            model = DistributedDataParallel(layers, gradient_as_bucket_view=True)
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(dist.get_rank())
        for step in range(5):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            model(torch.randn(5, 6, generator=data)).square().mean().backward()
            optimizer.step()
        return [p.tolist() for p in layers.parameters()]

    assert train(lazyeng.lazy) == train(contextlib.nullcontext)


def check_wrapped_models() -> None:
    """Large ones, of which nothing is copied as it is small. Their gradients are views of buckets:
    plain tensors that `zero_grad` writes."""

    def train(wrapped: bool, where: Any) -> Any:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300))
        if wrapped:
            lazyeng.wrap(layers)
        model = DistributedDataParallel(layers, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(5):
            optimizer.zero_grad(set_to_none=False)
            with where():
                model(torch.randn(5, 6, generator=data)).square().mean().backward()
            optimizer.step()
        return [p.sum().item() for p in layers.parameters()]

    expected = train(False, contextlib.nullcontext)
    for where in (contextlib.nullcontext, lazyeng.lazy):
        assert train(True, where) == expected, where


class Reducing(TorchDispatchMode):
    """Runs a collective of its own, of a plain tensor, before each op."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dist.all_reduce(torch.ones(1))
        return func(*args, **(kwargs or {}))


def check_collectives_below_a_mode() -> None:
    """They do not overtake what was recorded, which in the other process may have begun. Nor do
    those in inference mode."""
    x = lazyeng.wrap(torch.arange(3.0))
    for _ in range(20):
        sums = [functional_collectives.all_reduce(x * i, "sum", dist.group.WORLD) for i in range(3)]
        with Reducing():
            assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
        with torch.inference_mode():
            dist.all_reduce(ones := torch.ones(2))
        assert ones.tolist() == [2.0, 2.0]
        assert [y.tolist() for y in sums] == [[0.0, 2.0 * i, 4.0 * i] for i in range(3)]


def train_and_compare(rank: int, meeting: str) -> None:
    join(rank, meeting)
    for name, program in PROGRAMS.items():
        for way in WAYS:
            print(name, way, flush=True)  # the last line before a failure says where
            check(program, way)
    leave_with_something_recorded()


def look_at_calls(rank: int, meeting: str) -> None:
    join(rank, meeting)
    for check_one in (
        check_that_collectives_are_recorded, check_that_calls_return_at_once, check_works,
        check_limits_of_waits,
        check_plain_tensors, check_refusals, check_failures, check_models_made_outside_of_blocks,
        check_models_made_inside_of_blocks, check_wrapped_models, check_collectives_below_a_mode,
    ):  # fmt: skip
        print(check_one.__name__, flush=True)
        check_one()
    leave_with_something_recorded()


def leave_with_something_recorded() -> None:
    with lazyeng.lazy("deferred"):
        x = torch.ones(2) * 2
        dist.all_reduce(x)
    dist.destroy_process_group()
    assert x.tolist() == [4.0, 4.0]


def lose_the_peer(rank: int, meeting: str) -> None:
    """The failure is raised where the result is read; the process ends as any other."""
    join(rank, meeting)
    x = lazyeng.wrap(torch.ones(3))
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3
    if rank == 1:
        os._exit(0)
    y, z = x * 2, x * 3
    dist.all_reduce(y)
    dist.all_reduce(z)
    try:
        y.tolist()
    except RuntimeError as error:
        assert isinstance(error, lazyeng.LazyError), error
    else:
        raise AssertionError("no failure")
    print("told", flush=True)
    warnings.simplefilter("ignore")  # of z, that nobody read


def join(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES, timeout=PATIENCE
    )


def under_torchrun() -> None:
    """Who the processes are and where they meet stands in the environment."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    for way in WAYS:
        for program in (five_steps, functional):
            check(program, way)
    # One write, newline included: both processes have one stdout.
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: equal\n")
    leave_with_something_recorded()


ROLES = {role.__name__: role for role in (train_and_compare, look_at_calls, lose_the_peer)}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".* is deprecated", category=FutureWarning)
    if sys.argv[1] == under_torchrun.__name__:
        under_torchrun()
    else:
        ROLES[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
