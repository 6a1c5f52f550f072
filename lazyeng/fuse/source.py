"""From a group to the readable source of one Triton kernel.

The source is what decides the kernel, and nothing else: no sizes, no strides other than 0 and 1,
and no numbers, all of which are arguments. So one compiled kernel serves each learning rate, and
each size. A group that folds has a second kernel, which folds what the programs of the first have
left, in a fixed order: the same bits in each run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from lazyeng.fuse.description import Fold, Parameter, Planned, Program, Value
from lazyeng.fuse.expressions import FLOATS, TRITON_TYPES, cast, expression

BLOCK_SIZE = 1024
NUM_WARPS = 4
# Of a group that folds: as many partial results, whatever the GPU, so that the bits do not depend
# on it; enough programs for each GPU that there is.
MAX_PROGRAMS = 1024

SIGNATURE_TYPES = {
    "b8": "i1", "u8": "u8", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "fp32",
    "f64": "fp64", "f16": "fp16", "bf16": "bf16",
}  # fmt: skip
# A number is widened by the caller, and narrowed by the kernel.
NUMBER_TYPES = {"b8": "i32", "u8": "i32", "i8": "i32", "i16": "i32"}
TYPE_OF_DTYPE = {
    "bool": "b8", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
}  # fmt: skip
NARROW = {"float16": "round_f16", "bfloat16": "round_bf16"}
FOLD_FUNCTIONS = {"sum": "total", "maximum": "maximum", "minimum": "minimum"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel, in Triton's type ("*fp32", "i32").

    ``kind``: what it is: "tensor" and "parameter" with its ``index`` in the program; "partial", the
    partial results of fold ``index``; "size" of dim ``dim``; "stride" of tensor ``index`` over dim
    ``dim``; "numel", "partials": numbers of elements and of partial results.
    """

    name: str
    type: str
    kind: Literal["tensor", "parameter", "partial", "size", "stride", "numel", "partials"]
    index: int = 0
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the source; its arguments, before the constant ``BLOCK_SIZE``."""

    name: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The text, the kernel of the group and, if it folds, the one that ends the folds."""

    text: str
    group: Kernel
    finish: Kernel | None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (self.group,) if self.finish is None else (self.group, self.finish)


def source_of(planned: Planned, values: Sequence[Value]) -> Source:
    """The source for a planned group that has a program.

    Args:
        planned: the group.
        values: what its numbers of values mean (``Plans.values``).

    Raises:
        KeyError: an operation is not in the table of expressions.
    """
    assert planned.program is not None
    return _Writer(planned, planned.program, values).write()


