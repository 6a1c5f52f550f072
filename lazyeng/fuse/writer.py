"""The lines of a group's kernels, from its program (``source`` puts them together)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lazyeng.fuse.description import Fold, Parameter, Program, Step
from lazyeng.fuse.expressions import FLOATS, TRITON_TYPES, cast, expression
from lazyeng.fuse.iteration import LARGEST_BLOCK_SIZE, MAX_PROGRAMS, iteration_of
from lazyeng.fuse.kernels import Argument, ArgumentKind, Kernel, folded_type, partial_type

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
FOLD_FUNCTIONS = {
    "sum": "total", "product": "product", "maximum": "maximum", "minimum": "minimum",
}  # fmt: skip

Lines = list[str]


def write_group(program: Program, ops: Sequence[str]) -> tuple[Kernel, Lines]:
    """The kernel that goes over the elements."""
    return _GroupWriter(program, ops).write()


def write_finish(program: Program) -> tuple[Kernel, Lines]:
    """The kernel that folds partial results."""
    return _FinishWriter(program).write()


def _empty_fold(fold: str, type: str) -> str:
    """What nothing folds to."""
    if fold in ("sum", "product"):
        return "01"[fold == "product"]
    sign = "-" if fold == "maximum" else ""
    if type in FLOATS:
        return f'{sign}float("inf")'
    unsigned, bits = type == "u8", int(type[1:])
    if fold == "maximum":
        return "0" if unsigned else str(-(1 << (bits - 1)))
    return str((1 << (bits if unsigned else bits - 1)) - 1)


class _Writer:
    """Arguments as they are needed."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.arguments: list[Argument] = []

    def _argument(
        self, name: str, kind: ArgumentKind, type: str, index: int = 0, dim: int = 0
    ) -> str:
        argument = Argument(name, type, kind, index, dim)
        if argument not in self.arguments:
            self.arguments.append(argument)
        return name

    def _divided(self, text: str, type: str, by: float, kind: ArgumentKind, index: int) -> str:
        """The text divided by a number of the plan."""
        if by == 1:
            return text
        name = self._argument(f"{kind}{index}", kind, SIGNATURE_TYPES[type], index)
        return f"div({text}, tl.full((), {name}, {TRITON_TYPES[type]}))"

    def _folds(self) -> Iterator[tuple[int, Fold, str]]:
        for i, fold in enumerate(self.program.folds):
            yield i, fold, partial_type(self.program, fold)


