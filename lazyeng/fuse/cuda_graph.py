"""Captures of CUDA graphs, by torch's own class: called by csrc/fuse/graphs/cuda_graph.cpp."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

# torch's allocator may still ask a graph whose capture did not end well: it has to live.
_failed: list[Any] = []


@contextlib.contextmanager
def _another_state(device: int) -> Iterator[None]:
    """A capture takes the state that the default generator has when it begins: until it ends well
    nobody can draw from that. No graph here draws, so it gets a copy."""
    if device >= len(torch.cuda.default_generators):
        yield
        return
    generator = torch.cuda.default_generators[device]
    before = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(before)


class Graph:
    """What the calling thread launches on its current stream until `end` becomes a graph."""

    __slots__ = ("_device", "_graph", "_pool")

    def __init__(self, device: int) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        try:
            with _another_state(device):
                # (What other threads do meanwhile, allocations for one, must not end the capture.)
                self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        except BaseException:
            self._clean_up()
            raise

    def end(self) -> int:
        """Ends the capture; returns the CUgraphExec of the driver, which lives as long as this.

        Raises:
            torch.AcceleratorError: something was not permitted; there is no graph.
        """
        try:
            self._graph.capture_end()
        except BaseException:
            self._clean_up()
            raise
        return self._graph.raw_cuda_graph_exec()

    def abandon(self) -> None:
        """Ends a capture that is of no use."""
        with contextlib.suppress(Exception):
            self.end()

    def _clean_up(self) -> None:
        """Ends what torch leaves open if a capture fails: the pool's claim on allocations."""
        _failed.append(self._graph)
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(self._device, self._pool)
            torch._C._cuda_releasePool(self._device, self._pool)