def programs_of(program: Program, block_size: int = BLOCK_SIZE) -> int:
    """How many programs the group's kernel is launched with."""
    blocks = -(-program.numel // block_size)
    return min(blocks, MAX_PROGRAMS) if program.folds else blocks


def accumulated_in(type: str) -> str:
    """The type of a fold's partial results."""
    return "i32" if type == "b8" else type


def _empty_fold(fold: str, type: str) -> str:
    """What nothing folds to."""
    if fold == "sum":
        return "0"
    sign = "-" if fold == "maximum" else ""
    if type in FLOATS:
        return f'{sign}float("inf")'
    unsigned, bits = type == "u8", int(type[1:])
    if fold == "maximum":
        return "0" if unsigned else str(-(1 << (bits - 1)))
    return str((1 << (bits if unsigned else bits - 1)) - 1)


class _Writer:
    """Writes one source, line by line."""

    def __init__(self, planned: Planned, program: Program, values: Sequence[Value]) -> None:
        self.calls = planned.calls
        self.program = program
        self.values = values
        self.arguments: list[Argument] = []
        self.lines: list[str] = []
        self.names: dict[int, str] = {}  # of registers
        extents = [abs(s) * n for t in program.tensors
                   for s, n in zip(t.strides, program.shape, strict=False)]  # fmt: skip
        # (The sum bounds every offset, and a block more than there are elements is counted.)
        self.wide = program.numel + BLOCK_SIZE * MAX_PROGRAMS + sum(extents) >= 1 << 31
        self.used_dims: set[int] = set()

    def write(self) -> Source:
        body = [*self._loads(), *self._steps(), *self._stores()]
        before = [*self._parameters()]
        if self.program.folds:
            before += self._accumulators()
            body += self._accumulate()
        numel = self._argument("n_elements", "numel", "i64" if self.wide else "i32")
        head, index = self._indices(numel)
        lines = [*before, *head, *self._indented(index + body)]
        if self.program.folds:
            lines += self._partials()
        group = Kernel("group_kernel", tuple(self.arguments))
        text = _function(group, lines)
        finish = self._finish() if self.program.folds else None
        if finish:
            text += "\n\n" + _function(*finish)
        return Source(_header(text) + text, group, finish[0] if finish else None)

    def _argument(self, name: str, kind, type: str, index: int = 0, dim: int = 0) -> str:
        argument = Argument(name, type, kind, index, dim)
        if argument not in self.arguments:
            self.arguments.append(argument)
        return name

    def _indented(self, lines: list[str]) -> list[str]:
        return ["    " + line for line in lines] if self.program.folds else lines

    # ---- numbers, and where an element is

    def _parameters(self) -> Iterator[str]:
        for register, index in sorted(self.program.parameter_of.items()):
            parameter = self.program.parameters[index]
            yield f"{self.names[register]} = {self._number(parameter, index)}"

    def _name_parameters(self) -> None:
        for i, register in enumerate(sorted(self.program.parameter_of)):
            self.names[register] = f"a{i}"

    def _number(self, parameter: Parameter, index: int) -> str:
        if parameter.kind == "constant":
            return f"tl.full((), {parameter.number:g}, {TRITON_TYPES[parameter.type]})"
        if parameter.kind == "number":
            type = SIGNATURE_TYPES[NUMBER_TYPES.get(parameter.type, parameter.type)]
            name = self._argument(f"number{index}", "parameter", type, index)
            return f"tl.full((), {name}, {TRITON_TYPES[parameter.type]})"
        stored = TYPE_OF_DTYPE[str(self.values[parameter.number].dtype).removeprefix("torch.")]
        type = "*" + SIGNATURE_TYPES[stored]
        pointer = self._argument(f"number{index}_ptr", "parameter", type, index)
        text = cast(f"tl.load({pointer})", stored, parameter.type)
        rounding = NARROW.get(str(parameter.rounded_to).removeprefix("torch."))
        return expression(rounding, "f32", [text]) if rounding else text

    def _indices(self, numel: str) -> tuple[list[str], list[str]]:
        """The lines before a loop over blocks and, in it, those that say which elements are its."""
        index = ["mask = offsets < n_elements"]
        place = "offsets"
        for d in range(len(self.program.shape) - 1, min(self.used_dims, default=99) - 1, -1):
            size = self._size(d) if d else ""  # (nothing asks for the size of the outermost dim)
            if d in self.used_dims:
                index.append(f"i{d} = {place} % {size}" if d else f"i{d} = {place}")
            place = f"{place} // {size}"
        program = "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"
        if self.program.folds:
            loop = (f"for start in range({program} * BLOCK_SIZE, {numel}, "
                    "tl.num_programs(0) * BLOCK_SIZE):")  # fmt: skip
            return [loop], ["offsets = start + tl.arange(0, BLOCK_SIZE)", *index]
        return [], [f"offsets = {program} * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)", *index]

    def _size(self, dim: int) -> str:
        return self._argument(f"size{dim}", "size", "i64" if self.wide else "i32", 0, dim)

    def _place(self, name: str, tensor: int) -> str:
        """The offsets of the elements of a tensor."""
        strides = self.program.tensors[tensor].strides
        if not strides:
            return "offsets"
        terms = []
        for d, stride in enumerate(strides):
            if stride == 0 or self.program.shape[d] == 1:
                continue
            self.used_dims.add(d)
            factor = self._argument(f"{name}_stride{d}", "stride",
                                    "i64" if self.wide else "i32", tensor, d) \
                if stride != 1 else ""  # fmt: skip
            terms.append(f"i{d} * {factor}" if factor else f"i{d}")
        return " + ".join(terms) or "tl.zeros_like(offsets)"

    # ---- elements

    def _pointer(self, name: str, tensor: int) -> str:
        type = "*" + SIGNATURE_TYPES[self.program.tensors[tensor].type]
        return self._argument(f"{name}_ptr", "tensor", type, tensor)

    def _loads(self) -> Iterator[str]:
        self._name_parameters()
        for i, (register, tensor) in enumerate(sorted(self.program.loads.items())):
            self.names[register] = name = f"x{i}"
            pointer = self._pointer(name, tensor)
            yield f"{name} = tl.load({pointer} + {self._place(name, tensor)}, mask=mask)"

    def _steps(self) -> Iterator[str]:
        types = self.program.types
        for i, step in enumerate(self.program.steps):
            operands = [self.names[register] for register in step.inputs]
            if step.operation == "cast":
                text = cast(operands[0], types[step.inputs[0]], types[step.out])
            else:
                text = expression(step.operation, types[step.inputs[-1]], operands)
            self.names[step.out] = f"v{i}"
            yield f"v{i} = {text}  # {self.calls[step.member].op}"

    def _stores(self) -> Iterator[str]:
        stores = sorted(self.program.stores.items())
        if any(not self.program.tensors[tensor].fresh for tensor, _ in stores):
            # Another thread of the program may load what this one overwrites.
            yield "tl.debug_barrier()"
        for i, (tensor, register) in enumerate(stores):
            name = f"y{i}"
            pointer = self._pointer(name, tensor)
            yield (f"tl.store({pointer} + {self._place(name, tensor)}, "
                   f"{self.names[register]}, mask=mask)")  # fmt: skip

    # ---- folds

    def _folds(self) -> Iterator[tuple[int, Fold, str]]:
        for i, fold in enumerate(self.program.folds):
            yield i, fold, accumulated_in(self.program.types[fold.register])

    def _accumulators(self) -> Iterator[str]:
        for i, fold, type in self._folds():
            empty = _empty_fold(fold.fold, type)
            yield f"fold{i} = tl.full([BLOCK_SIZE], {empty}, {TRITON_TYPES[type]})"

    def _accumulate(self) -> Iterator[str]:
        for i, fold, type in self._folds():
            value = cast(self.names[fold.register], self.program.types[fold.register], type)
            empty = f"tl.full((), {_empty_fold(fold.fold, type)}, {TRITON_TYPES[type]})"
            function = FOLD_FUNCTIONS[fold.fold]
            yield f"fold{i} = {function}(fold{i}, tl.where(mask, {value}, {empty}))"

    def _partials(self) -> Iterator[str]:
        for i, fold, type in self._folds():
            name = self._argument(f"partial{i}_ptr", "partial", "*" + SIGNATURE_TYPES[type], i)
            function = FOLD_FUNCTIONS[fold.fold]
            yield f"tl.store({name} + tl.program_id(0), tl.reduce(fold{i}, 0, {function}))"

    def _finish(self) -> tuple[Kernel, list[str]]:
        self.arguments = []
        lines = ["offsets = tl.arange(0, BLOCK_SIZE)", "mask = offsets < n_partials"]
        for i, fold, type in self._folds():
            partial = self._argument(f"partial{i}_ptr", "partial", "*" + SIGNATURE_TYPES[type], i)
            stored = self.program.tensors[fold.tensor].type
            pointer = self._pointer(f"y{i}", fold.tensor)
            empty = _empty_fold(fold.fold, type)
            lines.append(f"fold{i} = tl.load({partial} + offsets, mask=mask, other={empty})")
            lines.append(f"total{i} = tl.reduce(fold{i}, 0, {FOLD_FUNCTIONS[fold.fold]})")
            if fold.mean:
                lines.append(f"total{i} = div(total{i}, n_elements.to({TRITON_TYPES[type]}))")
                self._argument("n_elements", "numel", "i64" if self.wide else "i32")
            lines.append(f"tl.store({pointer}, {cast(f'total{i}', type, stored)})")
        self._argument("n_partials", "partials", "i32")
        return Kernel("finish_kernel", tuple(self.arguments)), lines


def _function(kernel: Kernel, lines: Sequence[str]) -> str:
    names = ", ".join([*(a.name for a in kernel.arguments), "BLOCK_SIZE: tl.constexpr"])
    head = f"@triton.jit\ndef {kernel.name}({names}):\n"
    return head + "".join(f"    {line}\n" for line in lines)


_IMPORTS = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice


"""


def _header(kernels: str) -> str:
    """The imports, and the functions that the kernels use, with what those use themselves."""
    functions = _library()
    wanted = _called(kernels) & functions.keys()
    while more := {n for f in wanted for n in _called(functions[f]) & functions.keys()} - wanted:
        wanted |= more
    return _IMPORTS + "".join(text + "\n\n" for n, text in functions.items() if n in wanted)


def _called(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


@cache
def _library() -> dict[str, str]:
    """The text of each function of functions.py, which is not imported: that needs Triton."""
    text = Path(__file__).with_name("functions.py").read_text()
    lines = text.splitlines(keepends=True)
    return {
        node.name: "".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }
