"""Brings the simulated device up, and torch, for the programs of a process: run with LIBRARY."""

import ctypes
import importlib.util
from pathlib import Path

spec = importlib.util.find_spec("torch")
assert spec is not None and spec.submodule_search_locations is not None
torch_lib = Path(spec.submodule_search_locations[0]) / "lib"
# Before torch's Python part, whose start looks for CUDA once and for all.
for library in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(torch_lib / library))
ctypes.CDLL(LIBRARY)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None
torch.cuda.is_available = lambda: True
