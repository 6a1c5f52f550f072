"""dropout in training (dropout.py), with the numbers that torch's own kernel draws.

Those depend on the GPU, on how torch lays threads over elements, and on its version. So before the
kernel is chosen torch's own is asked once, on that GPU, with a generator of its own: where it keeps
other elements than ours would, it goes on running.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import torch

from lazyeng.fuse.chosen.calls import Calls
from lazyeng.fuse.chosen.launches import Launches, Operand, cdiv, compute_type, fit, triton_type
from lazyeng.triton_kernels._drawing import (  # pyright: ignore[reportMissingImports] (see setup.py)
    THREADS,
    Drawing,
)

MOST_ELEMENTS = 1 << 31  # of torch's kernels that count in 32 bits
DRAWS = 256  # of a program of ours
WORD = 1 << 32
SAMPLE = 500  # elements that are compared
SEED = 67280421310721  # of a generator that was not seeded (c10::default_rng_seed_val)


def native_dropout(calls: Calls) -> Launches | None:
    (call,) = calls.calls
    y, mask = call.results
    if y is None or mask is None or call["input"] is None or call["train"] is False:
        return None
    x = calls.tensors[call["input"]]
    # (Of what is not aligned torch takes narrower vectors.)
    if not fit(x) or not x.aligned or x.numel >= MOST_ELEMENTS:
        return None
    if any(not calls.tensors[place].contiguous for place in (y, mask)):
        return None
    resident = resident_blocks(calls.device)
    drawing = Drawing.of(x.numel, x.dtype.itemsize, resident)
    if not is_torchs(calls.device, x.dtype, drawing.vector):
        return None
    made = Launches(calls, draws=drawing.increment)
    made.add("dropout", "native_dropout_kernel", (cdiv(drawing.draws(x.numel), DRAWS),),
             *map(made.tensor, (call["input"], y, mask)), x.numel, drawing.threads,
             Operand("seed", "i64"), Operand("offset", "i64"), made.argument(call, "p"),
             COMPUTE=triton_type(compute_type(x)), VECTOR=drawing.vector, DRAWS=DRAWS,
             elements=4 * DRAWS)  # fmt: skip
    return made


@cache
def resident_blocks(device: int) -> int:
    """Blocks of torch's kernel that the GPU has room for at once: it starts no more."""
    gpu = torch.cuda.get_device_properties(device)
    return gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // THREADS)


@cache
def is_torchs(device: int, dtype: torch.dtype, vector: int) -> bool:
    """Whether torch's kernel, for this width of vectors, keeps the elements that ours would: tried
    once, with more elements than the GPU's threads take in one turn."""
    most, keep = 16 // dtype.itemsize, 0.5
    numel = 4 * THREADS * most * resident_blocks(device) // 3 // most * most + vector % most
    drawing = Drawing.of(numel, dtype.itemsize, resident_blocks(device))
    gpu = torch.device("cuda", device)
    # (As it is made: its methods would wait for what is recorded.)
    generator = torch.Generator(gpu)
    x = torch.ones(numel, dtype=dtype, device=gpu)
    draw: Any = torch.ops.aten._fused_dropout
    masks = [draw(x, keep, generator)[1].cpu() for _ in range(2)]
    chosen = random.Random(0)
    elements = {0, numel - 1, *(chosen.randrange(numel) for _ in range(SAMPLE))}
    return all(
        bool(mask[e]) == is_kept(drawing.place(e), SEED, i * drawing.increment, keep)
        for i, mask in enumerate(masks)
        for e in elements
    )


def is_kept(place: tuple[int, int, int], seed: int, offset: int, keep: float) -> bool:
    """As the kernel has it; not near the bound, where a float32 is rounded otherwise."""
    thread, draw, which = place
    counter = offset // 4 + draw
    words = [counter % WORD, counter // WORD, thread % WORD, thread // WORD]
    low, high = seed % WORD, seed // WORD
    for _ in range(10):
        a, b = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [b // WORD ^ words[1] ^ low, b % WORD, a // WORD ^ words[3] ^ high, a % WORD]
        low, high = (low + 0x9E3779B9) % WORD, (high + 0xBB67AE85) % WORD
    return (words[which] + 0.5) / WORD < keep
