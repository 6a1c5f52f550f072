"""Recorded calls as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the calls. ``state``: "given" to them, "made" by one of them, or "dead", made by
    one for another of them only: there is no memory for it. ``aligned``: to 16 bytes."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    state: Literal["given", "made", "dead"]
    aligned: bool

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def dense(self) -> bool:
        """Whether its elements fill one piece of memory, in some order of the dims."""
        dims = sorted((st, si) for st, si in zip(self.strides, self.sizes, strict=True) if si != 1)
        expected = 1
        for stride, size in dims:
            if stride != expected:
                return False
            expected *= size
        return True


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``arguments``, by name: of a tensor its place among the tensors (None: none), of a
    list of tensors a tuple of places, ``...`` for a number that is an operand: a float, or one that
    is not the op's default. ``results``: places, None for what is not returned."""

    op: str
    arguments: dict[str, Any]
    results: tuple[int | None, ...]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def index(self, name: str) -> int:
        """The position of an argument in the schema."""
        return list(self.arguments).index(name)


@dataclass(frozen=True, slots=True)
class Calls:
    """What runs as one, on the ``device`` of that number. ``tf32``: products of float32 may be
    rounded."""

    tensors: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    tf32: bool
    device: int = 0


@cache
def _argument_names(op: str) -> tuple[str, ...]:
    name, _, overload = op.partition(".")
    return tuple(argument.name for argument in torch._C._get_schema(name, overload).arguments)


def calls_from(data: dict[str, Any]) -> Calls:
    """The calls that the core describes (csrc/bindings/kernels.cpp)."""
    tensors = (Tensor(dtype, tuple(sizes), tuple(strides), state, aligned)
               for dtype, sizes, strides, state, aligned in data["tensors"])  # fmt: skip
    calls = (Call(op, dict(zip(_argument_names(op), arguments, strict=True)), tuple(results))
             for op, arguments, results in data["calls"])  # fmt: skip
    return Calls(tuple(tensors), tuple(calls), data["tf32"], data["device"])
