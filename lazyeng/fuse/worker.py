"""Compiles kernels in a process of its own; run as a script, which imports Triton and not torch.

In: requests (``compiler.Request``), each a line of JSON on stdin. Out: an answer to each, or
``{"error": ...}``, a line on stdout. A process, so that the program's threads are not held up for
the GIL half a second at a time, a crash of the compiler is none of the program, and Triton's own
cache, which trusts what it finds, can be replaced by an empty folder.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

OUTSIDE = dict(os.environ)  # without settings of Triton's


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # (Ctrl-C is for the program)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Triton prints is no result
    folder = sys.argv[1]  # the program removes it, unless that ends before this
    tempfile.tempdir = folder  # (of Triton's own files, too)
    try:
        for line in sys.stdin:
            json.dump(answer(json.loads(line), folder), results)
            results.write("\n")
            results.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def answer(request: dict[str, Any], folder: str) -> dict[str, Any]:
    try:
        return compile_kernel(request, folder)
    except BaseException as error:  # also SystemExit: the parent is to know in any case
        return {"error": f"{type(error).__name__}: {error}"}


def compile_kernel(request: dict[str, Any], folder: str) -> dict[str, Any]:
    set_environment(request["environment"], folder)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = load(request["text"], folder)[request["kernel"]]
    names = kernel.arg_names
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]] for name in request["divisible_by_16"]
    }
    signature = request["signature"] | dict.fromkeys(request["constants"], "constexpr")
    constants = {name: constant(value) for name, value in request["constants"].items()}
    source: Any = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": request["num_warps"], **request["options"]}
    compiled = triton.compile(source, GPUTarget("cuda", request["arch"], 32), options)
    metadata: Any = compiled.metadata
    asm: Any = compiled.asm
    return {
        "name": metadata.name,
        "shared": metadata.shared,
        "num_warps": metadata.num_warps,
        "cubin": base64.b64encode(asm["cubin"]).decode(),
        "ptx": asm["ptx"],
    }


def set_environment(settings: dict[str, str], folder: str) -> None:
    """Triton's settings are those of the request, and none of the request before."""
    os.environ.clear()
    os.environ.update(OUTSIDE)
    os.environ.update(settings)
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "cache")
    # Lines of a file that is gone make two thirds of a cubin, and a fifth of the time.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"


def constant(value: Any) -> Any:
    """A constant of a kernel from what stands for it: "tl.float32" is Triton's type."""
    import triton.language as tl

    if isinstance(value, list | tuple):
        return tuple(constant(element) for element in value)
    if isinstance(value, str) and value.startswith("tl."):
        return getattr(tl, value.removeprefix("tl."))
    return value


def load(text: str, folder: str) -> dict[str, Any]:
    """The names that the source defines. Triton wants a file to read functions from."""
    handle, path = tempfile.mkstemp(".py", dir=folder)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


if __name__ == "__main__":
    main()
