"""From the launch of a hand-written kernel to what the compiler is asked for."""

from __future__ import annotations

from typing import TypeGuard

from lazyeng.fuse.chosen.kernels import text_in, text_of
from lazyeng.fuse.chosen.launches import KernelLaunch, Operand
from lazyeng.fuse.compiler import Request


def is_passed(operand: Operand | None) -> TypeGuard[Operand]:
    """Whether the kernel is called with it; otherwise it is compiled for it."""
    return operand is not None and not operand.fixed


def hand_written(launch: KernelLaunch, arch: int) -> Request:
    """The request for one launch; ``arch`` is 80, 90, ..."""
    text = launch.text
    source = text_in(text, launch.kernel) if text else text_of(launch.file, launch.kernel)
    operands = dict(zip(source.operands, launch.operands, strict=True))
    assert {*source.constants} == {*launch.constants}, launch
    there = {name: operand for name, operand in operands.items() if is_passed(operand)}
    fixed = {n: o and o.number for n, o in operands.items() if not is_passed(o)}
    divisible = (name for name, operand in there.items() if operand.divisible)
    return Request(
        source.text,
        launch.kernel,
        {name: operand.type for name, operand in there.items()},
        {**launch.constants, **fixed},
        tuple(sorted(divisible)),
        arch,
        launch.num_warps,
        # Kernels from files round at the end only, as their launchers ask.
        {"enable_fp_fusion": not text, **launch.options},
    )
