"""A Triton kernel that fails: run on the CPU by Triton's interpreter, in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, traceback
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton
import triton.language as tl
import lazyeng
from lazyeng import LazyError, lazy, wrap

@triton.jit
def wrong_shapes_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    a = tl.arange(0, BLOCK)
    b = tl.arange(0, 2 * BLOCK)
    tl.store(out_ptr + a, tl.load(x_ptr + a) + b)

@torch.library.custom_op("lazyeng_triton::wrong", mutates_args=())
def wrong(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrong_shapes_kernel[(1,)](x, out, BLOCK=4)
    return out

wrong.register_fake(torch.empty_like)

def program(side):
    x = side(torch.ones(4)) + 1
    return wrong(x)  # LINE

for mode in (None, "sync", "async", "deferred"):
    try:
        if mode is None:
            program(lambda x: x)
        else:
            with lazy(mode):
                program(wrap).tolist()
    except Exception as error:
        shown = error.__cause__ if isinstance(error, LazyError) else error
        frames = traceback.extract_tb(shown.__traceback__)
        (line,) = [f.lineno for f in frames if f.name == "program"]
        print(type(error).__name__, line, repr(str(error)))
"""


def test_triton_error_is_the_same_in_all_modes(tmp_path):
    pytest.importorskip("triton", reason="Triton is optional: it is in the extra `gpu`")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and len(set(lines)) == 1, done.stdout + done.stderr
