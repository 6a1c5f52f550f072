"""Configuration: the environment variables, each with its default and its check, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

MODES = ("async", "deferred", "sync")
STACKS = ("off", "user", "full")


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return text

    return parse


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError("expected a positive integer")
    return value


def _eighth_of_memory() -> int:
    """An eighth of the machine's memory, at least 256 MiB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 0
    return max(256 << 20, total // 8)


def _read(name: str, default: T, parse: Callable[[str], T]) -> T:
    text = os.environ.get(name)
    if text is None or text == "":
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class Config:
    """What the environment asks for; read once, at import."""

    mode: str
    num_workers: int
    stacks: str
    max_pending_ops: int
    max_pending_bytes: int
    max_pool_bytes: int
    fusion: str
    logs: frozenset[str]
    full_traceback: bool


def read() -> Config:
    """The configuration that the environment variables ask for.

    Raises:
        ValueError: a variable has a value that is not allowed; the message names both.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Config(
        mode=_read("LAZYENG_MODE", "async", _choice(*MODES)),
        num_workers=_read("LAZYENG_NUM_WORKERS", max(1, (cores or 1) - 1), _positive),
        stacks=_read("LAZYENG_STACKS", "user", _choice(*STACKS)),
        max_pending_ops=_read("LAZYENG_MAX_PENDING_OPS", 1 << 16, _positive),
        max_pending_bytes=_read("LAZYENG_MAX_PENDING_BYTES", _eighth_of_memory(), _positive),
        max_pool_bytes=_read("LAZYENG_MAX_POOL_BYTES", _eighth_of_memory(), _positive),
        fusion=_read("LAZYENG_FUSION", "exact", _choice("exact", "on", "off")),
        logs=_read("LAZYENG_LOGS", frozenset(), lambda text: frozenset(text.split(","))),
        full_traceback=os.environ.get("LAZYENG_TRACEBACK") == "full",
    )
