"""What the kernels of a group are launched with: programs, constants, and the values of arguments
that are the same for each run of the plan."""

from __future__ import annotations

from dataclasses import dataclass

from lazyeng.fuse.description import TORCH_TYPES, Program
from lazyeng.fuse.iteration import BLOCK_SIZE, LARGEST_BLOCK_SIZE, MAX_PROGRAMS, iteration_of
from lazyeng.fuse.kernels import Argument, Kernel, partial_type
from lazyeng.fuse.source import Source


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel: how many programs, with which constants, each of so many warps."""

    kernel: Kernel
    programs: int
    constants: dict[str, int]
    num_warps: int


def launches_of(
    program: Program, source: Source, block_size: int | None = None
) -> tuple[Launch, ...]:
    """In order. ``block_size``: about so many elements for each program to work on at a time; None:
    as many as suit it."""
    over = iteration_of(program)
    block_size = block_size or _block_size(program)
    blocks = over.blocks(program, block_size)
    programs = min(blocks, MAX_PROGRAMS) if program.folds else blocks
    constants = over.sizes(program, block_size)
    elements = 1
    for size in constants.values():
        elements *= size
    first = Launch(source.group, programs, constants, _warps(elements))
    if source.finish is None:
        return (first,)
    return first, Launch(source.finish, 1, {"BLOCK_SIZE": MAX_PROGRAMS}, _warps(MAX_PROGRAMS))


def _block_size(program: Program) -> int:
    """Two loads of 16 bytes for each thread and tensor, which hide the way to memory: twice as many
    elements of two bytes. (A chain of bfloat16 on an H100: 195 us, and 212 with half of it.)
    """
    widest = max((TORCH_TYPES[tensor.type].itemsize for tensor in program.tensors), default=4)
    return LARGEST_BLOCK_SIZE if widest <= 2 and not (program.row or program.folds) else BLOCK_SIZE


def _warps(elements: int) -> int:
    """Of a block of so many elements: 16 of them a thread, as far as that goes."""
    return 4 if elements <= 2048 else 8 if elements <= 8192 else 16


def partial_bytes(program: Program, launches: tuple[Launch, ...]) -> list[int]:
    """Of each fold's partial results."""
    return [
        launches[0].programs * TORCH_TYPES[partial_type(program, fold)].itemsize
        for fold in program.folds
    ]


def number_of(argument: Argument, program: Program, launches: tuple[Launch, ...]) -> int | float:
    """The value of an argument that is neither a tensor, a parameter, nor partial results."""
    match argument.kind:
        case "size":
            return program.shape[argument.dim]
        case "stride":
            return program.tensors[argument.index].strides[argument.dim]
        case "n_elements":
            return program.numel
        case "n_rows":
            return program.numel // program.row
        case "n_columns":
            return program.row
        case "n_partials":
            return launches[0].programs
        case "row_divisor":
            return float(program.steps[argument.index].divisor)
        case "divisor":
            return float(program.folds[argument.index].divisor)
        case _:
            raise ValueError(f"expected a number, got {argument}")
