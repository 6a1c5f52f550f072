"""What a kernel of a group is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ArgumentKind = Literal[
    "tensor", "parameter", "partial", "size", "stride", "n_elements", "n_rows", "n_columns",
    "n_partials", "row_divisor", "divisor",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel, in Triton's type ("*fp32", "i32").

    ``kind``: what it is: "tensor" and "parameter" with its ``index`` in the program; "partial", the
    partial results of fold ``index``; "size" of dim ``dim``; "stride" of tensor ``index`` over dim
    ``dim``; "row_divisor" of step ``index`` and "divisor" of fold ``index``; numbers of elements,
    rows, elements of a row, and partial results.
    """

    name: str
    type: str
    kind: ArgumentKind
    index: int = 0
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the source; its arguments, and after them its constants."""

    name: str
    arguments: tuple[Argument, ...]
    constants: tuple[str, ...]


def accumulated_in(type: str) -> str:
    """The type of a fold's partial results."""
    return "i32" if type == "b8" else type
