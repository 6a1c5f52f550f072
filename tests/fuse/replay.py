"""Runs planned calls one by one in eager, and each group of them as its kernel from the same state.

So the oracle is eager PyTorch with the recorded arguments; nothing of the lowering takes part.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lazyeng.fuse.description import TORCH_TYPES, Call, Parameter, Planned, Plans, Program
from lazyeng.fuse.source import (
    BLOCK_SIZE,
    MAX_PROGRAMS,
    NUM_WARPS,
    Kernel,
    Source,
    accumulated_in,
    programs_of,
    source_of,
)
from tests.fuse import interpreted

Storage = torch.UntypedStorage


class Replay:
    """The storages of a program as its ops go on, on the device."""

    def __init__(self, plans: Plans, device: str, block: int = BLOCK_SIZE) -> None:
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
            if op.program is None or not can_run(op.program):
                self.run_eagerly(op)
                continue
            before = self._copy_of_touched(op.program)
            self.run_eagerly(op)
            source = source_of(op, self.plans.values)
            results = self._launch(op.program, source, before)
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

    def _copy_of_touched(self, program: Program) -> dict[int, Storage | None]:
        values = [tensor.value for tensor in program.tensors]
        values += [p.number for p in program.parameters if p.kind == "value"]
        numbers = {self.plans.values[value].storage for value in values}
        return {n: s.clone() if (s := self.storages[n]) is not None else None for n in numbers}

    def _launch(self, program: Program, source: Source, storages) -> list:
        for n, storage in storages.items():
            if storage is None:  # memory that the group makes: never what eager's had been
                size = self.storages[n].nbytes()
                storages[n] = torch.full((size,), 77, dtype=torch.uint8,
                                         device=self.device).untyped_storage()  # fmt: skip
        names = interpreted.load(source.text)
        programs = programs_of(program, self.block)
        partials = [
            torch.empty(programs, device=self.device,
                        dtype=TORCH_TYPES[accumulated_in(program.types[fold.register])])
            for fold in program.folds
        ]  # fmt: skip

        def run(kernel: Kernel, grid: int, block: int) -> None:
            arguments = [
                self._kernel_argument(a, program, storages, partials) for a in kernel.arguments
            ]
            names[kernel.name][(grid,)](*arguments, BLOCK_SIZE=block, num_warps=NUM_WARPS,
                                        enable_fp_fusion=False)  # fmt: skip

        run(source.group, programs, self.block)
        if source.finish:
            run(source.finish, 1, MAX_PROGRAMS)
        written = [*program.stores, *(fold.tensor for fold in program.folds)]
        values = [program.tensors[tensor].value for tensor in written]
        return [(self.view(value, storages), self.view(value)) for value in values]

    def _kernel_argument(self, argument, program: Program, storages, partials):
        match argument.kind:
            case "tensor":
                return self.view(program.tensors[argument.index].value, storages)
            case "parameter":
                parameter = program.parameters[argument.index]
                if parameter.kind == "value":
                    return self.view(parameter.number, storages)
                return number_of(parameter)
            case "partial":
                return partials[argument.index]
            case "size":
                return program.shape[argument.dim]
            case "stride":
                return program.tensors[argument.index].strides[argument.dim]
            case "numel":
                return program.numel
            case "partials":
                return programs_of(program, self.block)


def number_of(parameter: Parameter) -> float | int | bool:
    """As csrc/fuse/binding.cpp: converted to the dtype, then as it stands in a register."""
    number = parameter.number
    wide = torch.float64 if isinstance(number, float) else torch.int64
    value = torch.tensor(number, dtype=wide).to(parameter.rounded_to)
    return (-value if parameter.negate else value).to(TORCH_TYPES[parameter.type]).item()


def can_run(program: Program) -> bool:
    """Whether no number is one that must not come to a kernel."""
    return not any(p.no_nan and p.number != p.number for p in program.parameters)
