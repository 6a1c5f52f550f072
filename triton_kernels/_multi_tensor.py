"""One launch for many tensors: the table of chunks that the optimizers' kernels walk.

A launch costs microseconds, a small parameter's update less; so all parameters share one, as in
apex and torch's multi_tensor_apply. Tensors are cut into chunks, a program takes one chunk, and its
row of the table says where that lies: the addresses of the chunk in each list (parameters,
gradients, states; 0 where a list is missing), then its number of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
import triton.language as tl

from . import _launch

BLOCK_SIZE = 1024  # elements that a program updates at a time, 8 a thread
SMALLEST_CHUNK, LARGEST_CHUNK = 4 * BLOCK_SIZE, 64 * BLOCK_SIZE

Tensors = Sequence[torch.Tensor]


def check_lists(op: str, params: Tensors, **lists: Sequence[torch.Tensor | None]) -> None:
    """Every list has an element of the parameter's shape for each parameter.

    Raises RuntimeError; NotImplementedError for dtypes.
    """
    for name, tensors in lists.items():
        if len(tensors) != len(params):
            raise RuntimeError(
                f"[{op}] {name} has another length than params, got {len(tensors)}, "
                f"expected {len(params)}"
            )
    for i, param in enumerate(params):
        row = {f"{name}[{i}]": tensors[i] for name, tensors in lists.items()}
        for name, tensor in row.items():
            if tensor is not None and tensor.layout != torch.strided:
                raise RuntimeError(f"[{op}] {name} is sparse, got {tensor.layout}, expected dense")
            _launch.check_shape(op, name, tensor, tuple(param.shape))
        _launch.check_tensors(op, _launch.FLOATS, **{f"params[{i}]": param}, **row)


def check_range(op: str, name: str, value: float, low: float, high: float = float("inf")) -> None:
    """low <= value < high, or ValueError."""
    if not low <= value < high:
        expected = f"{low} or more" + (f", less than {high}" if high != float("inf") else "")
        raise ValueError(f"[{op}] {name} is out of range, got {value}, expected {expected}")


def in_memory_order(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one piece of memory, in some order of the dims."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).is_contiguous()


def _aligned_like(row: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The tensors of one parameter with one set of strides, so that one offset means the same
    element in all; copies of those that have other strides."""
    param = row[0]
    assert param is not None
    param = param if in_memory_order(param) else param.contiguous()
    return [
        None if tensor is None
        else tensor if tensor.stride() == param.stride()
        else torch.empty_like(param, dtype=tensor.dtype).copy_(tensor)
        for tensor in (param, *row[1:])
    ]  # fmt: skip


def chunk_table(rows: Sequence[Sequence[torch.Tensor | None]], chunk_size: int) -> np.ndarray:
    """int64 [chunks, lists + 1] for the rows of tensors, one row a parameter."""
    sizes = np.array([row[0].numel() for row in rows if row[0] is not None], dtype=np.int64)
    counts = -(-sizes // chunk_size)
    tensor_of = np.repeat(np.arange(len(rows)), counts)
    first_of = (np.cumsum(counts) - counts)[tensor_of]
    starts = (np.arange(len(tensor_of)) - first_of) * chunk_size
    table = np.zeros((len(tensor_of), len(rows[0]) + 1), dtype=np.int64)
    for j in range(len(rows[0])):
        column = [row[j] for row in rows]
        if column[0] is not None:
            addresses = np.array([t.data_ptr() for t in column if t is not None], dtype=np.int64)
            table[:, j] = addresses[tensor_of] + starts * column[0].element_size()
    table[:, -1] = np.minimum(sizes[tensor_of] - starts, chunk_size)
    return table


def _launch_group(kernel: Any, rows: list[list[torch.Tensor | None]], scalars, constants) -> None:
    """One launch for rows whose tensors have the same dtypes, on one device."""
    params = [row[0] for row in rows if row[0] is not None]
    total = sum(param.numel() for param in params)
    if not total:
        return
    # About 1,024 programs, several for each multiprocessor, if there is that much to do.
    chunk_size = min(max(_launch.block_of(total // 1024, LARGEST_CHUNK), SMALLEST_CHUNK),
                     LARGEST_CHUNK)  # fmt: skip
    table = chunk_table(rows, chunk_size)
    on_device = torch.from_numpy(table)
    if params[0].is_cuda:  # pinned: the copy does not wait for what the device still does
        on_device = on_device.pin_memory().to(params[0].device, non_blocking=True)
    dtypes = tuple(None if t is None else getattr(tl, str(t.dtype)[6:]) for t in rows[0])
    _launch.launch(
        kernel, (len(table),), on_device, *scalars, DTYPES=dtypes,
        COMPUTE=_launch.compute_type(*rows[0]),
        # 16 bytes in one load need addresses that are multiples of 16; chunks keep that.
        ALIGNED=not (table[:, :-1] % 16).any(), BLOCK_SIZE=BLOCK_SIZE, elements=BLOCK_SIZE,
        **constants,
    )  # fmt: skip


@torch.no_grad()
def update(kernel: Any, given: Sequence[Sequence[torch.Tensor | None]], scalars: Sequence[float],
           written: Sequence[int], **constants) -> None:  # fmt: skip
    """Runs the kernel over all parameters: one launch for each device and set of dtypes.

    given: a row of tensors for each, the parameter first; written: what the kernel writes of a row.
    """
    rows = [_aligned_like(row) for row in given]

    def kind(row):
        return str(row[0].device), tuple("" if t is None else str(t.dtype) for t in row)

    for _, group in groupby(sorted(rows, key=kind), key=kind):
        _launch_group(kernel, list(group), scalars, constants)
    for row, own in zip(rows, given, strict=True):
        for j in written:
            to, source = own[j], row[j]
            if to is not None and source is not None and source is not to:
                to.copy_(source)
