"""What the process may have of the machine: its cores and its memory, container limits included.

Linux alone. A container sees all of the machine's cores and memory, and what it may use of them in
its control groups (https://docs.kernel.org/admin-guide/cgroup-v2.html, and v1 beside it).
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cores() -> int:
    """The cores that the process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *(math.ceil(share) for share in _cpu_quotas())]))


def memory() -> int:
    """The bytes of memory that the process may use; 0 if nobody knows."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        physical = 0
    limits = [*_numbers(_limit_files("memory", "memory.max", "memory.limit_in_bytes"))]
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    if physical > 0:
        limits.append(physical)
    return min(limits, default=0)


def _cpu_quotas() -> Iterator[float]:
    """How many cores' time each of the process's control groups may use, of those with a limit."""
    for file in _limit_files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        words = _words(file)
        if file.name == "cpu.cfs_quota_us":
            words += _words(file.with_name("cpu.cfs_period_us"))
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])


def _limit_files(controller: str, v2: str, v1: str) -> Iterator[Path]:
    """Those of the process's group and of all above it: each of these is a limit.

    In a container the path of the group is often that on the host, which is not seen there: what
    is, is at the root.
    """
    for line in _text(_OWN).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = _ROOT, v2
        elif controller in controllers.split(","):
            root, name = _ROOT / controller, v1
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder / name
            if folder == root:
                break


def _numbers(files: Iterator[Path]) -> Iterator[int]:
    for file in files:
        for word in _words(file):
            if word.isdecimal():  # (not "max")
                yield int(word)


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
