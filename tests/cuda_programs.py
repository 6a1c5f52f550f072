"""Programs for a simulated device "cuda": each `check_...` runs in a process of its own.

The device makes kernels slow, and holds them back, which shows what is not ordered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lazyeng

simulated = torch.ops.simulated_cuda
MODES = ("async", "deferred", "sync")


def slow(us: int = 500) -> None:
    simulated.set_delay(us)


def eventually(condition: Any, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.001)


def _net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


def _train(device: str) -> tuple[list[float], list[torch.Tensor]]:
    model = _net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(4):
        x = torch.randn(32, 8, generator=generator).to(device)
        y = torch.randint(0, 4, (32,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return [loss.item() for loss in losses], [p.detach().cpu() for p in model.parameters()]


def check_training_equals_the_cpu() -> None:
    losses, parameters = _train("cpu")
    for us in (0, 300):
        slow(us)
        for mode in MODES:
            with lazyeng.lazy(mode):
                lazy_losses, lazy_parameters = _train("cuda")
            torch.testing.assert_close(lazy_losses, losses)
            torch.testing.assert_close(lazyeng.unwrap(lazy_parameters), parameters)


def check_the_accelerator_stays_cuda() -> None:
    """A named PrivateUse1 backend would become torch's accelerator; CUDA's backward then fails."""
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    weight = torch.ones(3, device="cuda", requires_grad=True)  # nothing lazy about it
    (weight * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]
    assert torch.ones(1, device="lazyeng").device == torch.device("cuda:0")


def check_devices_have_an_index() -> None:
    with lazyeng.lazy("deferred"):
        assert torch.zeros(3, device="cuda").device == torch.device("cuda:0")
        assert torch.zeros(3).to("cuda").device == torch.device("cuda:0")
        assert torch.zeros(3).to("cuda:1").device == torch.device("cuda:1")


def check_copies_overlap_kernels() -> None:
    """Copies to a device are done while its kernels are not, in a thread that no kernel needs."""
    host = lazyeng.wrap(torch.arange(5.0))
    x = lazyeng.wrap(torch.ones(5, device="cuda"))
    (x + 1).wait()
    simulated.hold(0)
    try:
        busy = x * 2
        copied = host.to("cuda")
        busy_host = busy.cpu()
        eventually(copied.is_ready)
        assert not busy_host.is_ready()
    finally:
        simulated.let_go()
    assert busy_host.tolist() == [2] * 5
    assert copied.tolist() == list(range(5))


def check_copies_have_threads() -> None:
    copied = lazyeng.wrap(torch.ones(5)).to("cuda:1")
    assert copied.cpu().tolist() == [1] * 5
    names = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert {"lazyeng-dev-2", "lazyeng-dev-3"} <= names, names


def check_a_copy_waits_for_kernels_that_read_what_it_overwrites() -> None:
    for mode in MODES:
        with lazyeng.lazy(mode):
            slow(2000)
            x = torch.ones(4, device="cuda")
            doubled = x * 2
            x.copy_(torch.full((4,), 7.0))
            after = x + 1
            assert doubled.tolist() == [2] * 4
            assert after.tolist() == [8] * 4


def check_a_copy_to_the_host_waits_for_kernels() -> None:
    for mode in MODES:
        for non_blocking in (False, True):
            with lazyeng.lazy(mode):
                slow(2000)
                x = torch.ones(4, device="cuda")
                for _ in range(5):
                    x = x * 2
                host = x.to("cpu", non_blocking=non_blocking)
                assert (host + 1).tolist() == [33] * 4
                assert host.numpy().tolist() == [32] * 4


def check_memory_of_a_copy_is_not_reused_too_early() -> None:
    """The result of a copy dies while a kernel that reads it waits: no other copy may get it."""
    for mode in MODES:
        with lazyeng.lazy(mode):
            slow(300)
            sums = []
            for i in range(30):
                x = torch.full((64,), float(i)).to("cuda")
                sums.append(x + 1)
                del x
        for i, total in enumerate(sums):
            assert total.tolist() == [i + 1.0] * 64, (mode, i, total)


class _Batches:
    """Batches of different sizes, in one buffer that is filled anew, as a careless source does."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for i in range(self.n):
            yield {"x": torch.full((3 + i % 4, 5), float(i)), "y": torch.tensor([i])}


def check_prefetch_copies_to_the_device() -> None:
    """Pinned buffers are filled again only when the copy out of them is done."""
    for mode in MODES:
        for us in (0, 1000):
            slow(us)
            with lazyeng.lazy(mode):
                sums = []
                for i, batch in enumerate(lazyeng.prefetch(_Batches(20), device="cuda")):
                    assert type(batch["x"]) is lazyeng.LazyTensor
                    assert batch["x"].device == torch.device("cuda:0")
                    assert batch["x"].shape == (3 + i % 4, 5)
                    sums.append((batch["x"].sum() / batch["x"].numel(), batch["y"] + 1))
            values = [(round(mean.item(), 4), one_more.item()) for mean, one_more in sums]
            assert values == [(i, i + 1) for i in range(20)], (mode, us, values)


def check_the_loader_copies_to_the_device() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    for workers in (0, 2):
        loader = lazyeng.DataLoader(data, batch_size=4, device="cuda", num_workers=workers)
        slow(500)
        seen = [(x.sum(1).tolist(), y.tolist()) for x, y in loader]
        plain = torch.utils.data.DataLoader(data, batch_size=4)
        assert seen == [(x.sum(1).tolist(), y.tolist()) for x, y in plain]


def check_many_threads_copy() -> None:
    slow(100)
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(25):
            x = lazyeng.wrap(torch.full((17,), float(k * 100 + i))).to(f"cuda:{k % 2}")
            y = (x + 1).cpu()
            if y.tolist() != [k * 100 + i + 1.0] * 17:
                wrong.append((k, i, y))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
