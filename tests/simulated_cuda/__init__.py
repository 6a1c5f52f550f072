"""Programs on a device "cuda" that is made of host threads, for machines without a GPU.

The backend (backend.cpp) registers itself for the whole process and before torch looks for CUDA, so
each program has a process of its own (tests/support/fresh.py). It does not say how fast anything
is, nor that a real GPU agrees; it says that launches, copies, reuse of memory and failures are
ordered as CUDA demands.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import get_cxx_compiler, include_paths

from tests.support import fresh

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent
_LIBRARIES = Path(torch.__file__).parent / "lib"

#: torch's own backend for CUDA is there: ours cannot take its place.
unavailable = torch.version.cuda is not None or torch.version.hip is not None


def build() -> Path:
    """The compiled backend; compiles it if its source, or torch, is another than last time."""
    sources = [_HERE / "backend.cpp", _HERE / "driver.cpp"]
    # (Whoever opens CUDA's driver by name finds a library that is there under that name.)
    flags = ["-std=c++20", "-O1", "-Wall", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1",
             *_definitions()]  # fmt: skip
    texts = [source.read_text() for source in [*sources, *sorted(_HERE.glob("*.h"))]]
    key = hashlib.sha256(repr((texts, flags, torch.__version__)).encode()).hexdigest()
    target = _ROOT / "build" / f"simulated_cuda-{key[:16]}.so"
    target.parent.mkdir(exist_ok=True)
    with open(target.with_suffix(".lock"), "w") as lock:  # several test processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            includes = [f"-isystem{path}" for path in include_paths()]
            libraries = [f"-L{_LIBRARIES}", "-lc10", "-ltorch_cpu"]
            made = target.with_suffix(".new")
            command = [
                get_cxx_compiler(),
                *flags,
                *includes,
                *map(str, sources),
                *libraries,
                "-o",
                made,
            ]
            subprocess.run(command, check=True)
            made.rename(target)
    return target


def _definitions() -> list[str]:
    return [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


#: The programs expect lazyeng to be there. A cubin would not run here; kernels.install() puts the
#: start of the compiler back.
_HEAD = """
import lazyeng
from lazyeng.fuse import background
background.really_start, background.start = background.start, lambda: None
"""


def run(
    program: str, *, seconds: float = 150, with_its_end: bool = False, **environment: str
) -> str:
    """Runs the program in a new process that has the device; returns what it printed. Kernels of
    groups run in Triton's interpreter once it calls ``kernels.install()``. `with_its_end`: the
    interpreter comes to its end too, which takes some seconds more.

    Raises:
        AssertionError: its exit status is not 0; the message has all of its output.
    """
    library = str(build())
    file, given = str(_HERE / "device.py"), {"LIBRARY": library}
    begin = f"import runpy; runpy.run_path({file!r}, {given!r})"
    mode = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TRITON_INTERPRET": "1", "SIMULATED_CUDA": library,
    } | environment  # fmt: skip
    if with_its_end:
        result = subprocess.run(
            [sys.executable, "-c", f"{begin}\n{_HEAD}\n{program}"], cwd=_ROOT,
            env=os.environ | mode, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
    else:
        result = fresh.run(f"{_HEAD}\n{program}", env=mode, timeout=seconds, begin=begin)
    assert result.returncode == 0, (
        f"exit status {result.returncode}\n{result.stdout}{result.stderr}"
    )
    return result.stdout + result.stderr
