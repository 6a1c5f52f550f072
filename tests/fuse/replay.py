"""Runs planned calls one by one in eager, and each group of them as its kernel from the same state.

So the oracle is eager PyTorch with the recorded arguments; nothing of the lowering takes part.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lazyeng.fuse.description import TORCH_TYPES, Call, Parameter, Planned, Plans, Program
from lazyeng.fuse.launches import Launch, launches_of, number_of, partial_bytes
from lazyeng.fuse.source import Source, source_of
from tests.fuse import interpreted
from tests.fuse.programs import can_run

Storage = torch.UntypedStorage


class Replay:
    """The storages of a program as its ops go on, on the device."""

    def __init__(self, plans: Plans, device: str, block: int | None = None) -> None:
        self.plans = plans
        self.device = device
        self.block = block  # elements of a program; the interpreter likes them many
        self.storages = [
            None if t is None else t.to(device).untyped_storage() if device != "cpu"
            else t.untyped_storage().clone() for t in plans.storages
        ]  # fmt: skip

    def groups(self) -> Iterator[tuple[Planned, Source, list[tuple[torch.Tensor, torch.Tensor]]]]:
        """(group, its source, pairs of results: the kernel's and eager's) of each group that may
        run as one; all ops take place in order."""
        for op in self.plans.ops:
            if op.program is None or not can_run(op):
                self.run_eagerly(op)
                continue
            before = self._copy_of_touched(op)
            self.run_eagerly(op)
            source = source_of(op.program, op.ops)
            results = self._launch(op, op.program, source, before)
            yield op, source, results

    def run_eagerly(self, op: Planned) -> None:
        for call in op.calls:
            self._run(call)

    def view(self, value: int, storages=None) -> torch.Tensor:
        look = self.plans.values[value]
        storage = (storages or self.storages)[look.storage]
        empty = torch.empty(0, dtype=look.dtype, device=self.device)
        return empty.set_(storage, look.offset, look.sizes, look.strides)

    def _run(self, call: Call) -> None:
        space, name = call.op.split("::")
        name, _, overload = name.partition(".")
        op = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
        named = zip(op._schema.arguments, call.arguments, strict=True)
        arguments = {spec.name: self._argument(argument) for spec, argument in named}
        if arguments.get("device") is not None:
            arguments["device"] = self.device
        made = op(*[arguments.pop(spec.name) for spec in op._schema.arguments
                    if not spec.kwarg_only], **arguments)  # fmt: skip
        made = made if isinstance(made, (tuple, list)) else [made]
        fresh = iter(made)
        for value in call.outputs:
            result = next(fresh)
            if value is None:
                continue
            look = self.plans.values[value]
            if result.stride() != look.strides or result.storage_offset():
                own = torch.empty_strided(
                    look.sizes, look.strides, dtype=look.dtype, device=self.device
                )
                result = own.copy_(result)
            self.storages[look.storage] = result.untyped_storage()

    def _argument(self, argument):
        if isinstance(argument, list):
            return [self._argument(element) for element in argument]
        if isinstance(argument, tuple) and argument[:1] == ("value",):
            return self.view(argument[1])
        return argument

    def _copy_of_touched(self, op: Planned) -> dict[int, Storage | None]:
        values = [*op.tensors, *(op.parameters[i] for i in _values_among(op))]
        numbers = {self.plans.values[value].storage for value in values}
        return {n: s.clone() if (s := self.storages[n]) is not None else None for n in numbers}

    def _launch(self, op: Planned, program: Program, source: Source, storages) -> list:
        for n, storage in storages.items():
            if storage is None:  # memory that the group makes: never what eager's had been
                size = self.storages[n].nbytes()
                storages[n] = torch.full((size,), 77, dtype=torch.uint8,
                                         device=self.device).untyped_storage()  # fmt: skip
        names = interpreted.load(source.text)
        launches = launches_of(program, source, self.block)
        partials = [
            torch.empty(nbytes, device=self.device, dtype=torch.uint8)
            for nbytes in partial_bytes(program, launches)
        ]
        for launch in launches:
            arguments = [
                self._kernel_argument(a, op, program, launches, storages, partials)
                for a in launch.kernel.arguments
            ]
            names[launch.kernel.name][(launch.programs,)](
                *arguments, **launch.constants, num_warps=launch.num_warps, enable_fp_fusion=False
            )
        written = [*program.stores, *(fold.tensor for fold in program.folds)]
        values = [op.tensors[tensor] for tensor in written]
        return [(self.view(value, storages), self.view(value)) for value in values]

    def _kernel_argument(
        self, argument, op: Planned, program: Program, launches: tuple[Launch, ...], storages,
        partials
    ):  # fmt: skip
        match argument.kind:
            case "tensor":
                return self.view(op.tensors[argument.index], storages)
            case "parameter":
                if program.parameters[argument.index].kind == "value":
                    return self.view(op.parameters[argument.index], storages)
                return converted(program.parameters[argument.index], op.parameters[argument.index])
            case "partial":
                dtype = POINTERS[argument.type]
                return partials[argument.index].view(dtype)
            case _:
                return number_of(argument, program, launches)


POINTERS = {
    "*fp32": torch.float32, "*fp64": torch.float64, "*i8": torch.int8, "*u8": torch.uint8,
    "*i16": torch.int16, "*i32": torch.int32, "*i64": torch.int64,
}  # fmt: skip


def _values_among(op: Planned) -> list[int]:
    """Which parameters are tensors of one element."""
    assert op.program is not None
    return [i for i, p in enumerate(op.program.parameters) if p.kind == "value"]


def converted(parameter: Parameter, number: float | int | bool) -> float | int | bool:
    """As csrc/fuse/numbers.h: converted to the dtype, then as it stands in a register."""
    wide = torch.float64 if isinstance(number, float) else torch.int64
    value = torch.tensor(number, dtype=wide).to(parameter.rounded_to)
    value = -value if parameter.negate else value
    if parameter.kind == "number" and parameter.constant:
        value = value + parameter.constant
    return value.to(TORCH_TYPES[parameter.type]).item()


def close(a, b):
    torch.testing.assert_close(a, b, equal_nan=True)


def check(replay, same):
    """Compares all groups; returns how many there were."""
    groups = 0
    for _, source, results in replay.groups():
        groups += 1
        for ours, theirs in results:
            try:
                same(ours, theirs)
            except AssertionError as error:
                raise AssertionError(f"{source.text}\n{error}") from None
    return groups
