"""Brings the simulated device up, and torch, for the programs of a process: run with LIBRARY.

What most programs come to import, and that takes seconds, is imported here once for all of them:
torch._dynamo (torch's meta functions in Python ask for it) and Triton.
"""

import contextlib
import ctypes
import importlib.util
import os
import types
from pathlib import Path

spec = importlib.util.find_spec("torch")
assert spec is not None and spec.submodule_search_locations is not None
torch_lib = Path(spec.submodule_search_locations[0]) / "lib"
# Before torch's Python part, whose start looks for CUDA once and for all.
for library in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(torch_lib / library))
ctypes.CDLL(LIBRARY)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

os.environ["TRITON_INTERPRET"] = "1"  # (as simulated_cuda.run has it: Triton asks when imported)

import torch  # noqa: E402
import torch._dynamo  # noqa: E402

with contextlib.suppress(ImportError):
    import triton  # noqa: F401

torch.cuda._lazy_init = lambda: None
torch.cuda.is_available = lambda: True


class Graph:
    """In place of ``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = 0

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        # (In another mode, what other threads do would make it invalid.)
        assert capture_error_mode == "thread_local", capture_error_mode
        self._graph = torch.ops.simulated_cuda.begin_graph()

    def capture_end(self) -> None:
        torch.ops.simulated_cuda.end_graph(self._graph)

    def replay(self) -> None:
        torch.ops.simulated_cuda.launch_graph(self._graph)

    def raw_cuda_graph_exec(self) -> int:
        return self._graph

    def reset(self) -> None:
        torch.ops.simulated_cuda.drop_graph(self._graph)

    __del__ = reset


torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
    multi_processor_count=2, max_threads_per_multi_processor=2048
)  # (as random.h has it)
torch.cuda.CUDAGraph = Graph
torch.cuda.graph_pool_handle = lambda: (0, 1)
