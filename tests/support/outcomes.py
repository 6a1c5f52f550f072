"""What a call comes to, as something to compare: tests run the same call eagerly and lazily."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

#: What torch's own code refuses with. (A mistake in a test is another one, and is not compared.)
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)


@dataclasses.dataclass(frozen=True, slots=True)
class Raised:
    """An exception. One that comes later than its call has the name and the text of eager's."""

    name: str
    text: str  # a tensor is called one of its class, which differs: that is left out

    @classmethod
    def by(cls, error: Exception) -> Raised:
        return cls(type(error).__name__, str(error).replace("LazyTensor", "Tensor"))


def outcome(
    call: Callable[[], Any],
    errors: type[Exception] | tuple[type[Exception], ...] = REFUSALS,
) -> Any:
    """What the call returns, or which of these errors it raises."""
    try:
        return call()
    except errors as error:
        return Raised.by(error)


def same(x: Any) -> Any:
    """For a program that makes its tensors lazy by what it is given: in eager it is this."""
    return x


def values(found: Any) -> Any:
    """What a program returns, with all numbers of its tensors: those are waited for."""
    if isinstance(found, torch.Tensor):
        return found.tolist(), found.dtype, tuple(found.shape), found.requires_grad
    return [values(item) for item in found] if isinstance(found, (list, tuple)) else found


def metadata(x: torch.Tensor) -> tuple[Any, ...]:
    """Known without its numbers."""
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype
