"""python -m tests.out_of_memory: a training step in which the n-th allocation fails, for every n.

For one step after another, in a process that has failing_memory.c preloaded: the step raises what
eager raises; every parameter, buffer, optimizer state and generator has a value that it has after
some op of the eager step (each write was done whole or not at all); the next step gives eager's
bits. Once with a pool that keeps nothing, so that each allocation is torch's and can fail, and once
with the usual one, which gives back what it keeps. Without --mode, all of them, each in a process
of its own. (test_memory.py takes every third n.)
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lazyeng

MODES = ("sync", "async", "deferred")
POOLS = {"no": {"LAZYENG_MAX_POOL_BYTES": "0"}, "usual": {"LAZYENG_MAX_POOL_BYTES": ""}}
ONE, ALL = 1, 1 << 40  # allocations that fail, from the n-th on
SHIM = Path(__file__).parent / "support" / "failing_memory.c"
MESSAGE = "DefaultCPUAllocator: can't allocate memory"

Model = nn.Module
Optimizer = torch.optim.Optimizer
State = tuple[dict[str, Any], dict[str, Any], torch.Tensor]  # model, optimizer, generator
Snapshot = dict[str, bytes]

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


class Network(nn.Module):
    """Products, norms with and without buffers, random numbers, fused chains. Its activations are
    large enough for the buffer pool (32 KiB)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 128)
        self.norm = nn.BatchNorm1d(128)
        self.hidden = nn.Linear(128, 128)
        self.rows = nn.LayerNorm(128)
        self.last = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        x = self.rows(self.hidden(x))
        x = F.dropout((x * 0.5 + 0.25).clamp(-1, 1), 0.1)
        return self.last(x)


class Training:
    """A network after one step (its optimizer has state), which can be put back to that."""

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(0)
        self.model = Network()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.x, self.y = torch.randn(64, 16), torch.randint(10, (64,))
        self.step()
        self.begin = self.copied()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def copied(self) -> State:
        model = lazyeng.unwrap({k: v.clone() for k, v in self.model.state_dict().items()})
        state = self.optimizer.state_dict()
        state["state"] = {
            i: {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kept.items()}
            for i, kept in state["state"].items()
        }
        return model, lazyeng.unwrap(state), torch.get_rng_state()

    def restore(self, state: State) -> None:
        model, optimizer, generator = state
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(copy.deepcopy(optimizer))  # (it keeps the tensors)
        self.optimizer.zero_grad()
        torch.set_rng_state(generator)

    def snapshot(self) -> Snapshot:
        model, optimizer, generator = self.copied()
        seen = {f"model {name}": bits(x) for name, x in model.items()}
        for i, kept in optimizer["state"].items():
            seen |= {f"state {i} {k}": bits(x) for k, x in kept.items() if torch.is_tensor(x)}
        return seen | {"generator": bits(generator)}


def bits(x: torch.Tensor) -> bytes:
    return hashlib.sha256(x.detach().numpy().tobytes()).digest()


def lazily(training: Training, mode: str) -> float:
    with lazyeng.lazy(mode):
        return training.step()


def failing(
    training: Training, step: Callable[[], float], many: int, *, first: int = 1, every: int = 1
) -> Iterator[tuple]:
    """For each n until no allocation fails: (n, how many failed, the loss, the error)."""
    memory = ctypes.CDLL(None)
    n, failed = first, 1
    while failed:
        training.restore(training.begin)
        memory.fail_allocations(ctypes.c_long(n), ctypes.c_long(many))
        loss = error = None
        try:
            loss = step()
        except Exception as caught:
            error = caught.with_traceback(None)  # (its frames hold tensors)
        failed = memory.failed_allocations()
        memory.fail_allocations(ctypes.c_long(0), ctypes.c_long(0))
        yield n, failed, loss, error
        n += every


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for child in error.exceptions:
            yield from leaves(child)
    else:
        yield error


def check_error(error: BaseException, many: int, where: str) -> None:
    """One failed allocation is one failure. When all fail, several ops may have failed."""
    assert many == ALL or not isinstance(error, BaseExceptionGroup), f"{where}: {error!r}"
    for leaf in leaves(error):
        assert isinstance(leaf, RuntimeError) and MESSAGE in str(leaf), f"{where}: {leaf!r}"
        assert type(leaf).__name__ == "RuntimeError", f"{where}: {type(leaf)}"


