"""From a group to the readable source of one Triton kernel.

The source is what decides the kernel, and nothing else: no sizes, no strides other than 0 and 1,
and no numbers, all of which are arguments. So one compiled kernel serves each learning rate, and
each size (of groups with rows, each size of about as long rows). A group that folds has a second
kernel, which folds what the programs of the first have left, in a fixed order: the same bits in
each run.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lazyeng.fuse.description import Program
from lazyeng.fuse.kernels import Kernel
from lazyeng.fuse.writer import write_finish, write_group


@dataclass(frozen=True, slots=True)
class Source:
    """The text, the kernel of the group and, if it folds, the one that ends the folds."""

    text: str
    group: Kernel
    finish: Kernel | None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (self.group,) if self.finish is None else (self.group, self.finish)


def source_of(program: Program, ops: Sequence[str]) -> Source:
    """The source for a group's program; ``ops``: the name of each member's op.

    Raises:
        KeyError: an operation is not in the table of expressions.
    """
    group, lines = write_group(program, ops)
    text = _function(group, lines)
    finish = None
    if program.folds:
        finish, lines = write_finish(program)
        text += "\n\n" + _function(finish, lines)
    return Source(_header(text) + text, group, finish)


def with_functions(kernels: str) -> str:
    """A source with these kernels, and what they use of functions.py."""
    return _header(kernels) + kernels


def _function(kernel: Kernel, lines: Sequence[str]) -> str:
    constants = (f"{name}: tl.constexpr" for name in kernel.constants)
    names = ", ".join([*(a.name for a in kernel.arguments), *constants])
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
