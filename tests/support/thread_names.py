"""The names of this process's threads, for programs that tests start."""

import os


def _name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as file:
            return file.read()
    except OSError:  # it has ended since it was listed
        return ""


def count_threads(*prefixes: str) -> int:
    """How many threads have a name that begins so; OpenMP's helpers have that of their master."""
    return sum(_name(thread).startswith(prefixes) for thread in os.listdir("/proc/self/task"))
