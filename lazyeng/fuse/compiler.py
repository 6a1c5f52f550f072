"""From source to cubin: requests, their keys, and what the process that compiles answers."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from lazyeng.fuse.compiler_process import CompilerProcess, ProcessError, compiler_settings
from lazyeng.fuse.launches import Launch
from lazyeng.fuse.source import Source

FORMAT = 4  # of what is kept; another number is another key


class CompileError(Exception):
    """The compiler refused a source, crashed, or is not there; the message says what it said."""


class NoAnswerError(CompileError):
    """The compiler's process did not start, or was ended: another time it may answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One kernel to compile. ``divisible_by_16``: arguments that are, of pointers their address;
    loads and stores can be wide then. ``constants``: also names of Triton's types ("tl.float32").
    ``options`` of Triton's compiler."""

    text: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible_by_16: tuple[str, ...]
    arch: int
    num_warps: int
    options: dict[str, bool | int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=compiler_settings)

    def key(self) -> str:
        """Of all that decides the cubin, also the version of Triton and what is set for it."""
        content = [FORMAT, triton_version(), asdict(self)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel for ``cuModuleLoadData``: its function's name, bytes of shared memory, warps."""

    name: str
    shared: int
    num_warps: int
    cubin: bytes

    def to_bytes(self) -> bytes:
        head = {"name": self.name, "shared": self.shared, "num_warps": self.num_warps}
        return json.dumps(head).encode() + b"\n" + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes) -> Compiled:
        head, _, cubin = data.partition(b"\n")
        return cls(**json.loads(head), cubin=cubin)


@cache
def triton_version() -> str | None:
    """The version that is installed; None if none is."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def request_for(
    source: Source, launch: Launch, arch: int, divisible_by_16: Iterable[str] = ()
) -> Request:
    """A request for one of the kernels of a source; ``arch`` is 80, 90, ..."""
    signature = {argument.name: argument.type for argument in launch.kernel.arguments}
    # Products are not merged into sums: each op rounds, as in eager.
    return Request(source.text, launch.kernel.name, signature, launch.constants,
                   tuple(sorted(divisible_by_16)), arch, launch.num_warps,
                   {"enable_fp_fusion": False})  # fmt: skip


def compile_kernels(requests: Sequence[Request]) -> list[Compiled]:
    """Compiles in another process; waits for it, without the GIL.

    Raises:
        CompileError: what is wrong with the first request that failed.
    """
    return [compiled(answer) for answer in answers(requests)]


class _Own(threading.local):
    """The process of a thread."""

    def __init__(self) -> None:
        self.process = CompilerProcess()


_own = _Own()


def answers(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """What the worker says to each request.

    Raises:
        NoAnswerError: it did not answer one.
    """
    try:
        return [_own.process.answer(asdict(request)) for request in requests]
    except ProcessError as error:
        raise NoAnswerError(str(error)) from error


def end_compiler() -> None:
    """Ends the calling thread's process."""
    _own.process.end()


def compiled(answer: dict[str, Any]) -> Compiled:
    if error := answer.get("error"):
        raise CompileError(error)
    cubin = base64.b64decode(answer["cubin"])
    return Compiled(answer["name"], answer["shared"], answer["num_warps"], cubin)