class EachOp(TorchDispatchMode):
    """Calls `look` after each op."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self.look = look

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        with torch._C._DisableTorchDispatch():
            self.look()
        return result


class Eager:
    """The same training, eagerly: its values at any time of a step, and how a step fails."""

    def __init__(self, optimizer: str) -> None:
        self.training = training = Training(optimizer)
        self.allocations = 0
        for n, failed, loss, error in failing(training, training.step, ALL):
            if failed:
                check_error(error, ONE, f"eager, allocation {n}")
                self.allocations = n
            else:
                self.loss, self.end = loss, training.snapshot()
        assert self.allocations > 0, "nothing failed: is failing_memory.c preloaded?"
        training.restore(training.begin)
        self.seen: dict[str, set[bytes]] = {k: {v} for k, v in training.snapshot().items()}
        with EachOp(self.look):
            training.step()
        assert all(self.end[name] in values for name, values in self.seen.items())

    def look(self) -> None:
        for name, value in self.training.snapshot().items():
            self.seen[name].add(value)

    def next_step(self, state: State) -> tuple[float, Snapshot]:
        self.training.restore(state)
        return self.training.step(), self.training.snapshot()


@functools.cache
def eager_training(optimizer: str) -> Eager:
    return Eager(optimizer)


def check(mode: str, optimizer: str, many: int, lazy_model: bool, first: int, every: int) -> str:
    """All n of one kind, or every so many from the first on; what happened, in words.

    Raises:
        AssertionError: something is not as eager would have left it.
    """
    eager = eager_training(optimizer)
    training = Training(optimizer)
    if lazy_model:
        lazyeng.wrap(training.model)
    errors = right = 0
    step = functools.partial(lazily, training, mode)
    for n, failed, loss, error in failing(training, step, many, first=first, every=every):
        where = f"{mode}, {optimizer}, allocation {n}"
        if error is None:  # nothing failed, or the pool gave its memory back and it was enough
            assert not failed or many == ONE, f"{where}: no error"
            assert (loss, training.snapshot()) == (eager.loss, eager.end), f"{where}: wrong result"
            right += failed != 0
        else:
            errors += 1
            check_error(error, many, where)
            if lazy_model:  # (what the failed step has written is failed, until it is overwritten)
                training.restore(training.begin)
            for name, value in training.snapshot().items():
                assert value in eager.seen[name], f"{where}: {name} is corrupt"
        after = training.copied()
        expected = eager.next_step(after)
        torch.set_rng_state(after[2])
        got = lazily(training, mode), training.snapshot()
        assert got == expected, f"{where}: the next step differs"
    return (
        f"{mode}, {optimizer}, {'lazy' if lazy_model else 'plain'} parameters, "
        f"{'all allocations from the n-th on' if many == ALL else 'the n-th allocation'}: "
        f"{errors + right} values of n ({eager.allocations} in eager), {errors} errors, "
        f"{right} steps that came out right all the same"
    )


def built(source: Path, *command: str) -> Path:
    """The shared library that `command` compiles of a file, made anew if it is older than that."""
    target = source.parents[2] / "build" / f"{source.stem}.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", str(source), "-o", str(made)]
        subprocess.run([*command, *options], check=True)
        made.rename(target)
    return target


def run_preloaded(library: Path, *arguments: str, seconds: float, **environment: str) -> str:
    """What `python arguments` printed, with the library preloaded.

    Raises:
        AssertionError: it failed, or died; the message has the end of its output.
    """
    # In front of a sanitizer's allocator, which calls come to afterwards.
    preload = f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()
    options = f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0".lstrip(":")
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, timeout=seconds,
        env=os.environ | {"LD_PRELOAD": preload, "ASAN_OPTIONS": options} | environment,
    )  # fmt: skip
    assert result.returncode == 0, (
        f"exit status {result.returncode}:\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    )
    return result.stdout


def run(mode: str, every: int = 1, *, pool: str, seconds: float = 170) -> str:
    """Checks of a mode, with every so many n, in a process of its own; what it printed. Raises as
    run_preloaded."""
    arguments = ("-m", "tests.out_of_memory", "--mode", mode, "--every", str(every))
    return run_preloaded(built(SHIM, "cc"), *arguments, seconds=seconds, **POOLS[pool])


def be_reproducible() -> None:
    """In the process that checks."""
    torch.set_num_threads(1)  # (eager and the engine must sum alike)
    warnings.simplefilter("ignore")  # of failures that nobody has read


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.out_of_memory", description=__doc__)
    parser.add_argument("--mode", choices=MODES, help="in this process, with the shim preloaded")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="of K values of n one")
    options = parser.parse_args()
    mode, every = options.mode, options.every
    if mode is None:
        for pool in POOLS:
            print(f"--- {pool} pool")
            for each in MODES:
                print(run(each, every, pool=pool, seconds=1800), end="", flush=True)
        return
    be_reproducible()
    kinds = [(optimizer, many, False) for optimizer in OPTIMIZERS for many in (ONE, ALL)]
    for i, (optimizer, many, lazy_model) in enumerate([*kinds, ("momentum", ALL, True)]):
        # (What is left out is not the same in all kinds and modes.)
        first = 1 + (i + MODES.index(mode)) % every
        print(check(mode, optimizer, many, lazy_model, first, every), flush=True)


if __name__ == "__main__":
    main()
