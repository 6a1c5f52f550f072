"""How hand-written kernels are launched for calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from lazyeng.fuse.chosen.calls import Call, Calls, Tensor

# What a constant of a kernel may be: "tl.float32" is Triton's type, None an operand that is not
# there, a tuple one of these for each of several tensors.
Constant = bool | int | str | None | tuple["Constant", ...]

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
# A row up to this long stays in registers: 16,384 values on 16 warps are 32 registers a thread.
MAX_BLOCK = 16384
# A loop over a row keeps nothing of it, so its blocks need only be wide enough for all threads.
LOOP_BLOCK = 4096
MOST_PROGRAMS = (1 << 31) - 1, 65535, 65535  # CUDA's limits of a grid


@dataclass(frozen=True, slots=True)
class Operand:
    """What a kernel is called with, in Triton's type.

    ``kind``: "tensor", "partial" (scratch memory) and "table" number ``index``; "argument": the
    number that stands at position ``index`` in the call ``number``; "seed" and "offset" of the
    device's default generator; "number": ``number`` itself.
    ``divisible``: by 16; of a pointer its address. ``fixed``: a number that the kernel is compiled
    for.
    """

    kind: Literal["tensor", "partial", "table", "argument", "seed", "offset", "number"]
    type: str
    index: int = 0
    number: int | float = 0
    divisible: bool = False
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A launch of the kernel of that name in that file of triton_kernels/, or in ``text`` if there
    is one. ``operands``: of each parameter that is no constant; None: the kernel does not look at
    it."""

    file: str
    kernel: str
    grid: tuple[int, ...]
    operands: tuple[Operand | None, ...]
    constants: dict[str, Constant]
    num_warps: int
    options: dict[str, bool | int]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """``places`` of tensors, one a parameter, whose addresses stand there (of -1 0), and whether
    they move with the pieces. Without places: the numbers in the list that is argument ``index`` of
    the call number ``call``, as float64."""

    places: tuple[int, ...]
    moves: bool = True
    call: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Where the pieces of lists of tensors are: a row for each piece, with an address or a number
    in each column, and after them the number of elements; int64."""

    piece: int
    columns: tuple[Column, ...]


@dataclass(slots=True)
class Launches:
    """What runs the calls: kernels, one after another, with scratch memory (bytes) and tables.
    ``draws``: how far they move on the offset of the device's default generator."""

    calls: Calls
    kernels: list[KernelLaunch] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    draws: int = 0

    def add(self, file: str, kernel: str, grid: tuple[int, ...], *operands: Operand | int | None,
            elements: int, options: dict[str, bool | int] | None = None, text: str = "",
            **constants: Constant) -> None:  # fmt: skip
        """One more launch; ``elements``: values in a program's block, at most 32 a thread."""
        num_warps = 4 if elements <= 2048 else 8 if elements <= 8192 else 16
        made = tuple(number(o) if isinstance(o, int) else o for o in operands)
        self.kernels.append(
            KernelLaunch(file, kernel, grid, made, constants, num_warps, options or {}, text)
        )

    def tensor(self, place: int | None) -> Operand | None:
        if place is None:
            return None
        tensor = self.calls.tensors[place]
        assert tensor.state != "dead", place
        return Operand("tensor", "*" + TYPES[tensor.dtype], place, divisible=tensor.aligned)

    def argument(self, call: Call, name: str) -> Operand:
        """A float: another value needs no other kernel, and no question."""
        return Operand("argument", "fp64", call.index(name), self.calls.calls.index(call))

    def partial(self, dtype: torch.dtype, numel: int) -> Operand:
        """Scratch memory of the run."""
        self.scratch.append(numel * dtype.itemsize)
        return Operand("partial", "*" + TYPES[dtype], len(self.scratch) - 1, divisible=True)

    def table(self, piece: int, columns: Sequence[Column]) -> Operand:
        self.tables.append(Table(piece, tuple(columns)))
        return Operand("table", "*i64", len(self.tables) - 1, divisible=True)


def number(value: int) -> Operand:
    wide = not -(1 << 31) <= value < 1 << 31
    return Operand("number", "i64" if wide else "i32", 0, value, divisible=value % 16 == 0)


def stride(value: int) -> Operand:
    """A stride of 1 is known to the compiler, as neighbours in memory are loaded at once."""
    return replace(number(value), fixed=value == 1)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def block_of(n: int, largest: int = MAX_BLOCK) -> int:
    """A power of two, as tl.arange needs: `n` rounded up, or `largest`."""
    return min(1 << max(n - 1, 0).bit_length(), largest)


def compute_type(*tensors: Tensor | None) -> torch.dtype:
    """float64 when a tensor has it, else float32."""
    wide = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def triton_type(dtype: torch.dtype) -> str:
    return f"tl.{str(dtype).removeprefix('torch.')}"


def fit(*tensors: Tensor | None, dtypes: tuple[torch.dtype, ...] = FLOATS) -> bool:
    """Whether all that are there have elements, side by side in the order of the dims, of a type
    that the kernels know."""
    return all(
        tensor is None or (tensor.dtype in dtypes and tensor.contiguous and tensor.numel > 0)
        for tensor in tensors
    )
