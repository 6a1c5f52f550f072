"""softmax and log_softmax along the last dim, forward and backward (softmax.py)."""

from __future__ import annotations

from lazyeng.fuse.chosen.calls import Calls
from lazyeng.fuse.chosen.launches import (
    LOOP_BLOCK,
    Launches,
    block_of,
    cdiv,
    compute_type,
    fit,
    triton_type,
)


def softmax(calls: Calls, log: bool = False) -> Launches | None:
    (call,) = calls.calls
    (y,) = call.results
    return _rows(calls, (call["self"], y), "softmax_kernel", "softmax_online_kernel", log)


def softmax_backward(calls: Calls, log: bool = False) -> Launches | None:
    (call,) = calls.calls
    (dx,) = call.results
    kernels = "softmax_backward_kernel", "softmax_backward_long_kernel"
    return _rows(calls, (call["grad_output"], call["output"], dx), *kernels, log)


def log_softmax(calls: Calls) -> Launches | None:
    return softmax(calls, log=True)


def log_softmax_backward(calls: Calls) -> Launches | None:
    return softmax_backward(calls, log=True)


def _rows(calls: Calls, places: tuple[int | None, ...], short: str, long: str,
          log: bool) -> Launches | None:  # fmt: skip
    """The kernel for short or for long rows, on contiguous tensors of one shape."""
    tensors = [calls.tensors[place] for place in places if place is not None]
    if len(tensors) < len(places) or not fit(*tensors) or not tensors[0].sizes:
        return None
    sizes, dim = tensors[0].sizes, calls.calls[0]["dim"]
    if dim % len(sizes) != len(sizes) - 1 or any(tensor.sizes != sizes for tensor in tensors):
        return None
    made = Launches(calls)
    n_cols = sizes[-1]
    n_rows = tensors[0].numel // n_cols
    constants = {"LOG": log, "COMPUTE": triton_type(compute_type(*tensors))}
    operands = [made.tensor(place) for place in places]
    block = block_of(n_cols)
    if n_cols > block:
        made.add("softmax", long, (n_rows,), *operands, n_cols, BLOCK_SIZE=LOOP_BLOCK,
                 elements=LOOP_BLOCK, **constants)  # fmt: skip
        return made
    rows = min(block_of(n_rows), max(1, 2048 // block))
    made.add("softmax", short, (cdiv(n_rows, rows),), *operands, n_rows, n_cols, BLOCK_ROWS=rows,
             BLOCK_SIZE=block, elements=rows * block, **constants)  # fmt: skip
    return made
