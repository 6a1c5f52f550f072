"""What all launchers share: checks of arguments, the type to compute in, block sizes, the device.

A check says `[op] fact, got value, expected value` and raises the type that torch's own op raises.
"""

from __future__ import annotations

import contextlib

import torch
import triton.language as tl
from triton import knobs

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Triton decides when it decorates a kernel, so when the kernel's file is imported.
INTERPRETED = bool(knobs.runtime.interpret)
# A row up to this long stays in registers: 16,384 values on 16 warps are 32 registers a thread.
MAX_BLOCK = 16384


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


def options(block_size: int) -> dict[str, object]:
    """Launch options. Enough warps that a thread holds at most 32 values of a block; fused
    multiply-adds are asked for, because Triton's default differs between versions."""
    num_warps = 4 if block_size <= 2048 else 8 if block_size <= 8192 else 16
    return {"num_warps": num_warps, "enable_fp_fusion": True}


def launching_on(tensor: torch.Tensor) -> contextlib.AbstractContextManager:
    """Triton launches on the current device, which may be another one than the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
