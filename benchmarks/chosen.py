"""Runs the kernels that lazyeng chooses for ops of torch (docs/triton.md), without the engine.

The choice, the table of pieces, and the kernel's text are those of `lazyeng.fuse.chosen`; only the
launch is Triton's own, so that what is measured is the kernel and not the recording of its op. (A
number reaches the kernel as float32 where it does not ask for more.)
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazyeng.fuse import worker
from lazyeng.fuse.chosen.calls import calls_from
from lazyeng.fuse.chosen.kernels import text_in, text_of
from lazyeng.fuse.chosen.launches import KernelLaunch, Operand, Table
from lazyeng.fuse.chosen.table import choose

Tensor = torch.Tensor
# Op, arguments, results: those get no memory, as only another of the calls reads them.
Call = tuple[str, Sequence[Any], Sequence[Tensor]]


def chosen(*calls: Call) -> Callable[[], None]:
    """What runs the calls as one. Raises ValueError if torch's own kernels would run."""
    tensors: list[Tensor] = []
    places: dict[int, int] = {}

    def place(tensor: Tensor) -> int:
        if id(tensor) not in places:
            places[id(tensor)] = len(tensors)
            tensors.append(tensor)
        return places[id(tensor)]

    def described(value: Any) -> Any:
        if isinstance(value, Tensor):
            return place(value)
        if isinstance(value, (list, tuple)):
            if value and not isinstance(value[0], Tensor):
                return ...
            return tuple(map(place, value))
        return ... if isinstance(value, float) else value

    rows = [
        (op, tuple(map(described, arguments)), tuple(map(place, results)))
        for op, arguments, results in calls
    ]
    dead = {id(tensor) for *_, results in calls for tensor in results}
    looks = [
        (t.dtype, t.shape, t.stride(), "dead" if id(t) in dead else "given", t.data_ptr() % 16 == 0)
        for t in tensors
    ]
    launches = choose(calls_from({"tensors": looks, "calls": rows, "tf32": False, "device": 0}))
    if launches is None:
        raise ValueError(f"torch's own kernels run {', '.join(op for op, *_ in calls)}")
    device = tensors[0].device
    scratch = [torch.empty(n, dtype=torch.uint8, device=device) for n in launches.scratch]
    tables = [_rows(table, tensors, calls).to(device) for table in launches.tables]

    def value_of(operand: Operand | None) -> Any:
        if operand is None:
            return None
        match operand.kind:
            case "tensor":
                return tensors[operand.index]
            case "partial":
                return scratch[operand.index]
            case "table":
                return tables[operand.index]
            case "argument":
                return calls[int(operand.number)][1][operand.index]
            case _:
                return operand.number

    ready = [_ready(launch, value_of) for launch in launches.kernels]

    def run() -> None:
        for launch in ready:
            launch()

    return run


def _ready(launch: KernelLaunch, value_of: Callable[[Operand | None], Any]) -> Callable[[], object]:
    text = launch.text
    source = text_in(text, launch.kernel) if text else text_of(launch.file, launch.kernel)
    values = dict(zip(source.operands, map(value_of, launch.operands), strict=True))
    constants = {name: worker.constant(value) for name, value in launch.constants.items()}
    kernel = worker.load(source.text, _folder())[launch.kernel]
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": not text, **launch.options}
    return functools.partial(kernel[launch.grid], **values, **constants, **options)


def _rows(table: Table, tensors: Sequence[Tensor], calls: Sequence[Call]) -> Tensor:
    """The table in memory: addresses, numbers as float64, and how many elements a piece has."""
    sizes = [tensors[i].numel() for i in next(c.places for c in table.columns if c.places)]
    rows = []
    for i, size in enumerate(sizes):
        for start in range(0, size, table.piece):
            row = []
            for column in table.columns:
                if not column.places:
                    number = torch.tensor(calls[column.call][1][column.index][i])
                    row.append(int(number.double().view(torch.int64)))
                elif column.places[i] < 0:
                    row.append(0)
                else:
                    tensor = tensors[column.places[i]]
                    at = start * tensor.element_size() if column.moves else 0
                    row.append(tensor.data_ptr() + at)
            rows.append([*row, min(size - start, table.piece)])
    return torch.tensor(rows, dtype=torch.int64)


@functools.cache
def _folder() -> str:
    """Triton reads functions from files, as long as it compiles them."""
    folder = tempfile.TemporaryDirectory(prefix="lazyeng-benchmark-")
    atexit.register(folder.cleanup)
    return folder.name
