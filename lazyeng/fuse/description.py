"""A fused group as plain data: what ``csrc/fuse/lowering.cpp`` makes of the members of a group.

There is one lowering. Promotion of dtypes, rounding to bfloat16 and float16 after each op, and the
dtype in which an op computes are decided there, for the CPU's tile programs and for Triton alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lazyeng import _C

# Types of registers; the two last stand in memory only.
TORCH_TYPES = {
    "b8": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "f32": torch.float32, "f64": torch.float64, "f16": torch.float16,
    "bf16": torch.bfloat16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A recorded tensor: its look over the storage with that number."""

    storage: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call. Among ``arguments`` ``("value", n)`` stands for the tensor number n."""

    op: str
    label: str
    arguments: tuple[Any, ...]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a group as the iteration goes over it. ``strides``: over the group's shape, in
    elements, () if element i of the iteration is element i in memory. ``rate``: how many elements
    it has, as ``Program.rates``. ``fresh``: memory for it is made by the run."""

    type: str
    strides: tuple[int, ...]
    rate: str
    fresh: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number, in a register of ``type``, rounded to the dtype ``rounded_to``.

    ``kind``: "constant" (part of the op, as the 0 of zeros_like), "number" (an argument, negated if
    ``negate``, with ``constant`` added: no part of the source) or "value" (a tensor of one element,
    of the dtype ``stored``). ``no_nan``: with NaN the group must run unfused.
    """

    type: str
    rounded_to: torch.dtype
    kind: str
    constant: float
    stored: torch.dtype
    negate: bool
    no_nan: bool


@dataclass(frozen=True, slots=True)
class Step:
    """``out`` becomes ``operation`` of the registers ``inputs``; for this member of the group.
    ``folds``: the operation folds each row into one element, divided by ``divisor``; or it is
    "rows_on_cpu", which is for the tile interpreter alone."""

    operation: str
    folds: bool
    divisor: float
    out: int
    inputs: tuple[int, ...]
    member: int


@dataclass(frozen=True, slots=True)
class Fold:
    """The register folded over all elements ("sum", "maximum", "minimum") into a tensor of one
    element, divided by ``divisor``."""

    fold: str
    register: int
    tensor: int
    divisor: float


@dataclass(frozen=True, slots=True)
class Program:
    """A group: registers are loaded from tensors or parameters, steps make others, and some are
    stored or folded. Loads see what was there before the program.

    ``row``: elements of each row that steps fold, 0 if none does. Then a register has as many
    elements as there are ("element"), one for each row ("row"), or as many as a row ("column").
    """

    numel: int
    row: int
    shape: tuple[int, ...]
    types: tuple[str, ...]  # of each register
    rates: tuple[str, ...]  # of each register
    tensors: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    parameter_of: dict[int, int]  # register -> parameter
    loads: dict[int, int]  # register -> tensor
    steps: tuple[Step, ...]
    stores: dict[int, int]  # tensor -> register
    folds: tuple[Fold, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """What will run as one: a single call (``program`` is None), or a group. A group without a
    program runs its calls one by one. ``tensors``: the number of the value that each tensor of the
    program is; ``parameters``: what each of its parameters is, a number or the number of a value.
    """

    calls: tuple[Call, ...]
    program: Program | None
    tensors: tuple[int, ...]
    parameters: tuple[Any, ...]

    @property
    def ops(self) -> list[str]:
        """Of each member."""
        return [call.op for call in self.calls]


@dataclass(frozen=True, slots=True)
class Plans:
    """The pending ops in the order in which they would run. ``storages``: a plain tensor over each
    storage that exists, None where an op is going to make it."""

    ops: tuple[Planned, ...]
    values: tuple[Value, ...]
    storages: tuple[torch.Tensor | None, ...]


def planned() -> Plans:
    """The calls that are recorded and not handed to the engine yet, grouped as they would run now.
    Nothing runs."""
    ops, values, storages = _C.planned()
    return Plans(
        tuple(
            Planned(
                tuple(Call(op, label, tuple(args), tuple(outs)) for op, label, args, outs in calls),
                None if program is None else program_from(program),
                tuple(tensors),
                tuple(parameters),
            )
            for calls, program, tensors, parameters in ops
        ),
        tuple(Value(*value) for value in values),
        tuple(storages),
    )


def program_from(data: dict[str, Any]) -> Program:
    """The program that the core describes (csrc/bindings/programs.cpp)."""
    steps = tuple(
        Step(name, folds, divisor, out, tuple(ins), member)
        for name, folds, divisor, out, ins, member in data["steps"]
    )
    made = {step.out for step in steps}
    used = {register for step in steps for register in step.inputs}
    used |= {register for _, register, _, _ in data["folds"]}
    in_memory = {
        r: index for r, (kind, _, index, _) in enumerate(data["registers"]) if kind == "tensor"
    }
    loads = {r: tensor for r, tensor in in_memory.items() if r not in made and r in used}
    loads |= {register: tensor for tensor, register in data["gathers"] if register in used}
    stores = {tensor: r for r, tensor in in_memory.items() if r in made}
    stores |= dict(data["scatters"])
    return Program(
        data["numel"],
        data["row"],
        tuple(data["shape"]),
        tuple(type for _, type, _, _ in data["registers"]),
        tuple(rate for _, _, _, rate in data["registers"]),
        tuple(Tensor(*tensor) for tensor in data["tensors"]),
        tuple(Parameter(*parameter) for parameter in data["parameters"]),
        {
            r: index
            for r, (kind, _, index, _) in enumerate(data["registers"])
            if kind == "parameter" and r in used
        },
        loads,
        steps,
        stores,
        tuple(Fold(*fold) for fold in data["folds"]),
    )
