"""Tensors that cross processes: torch.multiprocessing, DataLoader workers.

A LazyTensor that is sent waits, and moves its memory into shared memory, as a plain one does; what
arrives is a LazyTensor over the same memory. A failed one arrives failed, since the thread that
sends or receives is mostly not the one that should hear of the failure (a queue's feeder prints
exceptions and drops the item, for which the receiver then waits for ever).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
import torch.utils.hooks

from lazyeng import _C
from lazyeng.errors import LazyError
from lazyeng.mode import lazy
from lazyeng.tensor import LazyTensor

# Methods that give a storage other memory.
_MOVES = ("resize_", "_share_fd_cpu_", "_share_filename_cpu_")


def install() -> None:
    """Registers how LazyTensors are sent. Once per process, at import."""
    ForkingPickler.register(LazyTensor, _reduce)
    for name in _MOVES:
        setattr(torch.UntypedStorage, name, _followed(getattr(torch.UntypedStorage, name)))


def _followed(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, with the engine following to the new memory; nothing may run in the old one."""

    @functools.wraps(original)
    def move(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if not _C.follow_storage(self):
            return original(self, *args, **kwargs)
        _C.wait_for_all()
        try:
            return original(self, *args, **kwargs)
        finally:
            _C.follow_storage(self)

    return move


def _reduce(tensor: LazyTensor) -> tuple[Any, ...]:
    """What `multiprocessing` pickles. Refuses what torch refuses for plain tensors."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd "
            "does not support crossing process boundaries.  If you just want to transfer the data, "
            "call detach() on the tensor before serializing (e.g., putting it on the queue)."
        )
    torch.utils.hooks.warn_if_has_hooks(tensor)
    try:
        return tensor._reduced()
    except Exception as error:
        if not isinstance(error, LazyError):
            raise
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return _rebuild_failed, (error, meta.shape, meta.stride(), meta.dtype)


# ---- failed tensors

_received: dict[int, BaseException] = {}
_numbers = itertools.count()


def _rebuild_failed(
    error: BaseException, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A LazyTensor of this look, made by an op that fails with `error`."""
    number = next(_numbers)
    _received[number] = error
    with lazy():
        start = _C.wrap_tensor(torch.empty(0, dtype=dtype))
        return _failing_op()(start, list(shape), list(stride), number)


@functools.cache
def _failing_op() -> Any:
    @torch.library.custom_op("lazyeng::received_failure", mutates_args=())
    def received_failure(
        like: torch.Tensor, shape: list[int], stride: list[int], number: int
    ) -> torch.Tensor:
        raise _received.pop(number)

    @received_failure.register_fake
    def _(like: torch.Tensor, shape: list[int], stride: list[int], number: int) -> torch.Tensor:
        return like.new_empty_strided(shape, stride)

    return received_failure
