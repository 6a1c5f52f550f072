"""Kernels of groups on the simulated device: in place of a compiler and of the GPU's cores."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from triton.runtime import interpreter

from lazyeng import _C
from lazyeng.fuse import background, worker
from lazyeng.fuse.compiler import Compiled, Request
from tests.fuse import interpreted

POINTERS = {
    "*i1": torch.bool, "*u8": torch.uint8, "*i8": torch.int8, "*i16": torch.int16,
    "*i32": torch.int32, "*i64": torch.int64, "*fp16": torch.float16, "*bf16": torch.bfloat16,
    "*fp32": torch.float32, "*fp64": torch.float64,
}  # fmt: skip
NUMBERS = {
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float, "fp64": ctypes.c_double,
}  # fmt: skip

told = True  # which kernels ran (tests/real_cuda.py does not know)
ran: list[str] = []  # the source of each kernel that has run
names: list[str] = []  # its name
compiled: list[Request] = []
_failing = False
_interpreter_lock = threading.Lock()  # (Triton's has one grid at a time)


def compile_source(requests: Sequence[Request]) -> list[Compiled]:
    """In place of ``compiler.compile_kernels``: what driver.cpp takes for a cubin."""
    compiled.extend(requests)
    return [
        Compiled(
            request.kernel, 0, request.num_warps,
            b"\x7fELF" + f"{len(request.signature)}\n{json.dumps(asdict(request))}\0".encode(),
        )
        for request in requests
    ]  # fmt: skip


@functools.cache
def _load(text: str) -> dict:
    return interpreted.load(text)


def _argument(type: str, bits: int):
    if type in POINTERS:
        memory = (ctypes.c_uint8 * 8).from_address(bits)
        return torch.frombuffer(memory, dtype=torch.uint8).view(POINTERS[type])
    return NUMBERS[type].from_buffer_copy(bits.to_bytes(8, "little")).value


def fail_next() -> None:
    """From now on kernels fail, as if they had written where nothing is."""
    global _failing
    _failing = True


def _run(source: bytes, name: bytes, grid, arguments) -> int:
    if _failing:
        return 1
    try:
        request = json.loads(source)
        kernel = _load(request["text"])[name.decode()]
        signature = request["signature"].items()
        values = {n: _argument(type, arguments[i]) for i, (n, type) in enumerate(signature)}
        constants = {n: worker.constant(value) for n, value in request["constants"].items()}
        with _interpreter_lock:
            interpreter.interpreter_builder.options = replace(
                interpreter.interpreter_builder.options,
                debug=bool(request["options"].get("debug")),
            )
            kernel[tuple(grid[:3])](**values, **constants)
        ran.append(request["text"])
        names.append(name.decode())
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


_callback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_uint64),
)(_run)


def install(compile: Callable[[Sequence[Request]], list[Compiled]] = compile_source) -> None:
    """From now on groups get kernels, those that ``compile`` makes."""
    ctypes.CDLL(os.environ["SIMULATED_CUDA"]).simulated_cuda_set_interpreter(_callback)
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    cache = background.DiskCache(Path(folder.name) / "kernels")
    maker = functools.partial(background.KernelMaker, cache, compile)
    background.KernelMaker = maker  # pyright: ignore[reportAttributeAccessIssue]
    background.start = background.really_start  # pyright: ignore[reportAttributeAccessIssue]


def wait(seconds: float = 30) -> None:
    """Until every request is answered."""
    until = time.monotonic() + seconds
    while _C.pending_kernel_requests():
        assert time.monotonic() < until, "the compiler's thread does not answer"
        time.sleep(0.001)
