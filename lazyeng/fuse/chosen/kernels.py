"""The text of hand-written kernels, which are not imported: that needs Triton, and a process."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HEADER = "import triton\nimport triton.language as tl\n\n\n"


@dataclass(frozen=True, slots=True)
class Text:
    """A source with the kernel and the functions that it calls; its parameters."""

    text: str
    operands: tuple[str, ...]
    constants: tuple[str, ...]


@cache
def folder() -> Path:
    """Of the kernels: in the package, or beside it in a source tree."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "triton_kernels"
    return inside if inside.is_dir() else package.parent / "triton_kernels"


@cache
def text_of(file: str, kernel: str) -> Text:
    """The kernel of that name in that file."""
    functions = _functions((folder() / f"{file}.py").read_text())
    wanted = [kernel]
    for name in wanted:  # (it grows)
        wanted += sorted((_called(functions[name][0]) & functions.keys()) - set(wanted))
    text = _HEADER + "\n\n".join(text for n, (_, text) in functions.items() if n in wanted)
    return _read(text, functions[kernel][0])


@cache
def text_in(source: str, kernel: str) -> Text:
    """The kernel of that name in that source, which is taken as it is."""
    return _read(source, _functions(source)[kernel][0])


def _read(text: str, function: ast.FunctionDef) -> Text:
    parameters = function.args.args
    constants = {p.arg for p in parameters if "constexpr" in ast.unparse(p.annotation or p)}
    names = [p.arg for p in parameters]
    return Text(text, tuple(n for n in names if n not in constants),
                tuple(n for n in names if n in constants))  # fmt: skip


def _called(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def _functions(text: str) -> dict[str, tuple[ast.FunctionDef, str]]:
    """Those that Triton compiles, each with its text."""
    lines = text.splitlines(keepends=True)
    return {
        node.name: (node, "".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno]))
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
