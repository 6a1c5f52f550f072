"""Brings the simulated device up, and torch, for the programs of a process: run with LIBRARY.

What most programs come to import, and that takes seconds, is imported here once for all of them:
torch._dynamo (torch's meta functions in Python ask for it) and Triton.
"""

import contextlib
import ctypes
import importlib.util
import os
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
