"""What a kernel of a group is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lazyeng.fuse.description import Fold, Program

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


def folded_type(type: str, made: str) -> str:
    """The type that elements of ``type`` are folded in to make one of ``made``."""
    if type in ("f32", "f64"):
        return type
    return "i32" if made == "b8" else made


def partial_type(program: Program, fold: Fold) -> str:
    """The type of a fold's partial results."""
    return folded_type(program.types[fold.register], program.tensors[fold.tensor].type)