class _GroupWriter(_Writer):
    def __init__(self, program: Program, ops: Sequence[str]) -> None:
        super().__init__(program)
        self.ops = ops
        self.over = iteration_of(program)
        self.names: dict[int, str] = {}  # of registers
        extents = [abs(s) * n for t in program.tensors
                   for s, n in zip(t.strides, program.shape, strict=False)]  # fmt: skip
        # (The sum bounds every offset, and a block more than there are elements is counted.)
        self.wide = program.numel + LARGEST_BLOCK_SIZE * MAX_PROGRAMS + sum(extents) >= 1 << 31
        self.integer = "i64" if self.wide else "i32"
        self.used_dims: set[int] = set()

    def write(self) -> tuple[Kernel, Lines]:
        body = [*self._loads(), *self._steps(), *self._stores()]
        before = [*self._parameters()]
        if self.program.folds:
            before += self._accumulators()
            body += self._accumulate()
        for kind in self.over.counts:
            self._argument(kind, kind, self.integer)
        # (The dims first: they ask for sizes, which are arguments.)
        body = [*self._dims(), *body]
        program = "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"
        if self.program.folds:
            block = [*self.over.index(None), *body]
            lines = [*before, self.over.loop(program), *("    " + line for line in block)]
            lines += self._partials()
        else:
            lines = [*before, *self.over.index(program), *body]
        return Kernel("group_kernel", tuple(self.arguments), self.over.constants), lines

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
            number = _literal(parameter.constant, parameter.type)
            return f"tl.full((), {number}, {TRITON_TYPES[parameter.type]})"
        if parameter.kind == "number":
            type = SIGNATURE_TYPES[NUMBER_TYPES.get(parameter.type, parameter.type)]
            name = self._argument(f"number{index}", "parameter", type, index)
            return f"tl.full((), {name}, {TRITON_TYPES[parameter.type]})"
        stored = TYPE_OF_DTYPE[str(parameter.stored).removeprefix("torch.")]
        type = "*" + SIGNATURE_TYPES[stored]
        pointer = self._argument(f"number{index}_ptr", "parameter", type, index)
        text = cast(f"tl.load({pointer})", stored, parameter.type)
        rounding = NARROW.get(str(parameter.rounded_to).removeprefix("torch."))
        return expression(rounding, "f32", [text]) if rounding else text

    def _dims(self) -> Iterator[str]:
        """The index of each dim that a tensor with strides needs, innermost first."""
        place = "offsets"
        for d in range(len(self.program.shape) - 1, min(self.used_dims, default=99) - 1, -1):
            size = self._size(d) if d else ""  # (nothing asks for the size of the outermost dim)
            if d in self.used_dims:
                yield f"i{d} = {place} % {size}" if d else f"i{d} = {place}"
            place = f"{place} // {size}"

    def _size(self, dim: int) -> str:
        return self._argument(f"size{dim}", "size", self.integer, 0, dim)

    def _place(self, name: str, index: int) -> tuple[str, str]:
        """The offsets of the elements of a tensor, and which of them are there."""
        tensor = self.program.tensors[index]
        place = self.over.place(tensor.rate)
        if not tensor.strides:
            return place.offsets, place.mask
        terms = []
        for d, stride in enumerate(tensor.strides):
            if stride == 0 or self.program.shape[d] == 1:
                continue
            self.used_dims.add(d)
            if stride == 1:
                terms.append(f"i{d}")
                continue
            factor = self._argument(f"{name}_stride{d}", "stride", self.integer, index, d)
            terms.append(f"i{d} * {factor}")
        return " + ".join(terms) or "tl.zeros_like(offsets)", place.mask

    # ---- elements

    def _pointer(self, name: str, tensor: int) -> str:
        type = "*" + SIGNATURE_TYPES[self.program.tensors[tensor].type]
        return self._argument(f"{name}_ptr", "tensor", type, tensor)

    def _loads(self) -> Iterator[str]:
        self._name_parameters()
        for i, (register, tensor) in enumerate(sorted(self.program.loads.items())):
            self.names[register] = name = f"x{i}"
            pointer = self._pointer(name, tensor)
            offsets, mask = self._place(name, tensor)
            yield f"{name} = tl.load({pointer} + {offsets}, mask={mask})"

    def _steps(self) -> Iterator[str]:
        for i, step in enumerate(self.program.steps):
            text = self._row_fold(i, step) if step.folds else self._operation(step)
            self.names[step.out] = f"v{i}"
            yield f"v{i} = {text}  # {self.ops[step.member]}"

    def _operation(self, step: Step) -> str:
        types = self.program.types
        operands = [self.names[register] for register in step.inputs]
        if step.operation == "cast":
            return cast(operands[0], types[step.inputs[0]], types[step.out])
        return expression(step.operation, types[step.inputs[-1]], operands)

    def _row_fold(self, i: int, step: Step) -> str:
        (register,) = step.inputs
        type, made = self.program.types[register], self.program.types[step.out]
        folded_in = folded_type(type, made)
        function = FOLD_FUNCTIONS[step.operation]
        masked = self._masked(self.names[register], step.operation, type, folded_in)
        text = f"tl.reduce({masked}, 1, {function}, keep_dims=True)"
        return self._divided(cast(text, folded_in, made), made, step.divisor, "row_divisor", i)

    def _masked(self, name: str, fold: str, type: str, to: str) -> str:
        """The elements that are there, with what does not change a fold in place of others."""
        empty = f"tl.full((), {_empty_fold(fold, to)}, {TRITON_TYPES[to]})"
        return f"tl.where(mask, {cast(name, type, to)}, {empty})"

    def _stores(self) -> Iterator[str]:
        stores = sorted(self.program.stores.items())
        if any(not self.program.tensors[tensor].fresh for tensor, _ in stores):
            # Another thread of the program may load what this one overwrites.
            yield "tl.debug_barrier()"
        for i, (tensor, register) in enumerate(stores):
            pointer = self._pointer(f"y{i}", tensor)
            offsets, mask = self._place(f"y{i}", tensor)
            yield f"tl.store({pointer} + {offsets}, {self.names[register]}, mask={mask})"

    # ---- folds over everything

    def _accumulators(self) -> Iterator[str]:
        for i, fold, type in self._folds():
            empty = _empty_fold(fold.fold, type)
            yield f"fold{i} = tl.full({self.over.shape}, {empty}, {TRITON_TYPES[type]})"

    def _accumulate(self) -> Iterator[str]:
        for i, fold, type in self._folds():
            name, own = self.names[fold.register], self.program.types[fold.register]
            masked = self._masked(name, fold.fold, own, type)
            yield f"fold{i} = {FOLD_FUNCTIONS[fold.fold]}(fold{i}, {masked})"

    def _partials(self) -> Iterator[str]:
        for i, fold, type in self._folds():
            name = self._argument(f"partial{i}_ptr", "partial", "*" + SIGNATURE_TYPES[type], i)
            text = self.over.fold_all(f"fold{i}", FOLD_FUNCTIONS[fold.fold])
            yield f"tl.store({name} + tl.program_id(0), {text})"


class _FinishWriter(_Writer):
    def write(self) -> tuple[Kernel, Lines]:
        lines = ["offsets = tl.arange(0, BLOCK_SIZE)", "mask = offsets < n_partials"]
        for i, fold, type in self._folds():
            partial = self._argument(f"partial{i}_ptr", "partial", "*" + SIGNATURE_TYPES[type], i)
            stored = self.program.tensors[fold.tensor].type
            pointer = self._argument(
                f"y{i}_ptr", "tensor", "*" + SIGNATURE_TYPES[stored], fold.tensor
            )
            empty = _empty_fold(fold.fold, type)
            lines.append(f"fold{i} = tl.load({partial} + offsets, mask=mask, other={empty})")
            text = f"tl.reduce(fold{i}, 0, {FOLD_FUNCTIONS[fold.fold]})"
            text = self._divided(text, type, fold.divisor, "divisor", i)
            lines.append(f"tl.store({pointer}, {cast(f'({text})', type, stored)})")
        self._argument("n_partials", "n_partials", "i32")
        return Kernel("finish_kernel", tuple(self.arguments), ("BLOCK_SIZE",)), lines


def _literal(number: float, type: str) -> str:
    """The number as Triton reads it."""
    if type not in FLOATS:
        return str(int(number))
    return repr(number) if math.isfinite(number) else f'float("{number}")'
