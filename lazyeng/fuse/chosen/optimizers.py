"""Fused optimizers over lists of parameters (adamw.py, sgd.py): one launch for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazyeng.fuse.chosen.calls import Call, Calls
from lazyeng.fuse.chosen.launches import (
    FLOATS,
    Column,
    Launches,
    Operand,
    block_of,
    cdiv,
    compute_type,
    triton_type,
)

BLOCK_SIZE = 1024
SMALLEST_PIECE, LARGEST_PIECE = 4 * BLOCK_SIZE, 64 * BLOCK_SIZE


def adamw(calls: Calls, penalty: bool = False) -> Launches | None:
    (call,) = calls.calls
    lists = [call[name] for name in ("self", "grads", "exp_avgs", "exp_avg_sqs")]
    lists.append(call["max_exp_avg_sqs"] if call["amsgrad"] else ())
    steps = call["state_steps"]
    if not _fits(calls, call, lists) or len(steps) != len(lists[0]):
        return None
    if any(calls.tensors[s].dtype != torch.float32 or calls.tensors[s].numel != 1 for s in steps):
        return None
    return _update(calls, call, lists, "adamw", "adamw_counted_kernel", (steps,),
                   ("lr", "beta1", "beta2", "weight_decay", "eps"),
                   AMSGRAD=call["amsgrad"], PENALTY=penalty)  # fmt: skip


def adam(calls: Calls) -> Launches | None:
    return adamw(calls, penalty=True)


def sgd(calls: Calls) -> Launches | None:
    (call,) = calls.calls
    lists = [call[name] for name in ("self", "grads", "momentum_buffer_list")]
    if not _fits(calls, call, lists):
        return None
    return _update(calls, call, lists, "sgd", "sgd_kernel", (),
                   ("lr", "momentum", "dampening", "weight_decay"), MOMENTUM=bool(lists[2]),
                   FIRST=call["is_first_step"], NESTEROV=call["nesterov"])  # fmt: skip


def _fits(calls: Calls, call: Call, lists: Sequence[Sequence[int]]) -> bool:
    """Each list has one dtype, and the tensors of one parameter lie in one order, without gaps."""
    if call["grad_scale"] is not None or call["found_inf"] is not None or not lists[0]:
        return False
    first = [calls.tensors[place] for place in lists[0]]
    for places in lists:
        tensors = [calls.tensors[place] for place in places]
        if tensors and (len(tensors) != len(first) or {t.dtype for t in tensors} - {*FLOATS}):
            return False
        if len({tensor.dtype for tensor in tensors}) > 1:
            return False
        for tensor, param in zip(tensors, first, strict=bool(tensors)):
            if not tensor.dense or (tensor.sizes, tensor.strides) != (param.sizes, param.strides):
                return False
    return True


def pieces(sizes: Sequence[int]) -> tuple[int, int]:
    """(elements of a piece, pieces): about 1,024 programs, several for each multiprocessor, if
    there is that much to do."""
    piece = max(block_of(sum(sizes) // 1024, LARGEST_PIECE), SMALLEST_PIECE)
    return piece, sum(cdiv(size, piece) for size in sizes)


def _update(calls: Calls, call: Call, lists: Sequence[Sequence[int]], file: str, kernel: str,
            singles: Sequence[Sequence[int]], scalars: Sequence[str],
            **constants: Any) -> Launches | None:  # fmt: skip
    made = Launches(calls)
    sizes = [calls.tensors[place].numel for place in lists[0]]
    piece, programs = pieces(sizes)
    if not programs:
        return None
    missing = (-1,) * len(lists[0])
    columns = [Column(tuple(places) or missing) for places in lists]
    columns += [Column(tuple(places), moves=False) for places in singles]
    table: Operand = made.table(piece, columns)
    kept = [calls.tensors[places[0]] if places else None for places in lists]
    dtypes = tuple(None if tensor is None else triton_type(tensor.dtype) for tensor in kept)
    made.add(
        file, kernel, (programs,), table, *(made.argument(call, name) for name in scalars),
        MAXIMIZE=call["maximize"], DTYPES=dtypes, COMPUTE=triton_type(compute_type(*kept)),
        # 16 bytes in one load need addresses that are multiples of 16; pieces keep that.
        ALIGNED=all(calls.tensors[place].aligned for places in lists for place in places),
        BLOCK_SIZE=BLOCK_SIZE, elements=BLOCK_SIZE, **constants,
    )  # fmt: skip
    return made
