"""Chains: short steps that run in one pass (csrc/fuse/tiles/chains.h), with eager's bits."""

from __future__ import annotations

import itertools

import pytest
import torch

import lazyeng
from tests.support.processes import printed_by

from .programs.fusion_programs import FLOATS
from .support.fusion_runs import fused, same_bits

# Around the vectors and blocks of all instruction sets, and around a tile.
SIZES = (1, 7, 31, 32, 63, 64, 65, 127, 128, 129, 1000, 16384, 16385, 40000)
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40, 65504.0, 3e38)


def numbers(n, dtype, seed=0):
    """Some of them special."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64)
    for i, value in enumerate(SPECIAL):
        x[i * 3 + seed :: 61] = value
    return x.to(dtype)


def groups_of(program, *args):
    """How many run once the ops are known (the first call of some runs at once)."""
    expected = program(*args)
    same_bits(fused(program, *args), expected)
    before = lazyeng.engine_stats()["groups"]
    same_bits(fused(program, *args), expected)
    return lazyeng.engine_stats()["groups"] - before


PROGRAMS = {
    "numbers": lambda x, y: ((x * 0.5 + 0.25) - 1.5).neg().abs(),
    "value on the right": lambda x, y: 2.0 - (1.0 / (x + 0.5)),
    "tensors beside it": lambda x, y: (x * y - y).maximum(x) + y,
    "tensors before it": lambda x, y: y - (y / (y.minimum(x * 2))),
    "both operands": lambda x, y: ((x + 1) * (x + 1)).square() - y,
    "clamp": lambda x, y: (x * 3).clamp(-1, 1).clamp(min=-0.5),
    "rounding": lambda x, y: (x * 10).floor().sub(0.5).ceil().add(0.25).trunc().round(),
    "in place": lambda x, y: x.clone().mul_(2).add_(1).abs_().neg_(),
    "used twice": lambda x, y: ((z := (x + 1).abs()) * 2 - 1) + z,
    "comparison between": lambda x, y: torch.where((x + 1).abs() > 0.5, x * 2 + 1, y).neg(),
    "casts": lambda x, y: (x + 1).to(torch.float64).mul(2).to(x.dtype).add(y),
    "long": lambda x, y: [x := (x * 0.9 + 0.1).neg() for _ in range(40)][-1],
    "many tensors": lambda x, y: [x := x + y[i : i + x.numel()] for i in range(20)][-1],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_equals_eager(name, dtype):
    for n in SIZES:
        x, y = numbers(n, dtype), numbers(n + 32 * (name == "many tensors"), dtype, seed=1)
        assert groups_of(PROGRAMS[name], x, y) == 1


def in_place(x, y):
    x = x.clone()
    return x.mul_(y).sub_(1)


def read_after_a_write(x, y):
    """What is read in place of a widened copy must not be written before."""
    x, y = x.clone(), y.clone()
    made = (x * 0.5).sub(y)
    x.mul_(2)
    return made + x.mul_(y)


NARROW_PROGRAMS = {
    "two": lambda x, y: (x - y).abs(),
    "on the left": lambda x, y: y / (x + 1),
    "three": lambda x, y: (x - y) * torch.cat([y[1:], y[:1]]).neg(),
    "with gaps": lambda x, y: (x - torch.stack([y, x])[0]) * torch.stack([x, y], 1)[:, 1],
    "of both dtypes": lambda x, y: (x * y.to(torch.float32)) - x,
    "used twice": lambda x, y: (x * y - y).maximum(x),
    "in place": in_place,
    "read after a write": read_after_a_write,
}


@pytest.mark.parametrize("name", NARROW_PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_operands(name, dtype):
    for n in SIZES:
        x, y = numbers(n, dtype), numbers(n, dtype, seed=1)
        assert groups_of(NARROW_PROGRAMS[name], x, y) >= 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_pair_of_steps(dtype):
    """Whatever stands before and after: each hands on the value as the next one takes it."""
    steps = [
        lambda v, y: v + y, lambda v, y: y - v, lambda v, y: v * 1.5, lambda v, y: 1.5 / v,
        lambda v, y: v / y, lambda v, y: v.neg(), lambda v, y: v.abs(), lambda v, y: v * v,
        lambda v, y: v.clamp(-1, 1), lambda v, y: v.maximum(y), lambda v, y: y.minimum(v),
        lambda v, y: v.floor(), lambda v, y: v.relu(), lambda v, y: v.sign(),
    ]  # fmt: skip
    x, y = numbers(200, dtype), numbers(200, dtype, seed=1)
    programs = [
        lambda v, w, a=first, b=second: b(a(v + 1, w), w) * 2
        for first, second in itertools.product(steps, steps)
    ]
    groups = [groups_of(program, x, y) for program in programs]
    assert sum(n == 1 for n in groups) > 0.9 * len(groups)  # (some pairs may round otherwise)


HEAD = """
import threading, time, torch, lazyeng
from tests.support.thread_names import count_threads
"""


def run_alone(body, **environment):
    return printed_by(body, head=HEAD, **environment).split()


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_instruction_sets(capability):
    """The choice is torch's, and made once for a process."""
    assert run_alone(
        """
        x, y = torch.randn(1000), torch.randn(1000)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            a, b = x.to(dtype), y.to(dtype)
            program = lambda: ((a * 0.5 + b).clamp(-1, 1) - 0.25).abs().maximum(b)
            with lazyeng.lazy("deferred"):
                z = lazyeng.unwrap(program())
            print(torch.equal(z, program()), lazyeng.engine_stats()["groups"])
        """,
        ATEN_CPU_CAPABILITY=capability,
    ) == ["True", "1", "True", "2", "True", "3", "True", "4"]


def test_large_groups_run_on_all_threads():
    """The sign for it is the team of the engine's thread, which nothing else has made."""
    assert run_alone("""
        torch.set_num_threads(2)
        def team(): return count_threads("lazyeng-cpu")
        def watch():
            global most
            while most < 2 and time.monotonic() < end: most = max(most, team())
        x, most = torch.ones(1 << 22), 0
        end = time.monotonic() + 60
        thread = threading.Thread(target=watch)
        thread.start()
        while most < 2 and time.monotonic() < end:
            with lazyeng.lazy("deferred"):  # (a pause of the program would push single ops)
                y = x * 2 + 1
                for _ in range(100): y = y * 0.5 + 1
                y.wait()
        thread.join()
        stats = lazyeng.engine_stats()
        print(most, stats["launches"] == stats["groups"] > 0)
    """, LAZYENG_NUM_WORKERS="1") == ["2", "True"]  # fmt: skip


# (In async the worker may take what there is so far: then one more, between two groups.)
@pytest.mark.parametrize("mode, buffers", [("async", 3), ("deferred", 2)])
def test_a_long_chain_needs_few_buffers(mode, buffers):
    """Of 64 MiB, the input included, by the pool and by the process's peak."""
    pool, peak = run_alone(f"""
        import resource
        def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        def chain(n):
            with lazyeng.lazy({mode!r}):
                x = torch.ones(n)
                y = x
                for i in range(30): y = y * 1.01 if i % 2 else y + 1
                y.wait()
            return x, y
        chain(1000)
        before, n = peak(), 1 << 24
        results = chain(n)
        print(1 + lazyeng.engine_stats()["peak_bytes"] / (4 * n), (peak() - before) / (4 * n))
    """)
    assert float(pool) <= buffers and float(peak) < buffers + 0.1
