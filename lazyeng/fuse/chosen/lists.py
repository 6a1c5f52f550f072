"""Chains of ops over lists of tensors (``torch._foreach_add_``, ...) as one generated kernel.

torch.optim records its steps on CUDA as such ops. torch runs each over all tensors in a few
launches, and each reads and writes memory again. Here a program takes one piece of one parameter
through the whole chain: each tensor is read once, and written once if somebody wants it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lazyeng.fuse.chosen.calls import Call, Calls
from lazyeng.fuse.chosen.launches import (
    FLOATS,
    Column,
    Launches,
    Operand,
    compute_type,
    triton_type,
)
from lazyeng.fuse.chosen.names import LISTS
from lazyeng.fuse.chosen.optimizers import BLOCK_SIZE, pieces
from lazyeng.fuse.expressions import TRITON_TYPES, expression
from lazyeng.fuse.source import with_functions


def chain(calls: Calls) -> Launches | None:
    """All calls; None if the tensors of one parameter do not lie alike."""
    try:
        writer = _Chain(calls)
        for number, call in enumerate(calls.calls):
            writer.add(number, call)
    except _UnfitError:
        return None
    return writer.launches()


class _UnfitError(Exception):
    """torch's own kernels are to run the chain."""


@dataclass(slots=True)
class _Chain:
    """Writes the kernel. A list of tensors is known by the place of its first one."""

    calls: Calls
    lists: list[tuple[int, ...]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)  # the newest value of each list
    loaded: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    numbers: list[Operand] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)  # of numbers
    lines: list[str] = field(default_factory=list)

    def add(self, number: int, call: Call) -> None:
        operation, operands = LISTS[call.op], []
        for name, value in call.arguments.items():
            if name == "alpha" and value == 1:
                continue
            if isinstance(value, tuple):
                operands.append(self._value(value))
            else:
                operands.append(self._number(number, call, name, value))
        if "alpha" in call.arguments and len(operands) == 3:
            if operation != "add":
                raise _UnfitError
            operation, operands = "add_scaled", [operands[0], operands[2], operands[1]]
        text = expression(operation, self._type, operands)
        if self._dtype(0) not in ("float32", "float64"):  # each op rounds, as in eager
            text = f"({text}).to(tl.{self._dtype(0)}).to(tl.float32)"
        made = f"v{number}"
        self.lines.append(f"{made} = {text}  # {call.op}")
        results = tuple(place for place in call.results if place is not None)
        written = self._list(results or call["self"])
        self.names[written] = made
        self.stored.add(written)

    @property
    def _type(self) -> str:
        tensors = (self.calls.tensors[places[0]] for places in self.lists)
        return "f64" if str(compute_type(*tensors)) == "torch.float64" else "f32"

    def _dtype(self, index: int) -> str:
        dtype = self.calls.tensors[self.lists[index][0]].dtype
        return str(dtype).removeprefix("torch.")

    def _list(self, places: tuple[int, ...]) -> int:
        """The number of the list; lists have all tensors in common, or none."""
        if places in self.lists:
            return self.lists.index(places)
        if len({*places}) < len(places) or any({*places} & {*known} for known in self.lists):
            raise _UnfitError
        first = self.lists[0] if self.lists else places
        for place, other in zip(places, first, strict=True):
            a, b = self.calls.tensors[place], self.calls.tensors[other]
            alike = (a.sizes, a.strides, a.dtype) == (b.sizes, b.strides, b.dtype)
            if not (alike and a.dense and a.dtype in FLOATS):
                raise _UnfitError
        self.lists.append(places)
        if len({self.calls.tensors[place].dtype for place in places}) > 1:
            raise _UnfitError
        return len(self.lists) - 1

    def _value(self, places: tuple[int, ...]) -> str:
        index = self._list(places)
        if index not in self.names:
            self.names[index] = f"x{index}"
            self.loaded.add(index)
        return self.names[index]

    def _number(self, number: int, call: Call, name: str, value: Any) -> str:
        if value is not ...:  # the op's default
            return f"tl.full((), {float(value)!r}, {TRITON_TYPES[self._type]})"
        if name == "scalars" or call.op.endswith("ScalarList"):
            self.columns.append(Column((), call=number, index=call.index(name)))
            return f"n{len(self.columns) - 1}"
        self.numbers.append(Operand("argument", "fp64", call.index(name), number))
        return f"a{len(self.numbers) - 1}"

    # ---- the kernel

    def launches(self) -> Launches | None:
        made = Launches(self.calls)
        tensors = self.calls.tensors
        piece, programs = pieces([tensors[place].numel for place in self.lists[0]])
        states = [{tensors[place].state for place in places} for places in self.lists]
        if not programs or any(len(state) > 1 for state in states):
            return None
        dead = {i for i, state in enumerate(states) if state == {"dead"}}
        kept = [i for i in range(len(self.lists)) if i not in dead]
        if not kept or kept[0] != 0:
            return None  # (the table counts the elements of the first list)
        columns = [*(Column(self.lists[i]) for i in kept), *self.columns]
        aligned = all(tensors[place].aligned for i in kept for place in self.lists[i])
        made.add(
            "", "list_kernel", (programs,), made.table(piece, columns), *self.numbers,
            ALIGNED=aligned, BLOCK_SIZE=BLOCK_SIZE, elements=BLOCK_SIZE,
            text=with_functions("\n".join(self._text(kept))),
        )  # fmt: skip
        return made

    def _text(self, kept: list[int]) -> Iterator[str]:
        pointers = [f"p{i}" for i in kept]
        numbers = [f"a{i}" for i in range(len(self.numbers))]
        numbers += [f"n{i}" for i in range(len(self.columns))]
        operands = ", ".join([*pointers, *numbers])
        yield from ("@triton.jit", f"def list_block({operands}, offsets, mask):")
        yield from ("    " + line for line in self._block())
        yield from ("", "", "@triton.jit")
        arguments = ", ".join(["table_ptr", *(f"a{i}" for i in range(len(self.numbers)))])
        yield f"def list_kernel({arguments}, ALIGNED: tl.constexpr, BLOCK_SIZE: tl.constexpr):"
        yield from ("    " + line for line in self._setup(kept))
        # Full blocks have no mask, which would split their loads into single elements.
        yield from f"""\
    full = n_elements // BLOCK_SIZE * BLOCK_SIZE
    offsets = tl.arange(0, BLOCK_SIZE)
    everything = tl.full([BLOCK_SIZE], True, tl.int1)
    for start in range(0, full, BLOCK_SIZE):
        list_block({operands}, start + offsets, everything)
    if full < n_elements:
        offsets += full
        list_block({operands}, offsets, offsets < n_elements)
""".splitlines()

    def _setup(self, kept: list[int]) -> Iterator[str]:
        """What a program reads of its row, and numbers in the type to compute in."""
        compute = TRITON_TYPES[self._type]
        width = len(kept) + len(self.columns) + 1
        yield f"row = table_ptr + tl.program_id(0) * {width}"
        pointer = f"tl.pointer_type({triton_type(self.calls.tensors[self.lists[0][0]].dtype)})"
        for column, i in enumerate(kept):
            yield f"p{i} = tl.load(row + {column}).to({pointer})"
        yield "if ALIGNED:"
        yield from (f"    p{i} = tl.multiple_of(p{i}, 16)" for i in kept)
        for i in range(len(self.columns)):
            bits = f"tl.load(row + {len(kept) + i})"
            yield f"n{i} = {bits}.to(tl.float64, bitcast=True).to({compute})"
        yield f"n_elements = tl.load(row + {width - 1}).to(tl.int32)"
        yield from (f"a{i} = tl.full((), a{i}, {compute})" for i in range(len(self.numbers)))

    def _block(self) -> Iterator[str]:
        compute = TRITON_TYPES[self._type]
        for i in sorted(self.loaded):
            yield f"x{i} = tl.load(p{i} + offsets, mask=mask, other=0.0).to({compute})"
        yield from self.lines
        for i in sorted(self.stored):
            if self.calls.tensors[self.lists[i][0]].state != "dead":
                yield f"tl.store(p{i} + offsets, {self.names[i]}, mask=mask)"
