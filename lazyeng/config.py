"""Configuration: the environment variables, each with its default and its check, in one place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lazyeng import _machine

T = TypeVar("T")

MODES = ("async", "deferred", "sync")
STACKS = ("off", "user", "full")


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return text

    return parse


def _names(*allowed: str) -> Callable[[str], frozenset[str]]:
    """Several, separated by commas; empty ones do not count."""
    one = _choice(*allowed)

    def parse(text: str) -> frozenset[str]:
        names = (name.strip() for name in text.split(","))
        return frozenset(one(name) for name in names if name)

    return parse


def _from(least: int, expected: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ValueError(f"expected {expected}")
        if value >= 1 << 63:
            raise ValueError("expected less than 2**63")
        return value

    return parse


_positive = _from(1, "a positive integer")


MAX_WORKERS = 1024  # threads: more than help anybody. (Making 40,000 took over 100 s.)


def _workers(text: str) -> int:
    value = _positive(text)
    if value > MAX_WORKERS:
        raise ValueError(f"expected at most {MAX_WORKERS}")
    return value


def _spare_cores() -> int:
    """The cores that the process may use, less the one of the thread that records; at least 1."""
    return min(max(1, _machine.cores() - 1), MAX_WORKERS)


def _eighth_of_memory() -> int:
    """An eighth of the memory that the process may use, at least 256 MiB."""
    return max(256 << 20, _machine.memory() // 8)


def _user_cache() -> Path:
    """Where programs keep what they can make again (the XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "lazyeng"
    try:
        return Path.home() / ".cache" / "lazyeng"
    except RuntimeError:  # a user whom the system does not know, as in containers
        return Path(tempfile.gettempdir()) / f"lazyeng-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Config:
    """What the environment asks for; read at import and when lazyeng is first used."""

    mode: str
    num_workers: int
    stacks: str
    max_pending_ops: int
    max_pending_bytes: int
    max_pool_bytes: int
    fusion: str
    cuda_graphs: bool
    cache_dir: Path
    logs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """An environment variable; `values` and `default_is` are its row in docs/api.md."""

    name: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    values: str
    default_is: str

    def read(self) -> T:
        """What the environment asks for, without blanks around; empty is as if it were not set.

        Raises:
            ValueError: the value is not allowed; the message names it and the variable.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}, got {text!r}") from None


_EIGHTH = (
    "an eighth of the memory that the process may use (its container, `ulimit -v`), at least "
    "256 MiB"
)
MODE = Variable(
    "LAZYENG_MODE", _choice(*MODES), lambda: "async",
    "`async`, `deferred`, `sync`: the mode outside any `lazy()` block", "`async`",
)  # fmt: skip
NUM_WORKERS = Variable(
    "LAZYENG_NUM_WORKERS", _workers, _spare_cores,
    f"threads for CPU ops, 1 to {MAX_WORKERS}; later by `set_num_workers(n)`",
    "the cores that the process, or its container, may use, less one for the thread that records; "
    "at least 1",
)  # fmt: skip
STACK_CAPTURE = Variable(
    "LAZYENG_STACKS", _choice(*STACKS), lambda: "user",
    "`off`: no creation stacks; `user`: captured, frames of torch and lazyeng hidden; "
    "`full`: internal frames shown in creation stacks", "`user`",
)  # fmt: skip
TRACEBACK = Variable(
    "LAZYENG_TRACEBACK", lambda text: _choice("user", "full")(text) == "full", lambda: False,
    "`user`, `full`: hide or show internal frames in all tracebacks (asked at each failure, so it "
    "may be set late)", "`user`",
)  # fmt: skip
FUSION = Variable(
    "LAZYENG_FUSION", _choice("auto", "exact", "on", "off"), lambda: "auto",
    "what is fused (runs in groups): `exact`: what gives eager's bits then; `on`: also the rest, "
    "within the tolerance of `assert_close`; `auto`: `exact` on the CPU, `on` on GPUs; `off`: "
    "nothing",
    "`auto`",
)  # fmt: skip
MAX_PENDING_OPS = Variable(
    "LAZYENG_MAX_PENDING_OPS", _positive, lambda: 1 << 16,
    "bound of run-ahead in ops; beyond it recording waits", "65536",
)  # fmt: skip
MAX_PENDING_BYTES = Variable(
    "LAZYENG_MAX_PENDING_BYTES", _positive, _eighth_of_memory,
    "bound of run-ahead in bytes of results and of large plain inputs; at most an eighth of the "
    "memory of each GPU in use",
    _EIGHTH,
)  # fmt: skip
MAX_POOL_BYTES = Variable(
    "LAZYENG_MAX_POOL_BYTES", _from(0, "an integer from 0 on"), _eighth_of_memory,
    "bound of memory that is kept for reuse, in bytes; `0`: none is", _EIGHTH,
)  # fmt: skip
CUDA_GRAPHS = Variable(
    "LAZYENG_CUDA_GRAPHS", lambda text: _choice("on", "off")(text) == "on", lambda: False,
    "`on`: what a loop launches on a GPU in each step becomes a CUDA graph "
    "(docs/gpu.md: on the GPU that has run it, not all loops were faster with it)", "`off`",
)  # fmt: skip
CACHE_DIR = Variable(
    "LAZYENG_CACHE_DIR", Path, _user_cache,
    "the folder of compiled kernels (docs/triton.md)",
    "`lazyeng` in `$XDG_CACHE_HOME` or `~/.cache`; of users without a home "
    "directory `lazyeng-UID` in the folder for temporary files",
)  # fmt: skip
LOGS = Variable(
    "LAZYENG_LOGS", _names("fusion"), frozenset[str],
    "names, separated by commas; `fusion`: each group, on stderr, when it has "
    "run: members, bytes not written, kernel", "none",
)  # fmt: skip

VARIABLES: tuple[Variable[Any], ...] = (
    MODE, NUM_WORKERS, STACK_CAPTURE, TRACEBACK, FUSION, MAX_PENDING_OPS, MAX_PENDING_BYTES,
    MAX_POOL_BYTES, CUDA_GRAPHS, CACHE_DIR, LOGS,
)  # fmt: skip


def read() -> Config:
    """The configuration that the environment variables ask for.

    Raises:
        ValueError: a variable has a value that is not allowed; the message names both.
    """
    TRACEBACK.read()  # (asked again at each failure)
    return Config(
        mode=MODE.read(),
        num_workers=NUM_WORKERS.read(),
        stacks=STACK_CAPTURE.read(),
        max_pending_ops=MAX_PENDING_OPS.read(),
        max_pending_bytes=MAX_PENDING_BYTES.read(),
        max_pool_bytes=MAX_POOL_BYTES.read(),
        fusion=FUSION.read(),
        cuda_graphs=CUDA_GRAPHS.read(),
        cache_dir=CACHE_DIR.read(),
        logs=LOGS.read(),
    )
