"""How a kernel goes over the elements of a group: in blocks of a flat run, or in blocks of rows.

A block of the kernel is a tensor of Triton: [BLOCK_SIZE], or [ROWS, COLUMNS] where COLUMNS is a
whole row. There what has one element a row is [ROWS, 1], and what all rows share is [1, COLUMNS]:
Triton's broadcasting does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from lazyeng.fuse.description import Program

BLOCK_SIZE = 1024  # elements of a block
LARGEST_BLOCK_SIZE = 2048  # of those that are small
# Of a group that folds: as many partial results, whatever the GPU, so that the bits do not depend
# on it; enough programs for each GPU that there is.
MAX_PROGRAMS = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of a tensor of some rate are: text of offsets, and of the mask."""

    offsets: str
    mask: str


class Flat:
    """Element i of the iteration is element i of the run."""

    constants = ("BLOCK_SIZE",)
    shape = "[BLOCK_SIZE]"
    counts = ("n_elements",)  # arguments that say how far it goes

    def loop(self, program: str) -> str:
        """Over all blocks that are one program's, when the programs are fewer."""
        return (
            f"for start in range({program} * BLOCK_SIZE, n_elements, "
            "tl.num_programs(0) * BLOCK_SIZE):"
        )

    def index(self, program: str | None) -> list[str]:
        """The lines that say which elements a block has; None: in the loop."""
        start = "start" if program is None else f"{program} * BLOCK_SIZE"
        return [
            f"offsets = {start} + tl.arange(0, BLOCK_SIZE)",
            "mask = offsets < n_elements",
        ]

    def place(self, rate: str) -> Place:
        assert rate == "element", rate
        return Place("offsets", "mask")

    def fold_all(self, name: str, function: str) -> str:
        """A block folded into one element."""
        return f"tl.reduce({name}, 0, {function})"

    def blocks(self, program: Program, elements: int) -> int:
        return -(-program.numel // elements)

    def sizes(self, program: Program, elements: int) -> dict[str, int]:
        """The values of the constants, for blocks of about so many elements."""
        del program
        return {"BLOCK_SIZE": elements}


class Rows:
    """Whole rows, so that folding one needs no other program."""

    constants = ("ROWS", "COLUMNS")
    shape = "[ROWS, COLUMNS]"
    counts = ("n_rows", "n_columns")

    def loop(self, program: str) -> str:
        return f"for start in range({program} * ROWS, n_rows, tl.num_programs(0) * ROWS):"

    def index(self, program: str | None) -> list[str]:
        start = "start" if program is None else f"{program} * ROWS"
        return [
            f"rows = {start} + tl.arange(0, ROWS)[:, None]",
            "columns = tl.arange(0, COLUMNS)[None, :]",
            "row_mask = rows < n_rows",
            "column_mask = columns < n_columns",
            "mask = row_mask & column_mask",
            "offsets = rows * n_columns + columns",
        ]

    def place(self, rate: str) -> Place:
        places = {
            "element": Place("offsets", "mask"),
            "row": Place("rows", "row_mask"),
            "column": Place("columns", "column_mask"),
        }
        return places[rate]

    def fold_all(self, name: str, function: str) -> str:
        return f"tl.reduce(tl.reduce({name}, 1, {function}), 0, {function})"

    def blocks(self, program: Program, elements: int) -> int:
        return -(-(program.numel // program.row) // self.sizes(program, elements)["ROWS"])

    def sizes(self, program: Program, elements: int) -> dict[str, int]:
        columns = 1 << (program.row - 1).bit_length()
        return {"ROWS": max(1, elements // columns), "COLUMNS": columns}


def iteration_of(program: Program) -> Flat | Rows:
    return Rows() if program.row else Flat()
