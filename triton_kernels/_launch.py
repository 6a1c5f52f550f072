"""What all launchers share: checks of arguments, the type to compute in, block sizes, the device.

A check says `[op] fact, got value, expected value` and raises the type that torch's own op raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton.language as tl
from triton import knobs

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Triton decides when it decorates a kernel, so when the kernel's file is imported.
INTERPRETED = bool(knobs.runtime.interpret)
# A row up to this long stays in registers: 16,384 values on 16 warps are 32 registers a thread.
MAX_BLOCK = 16384
# A loop over a row keeps nothing of it, so its blocks need only be wide enough for all threads.
LOOP_BLOCK = 4096


def runs_on(device: torch.device) -> bool:
    return device.type == "cuda" or INTERPRETED


def check_tensors(op: str, /, dtypes: tuple[torch.dtype, ...] = FLOATS, **tensors) -> None:
    """All tensors (None is skipped) have one of `dtypes` and are on one device with Triton.

    Raises NotImplementedError for the dtype, RuntimeError for the device.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in given.items():
        if tensor.dtype not in dtypes:
            raise NotImplementedError(
                f"[{op}] dtype of {name} is not supported, got {tensor.dtype}, "
                f"expected one of {', '.join(map(str, dtypes))}"
            )
    devices = {tensor.device for tensor in given.values()}
    if len(devices) > 1:
        where = ", ".join(f"{name} on {tensor.device}" for name, tensor in given.items())
        raise RuntimeError(f"[{op}] tensors are on several devices, got {where}, expected one")
    for device in devices:
        if not runs_on(device):
            raise RuntimeError(
                f"[{op}] Triton does not run on this device, got {device}, expected cuda "
                "(or any device, with TRITON_INTERPRET=1 set before Triton is imported)"
            )


def check_shape(op: str, name: str, tensor: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    """Raises RuntimeError."""
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        raise RuntimeError(
            f"[{op}] shape of {name} does not fit, got {list(tensor.shape)}, expected {list(shape)}"
        )


REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}  # torch's numbers


def check_loss(op: str, x: torch.Tensor, target: torch.Tensor, reduction: str) -> None:
    """That there is such a reduction, and the target holds class indices."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"[{op}] unknown reduction, got {reduction!r}, expected 'none', 'mean' or 'sum'"
        )
    if target.dtype not in (torch.int64, torch.uint8):
        error = NotImplementedError if x.is_cuda else RuntimeError  # (torch's kernels)
        raise error(
            f"[{op}] dtype of target is not supported, got {target.dtype}, "
            "expected class indices of torch.int64 or torch.uint8"
        )


def check_normalized(op: str, x: torch.Tensor, normalized_shape: Sequence[int]) -> None:
    """Raises RuntimeError."""
    if not normalized_shape or tuple(x.shape[-len(normalized_shape) :]) != tuple(normalized_shape):
        raise RuntimeError(
            f"[{op}] normalized_shape does not fit, got {list(normalized_shape)}, "
            f"expected one or more trailing dims of {list(x.shape)}"
        )


def compute_type(*tensors: torch.Tensor | None) -> tl.dtype:
    """float64 when a tensor has it; float32 otherwise, also for the 16-bit types: their range and
    their sums do not suffice."""
    wide = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return tl.float64 if wide else tl.float32


def torch_type(compute: tl.dtype) -> torch.dtype:
    return torch.float64 if compute == tl.float64 else torch.float32


def as_rows(x: torch.Tensor, n_cols: int) -> torch.Tensor:
    """[rows, n_cols], contiguous: a row's neighbours are neighbours in memory, so a warp's 32 loads
    are a few wide transactions."""
    return x.contiguous().view(x.numel() // n_cols if n_cols else 0, n_cols)


def block_of(n_cols: int, largest: int = MAX_BLOCK) -> int:
    """A power of two, as tl.arange needs: the row's length rounded up, or `largest`."""
    return min(1 << max(n_cols - 1, 0).bit_length(), largest)


# Rows that a program of a column sum reads at a time.
GROUP_BLOCK = 32


def row_groups(n_rows: int) -> tuple[int, int]:
    """(groups, rows in each) for a sum over rows in two stages: at most 64 groups, so that the
    partial sums are small. It does not ask how many processors the GPU has: the same sums, with the
    same rounding, on each."""
    blocks = -(-n_rows // GROUP_BLOCK)
    rows_each = -(-blocks // 64) * GROUP_BLOCK
    return (-(-n_rows // rows_each) if rows_each else 0), rows_each


def recorded(fake: Callable, mutates: tuple[str, ...] = ()) -> Callable:
    """Makes a launcher an op of torch, lazyeng_kernels::NAME, so that lazyeng records it as one op
    and runs its Python, with plain tensors, where it is due. `fake` says what it returns, from
    shapes alone; `mutates` names the arguments that it writes."""

    def register(launcher):
        name = f"lazyeng_kernels::{launcher.__name__}"
        op: Any = torch.library.custom_op(name, launcher, mutates_args=mutates)
        op.register_fake(fake)
        return op

    return register


def launch(kernel: Any, grid: tuple[Any, ...], *arguments, elements: int, **constants) -> None:
    """Runs the kernel on the device of the first tensor; `elements`: values in a program's block.

    Enough warps that a thread holds at most 32 of them. Fused multiply-adds are asked for, because
    Triton's default differs between versions.
    """
    num_warps = 4 if elements <= 2048 else 8 if elements <= 8192 else 16
    tensor = arguments[0]
    # Triton launches on the current device, which may be another one than the tensor's.
    device = torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
    with device:
        kernel[grid](*arguments, **constants, num_warps=num_warps, enable_fp_fusion=True)
