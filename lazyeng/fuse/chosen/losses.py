"""nll_loss, alone and with log_softmax (nll_loss.py). Below autograd cross_entropy is these two.

Forward each runs by itself: autograd keeps what log_softmax makes, so one kernel for both would
save reading one element of each row. Backward they are one kernel.
"""

from __future__ import annotations

import torch

from lazyeng.fuse.chosen.calls import Call, Calls, Tensor
from lazyeng.fuse.chosen.launches import (
    LOOP_BLOCK,
    Launches,
    block_of,
    cdiv,
    compute_type,
    fit,
    triton_type,
)

ROWS_BLOCK = 1024
LABELS = (torch.int64, torch.uint8)


def nll_loss(calls: Calls) -> Launches | None:
    (call,) = calls.calls
    x, *_ = tensors = _inputs(calls, call)
    loss, total_weight = call.results
    if not _fit(tensors) or loss is None or total_weight is None:
        return None
    made = Launches(calls)
    made.add(
        "nll_loss", "nll_loss_kernel", (1,), made.tensor(call["self"]), made.tensor(call["target"]),
        made.tensor(call["weight"]), made.tensor(loss), made.tensor(total_weight), x.sizes[0],
        x.sizes[1], call["ignore_index"], REDUCTION=call["reduction"], BLOCK_SIZE=ROWS_BLOCK,
        HAS_WEIGHT=call["weight"] is not None, COMPUTE=triton_type(compute_type(x)),
        elements=ROWS_BLOCK,
        # (debug also checks each addition of integers)
        options={"debug": True, "sanitize_overflow": False},
    )  # fmt: skip
    return made


def nll_loss_backward(calls: Calls) -> Launches | None:
    (call,) = calls.calls
    (dx,) = call.results
    return _backward(calls, call, "nll_loss_backward_kernel", (), dx)


def nll_log_softmax_backward(calls: Calls) -> Launches | None:
    """nll_loss_backward, and _log_softmax_backward_data of what it makes."""
    loss, softmax = calls.calls
    (dx,), (dz,) = loss.results, softmax.results
    log_probabilities = softmax["output"]
    if dx is None or dz is None or softmax["grad_output"] != dx or softmax["dim"] not in (1, -1):
        return None
    tensors = [calls.tensors[place] for place in (dx, log_probabilities, dz)]
    if calls.tensors[dx].state != "dead" or len({(t.dtype, t.sizes) for t in tensors}) > 1:
        return None
    return _backward(calls, loss, "nll_log_softmax_backward_kernel", (log_probabilities,), dz)


def _backward(calls: Calls, call: Call, kernel: str, read: tuple[int, ...],
              result: int | None) -> Launches | None:  # fmt: skip
    x, *_ = tensors = _inputs(calls, call)
    others = [calls.tensors[place] for place in (call["grad_output"], *read)]
    if not _fit(tensors) or not fit(*others) or result is None or not fit(calls.tensors[result]):
        return None
    n_rows, n_cols = x.sizes
    block = block_of(n_cols, LOOP_BLOCK)
    made = Launches(calls)
    made.add(
        "nll_loss", kernel, (n_rows, cdiv(n_cols, block)), made.tensor(call["grad_output"]),
        made.tensor(call["target"]), made.tensor(call["weight"]), made.tensor(call["total_weight"]),
        *(made.tensor(place) for place in (*read, result)), n_cols, call["ignore_index"],
        HAS_WEIGHT=call["weight"] is not None, REDUCTION=call["reduction"],
        COMPUTE=triton_type(compute_type(x)), BLOCK_SIZE=block, elements=block,
    )  # fmt: skip
    return made


def _inputs(calls: Calls, call: Call) -> tuple[Tensor, Tensor, Tensor | None]:
    weight = call["weight"]
    return (calls.tensors[call["self"]], calls.tensors[call["target"]],
            None if weight is None else calls.tensors[weight])  # fmt: skip


def _fit(tensors: tuple[Tensor, Tensor, Tensor | None]) -> bool:
    x, target, weight = tensors
    return len(x.sizes) == 2 and fit(x, weight) and fit(target, dtypes=LABELS)
