"""A script: brings the simulated device up, then runs a program. `launch.py LIBRARY PROGRAM`"""

import ctypes
import importlib.util
import sys
from pathlib import Path

spec = importlib.util.find_spec("torch")
assert spec is not None and spec.submodule_search_locations is not None
torch_lib = Path(spec.submodule_search_locations[0]) / "lib"
# Before torch's Python part, whose start looks for CUDA once and for all.
for library in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(torch_lib / library))
ctypes.CDLL(sys.argv[1])

import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None
torch.cuda.is_available = lambda: True

sys.path[0] = str(Path(__file__).resolve().parents[2])
import lazyeng  # noqa: E402, F401 (the programs expect it to be there)
from lazyeng.fuse import background  # noqa: E402

start = background.start
background.start = lambda: None  # a cubin would not run here; kernels.install() puts it back
background.really_start = start  # pyright: ignore[reportAttributeAccessIssue]

exec(compile(sys.argv[2], "<program>", "exec"), {"__name__": "__main__"})
