"""lazyeng.graph: the operators that are recorded and have not run, and what each of them needs."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from lazyeng import _C
from lazyeng._arguments import as_path
from lazyeng._drawing import Box, Item, draw
from lazyeng.tensor import LazyTensor


@dataclass(frozen=True, slots=True)
class PendingOp:
    """One recorded call.

    ``label``: the operator and its number in the order of recording, "mm#7"; ``line``: the
    program's, "train.py:42"; ``inputs``, ``outputs``: "float32[2,3]@cpu"; ``group``: operators with
    the same number run as one, None: alone; ``pushed``: the engine has it already; ``reads``: the
    labels of the ops whose results it reads; ``follows``: of others that have to run before it.
    """

    label: str
    op: str
    line: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    group: int | None
    pushed: bool
    reads: tuple[str, ...]
    follows: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """A picture of the pending operators, in the order of recording. It does not change later.

    ``ops``: the operators; ``len()``: how many they are; ``str()``: one line for each, "nothing is
    pending" if there is none.
    """

    ops: tuple[PendingOp, ...]

    def __len__(self) -> int:
        return len(self.ops)

    def __str__(self) -> str:
        if not self.ops:
            return "nothing is pending"
        return "\n".join(_text(op) for op in self.ops)

    def print(self) -> None:
        """Prints `str()` of it."""
        print(self)

    def to_dot(self) -> str:
        """The graph for Graphviz; groups are clusters, dashed edges only keep the order."""
        lines = ["digraph pending {", "  node [shape=box, fontname=monospace];"]
        for group, ops in self._groups():
            inside = [f"  {_quoted(op.label)} [tooltip={_quoted(_text(op))}];" for op in ops]
            if group is None:
                lines += inside
            else:
                lines += [f"  subgraph cluster_{group} {{", f'    label="group {group}";']
                lines += ["  " + line for line in inside] + ["  }"]
        for op in self.ops:
            lines += [f"  {_quoted(before)} -> {_quoted(op.label)};" for before in op.reads]
            lines += [
                f"  {_quoted(before)} -> {_quoted(op.label)} [style=dashed];"
                for before in op.follows
            ]
        return "\n".join([*lines, "}"])

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One self-contained page: groups as boxes; hover shows operator, shapes and line.

        Args:
            path: a file to write the page to, too.

        Raises:
            TypeError: `path` is neither a str nor a path.
            OSError: the file cannot be written.
        """
        file_path = None if path is None else as_path("to_html", path)
        boxes = [
            Box(
                None if group is None else f"group {group}",
                [Item(op.label, op.op, _text(op), op.reads, op.follows) for op in ops],
            )
            for group, ops in self._groups()
        ]
        page = draw(f"{len(self)} pending operators", boxes)
        if file_path is not None:
            with open(file_path, "w", encoding="utf-8") as file:
                file.write(page)
        return page

    def _groups(self) -> list[tuple[int | None, list[PendingOp]]]:
        """Each group once, where its first operator stands."""
        groups: dict[int, list[PendingOp]] = {}
        listed: list[tuple[int | None, list[PendingOp]]] = []
        for op in self.ops:
            if op.group is None:
                listed.append((None, [op]))
            elif op.group in groups:
                groups[op.group].append(op)
            else:
                groups[op.group] = [op]
                listed.append((op.group, groups[op.group]))
        return listed


def graph(*tensors: torch.Tensor) -> Graph:
    """The operators that are recorded and have not run yet, grouped as they would run now.

    This runs nothing. Use it in ``lazy("deferred")``: in mode ``"async"`` the engine is at work
    meanwhile, so what is shown may be done by the time you look at it.

    Args:
        tensors: only what these need is shown; without any, everything that is recorded and not
            handed to the engine, and what that waits for.

    Raises:
        TypeError: an argument is not a LazyTensor.
    """
    for tensor in tensors:
        if not isinstance(tensor, LazyTensor):
            raise TypeError(f"graph: expected LazyTensors, got {type(tensor).__name__}")
    nodes = _C.pending(list(tensors))
    labels = [node[0] for node in nodes]
    return Graph(
        tuple(
            PendingOp(
                label, op, line, tuple(inputs), tuple(outputs),
                None if group < 0 else group, pushed,
                tuple(labels[i] for i in reads), tuple(labels[i] for i in follows),
            )
            for label, op, line, inputs, outputs, group, pushed, reads, follows in nodes
        )
    )  # fmt: skip


def _text(op: PendingOp) -> str:
    parts = [f"{op.label} = {op.op}({', '.join(op.inputs)}) -> {', '.join(op.outputs) or '()'}"]
    if op.reads:
        parts.append(f"reads {' '.join(op.reads)}")
    if op.follows:
        parts.append(f"after {' '.join(op.follows)}")
    if op.group is not None:
        parts.append(f"group {op.group}")
    if op.pushed:
        parts.append("pushed")
    if op.line:
        parts.append(f"@ {op.line}")
    return "  ".join(parts)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
