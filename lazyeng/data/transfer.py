"""From what a source gives to what the user gets: lazy tensors, on the device asked for.

Copies to a device are recorded ops, so an engine queue runs them, ahead of use and in order with
everything else. They go through pinned buffers that are used in turn. Reusing one needs no wait
here: filling it again is a recorded write to its Var, granted once the copy out of it has run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lazyeng.tensor import LazyTensor
from lazyeng.wrapping import map_tensors, wrap


def convert_to(device: torch.device | str | int | None, depth: int) -> Callable[[Any], Any]:
    """A function that makes the tensors in a batch lazy, in the same structure, on `device`.

    Args:
        device: None leaves each tensor on its device.
        depth: how many batches wait at most.

    Raises:
        RuntimeError: torch does not know the device, or there is none of its kind.
    """
    if device is None:
        return lambda batch: map_tensors(batch, wrap)  # modules in a batch stay as they are
    wanted = _indexed(torch.device(device))
    if wanted.type in ("cpu", "meta"):  # (no device copies from pinned memory)
        return lambda batch: map_tensors(batch, lambda tensor: wrap(tensor).to(wanted))
    # One batch in use, those that wait, and the one being made.
    return Transfer(wanted, Staging(generations=depth + 2, allocate=_pinned)).convert


def _indexed(device: torch.device) -> torch.device:
    """The device as tensors report it: "cuda:0", and what stands behind "lazyeng"."""
    return torch.empty(0, device=device).device


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class Staging:
    """Host buffers for copies to a device, reused in turn; `next_batch` goes on to the next ones.

    A generation has one buffer for each tensor of a batch, in order; it grows to the largest that
    stood there. Only for tensors whose values are known: a failed one would poison its buffer.

    Args:
        generations: how many batches have buffers of their own.
        allocate: makes a one-dimensional uint8 tensor of a size in bytes.
    """

    def __init__(self, generations: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self._generations: list[list[torch.Tensor]] = [[] for _ in range(generations)]
        self._allocate = allocate
        self._batch = 0
        self._used = 0

    def next_batch(self) -> None:
        self._batch = (self._batch + 1) % len(self._generations)
        self._used = 0

    def stage(self, tensor: torch.Tensor) -> torch.Tensor:
        """A lazy contiguous copy of the lazy `tensor` in a buffer, to be copied on at once."""
        size = tensor.numel() * tensor.element_size()
        view = self._buffer(size)[:size].view(tensor.dtype).view(tensor.shape)
        return view.copy_(tensor)

    def _buffer(self, size: int) -> torch.Tensor:
        buffers, index = self._generations[self._batch], self._used
        self._used += 1
        if index == len(buffers):
            buffers.append(wrap(self._allocate(size)))
        elif buffers[index].numel() < size:
            buffers[index] = wrap(self._allocate(size))
        return buffers[index]


class Transfer:
    """Copies the tensors of batches to a device, by recorded ops.

    Args:
        device: with its index.
        staging: for tensors in memory that the device cannot copy from by itself.
    """

    def __init__(self, device: torch.device, staging: Staging) -> None:
        self._device = device
        self._staging = staging

    def convert(self, batch: Any) -> Any:
        """The batch with its tensors lazy and on the device, in the same structure."""
        self._staging.next_batch()
        return map_tensors(batch, self._copied)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        lazy = wrap(tensor)
        if not isinstance(lazy, LazyTensor):  # sparse, quantized, nested: copied here and now
            return tensor.to(self._device)
        known = not isinstance(tensor, LazyTensor) and not tensor.requires_grad
        if known and tensor.device.type == "cpu" and not tensor.is_pinned():
            return self._staging.stage(lazy).to(self._device, non_blocking=True, copy=True)
        return lazy.to(self._device, non_blocking=True)
