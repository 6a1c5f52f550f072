"""All measurements: `python -m benchmarks` (`make bench`), some of them: `... steps engine`.

First the table of whole programs: eager's milliseconds a step; eager's time by lazy's beside what
is wanted, the same with a read in every step, and torch.compile's; the first step; memory. Then
what stands behind it, table by table. Each comes from a script of its own, which has more options
(`python -m benchmarks.steps --help`), in a process of its own; one that fails does not keep the
others from running.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

TABLES = {
    "steps": ("steps of whole programs", ["--only", "whole", "--compile"]),
    "small": ("steps of small programs", ["--only", "small"]),
    "medium": ("operators of some size, read at once", ["--only", "medium"]),
    "requests": ("requests with pauses between them", []),
    "record": ("recording an op", []),
    "engine": ("running a recorded op", []),
    "stacks": ("creation stacks", []),
    "costs": ("ops on one core and on all", []),
    "windows": ("windows", []),
    "replays": ("windows that a step plan replays", []),
    "fusion": ("fused groups", []),
    "data": ("loading ahead", []),
    "kernels": ("Triton kernels", []),
    "gpu": ("steps, chains, decoding and copies on a GPU", []),
}
SCRIPTS = {"small": "steps", "medium": "steps"}


def run(table: str) -> bool:
    title, options = TABLES[table]
    print(f"\n== {title} ({table})", flush=True)
    start = time.monotonic()
    script = f"benchmarks.{SCRIPTS.get(table, table)}"
    command = [sys.executable, "-m", script, *options]
    done = subprocess.run(command, check=False).returncode == 0
    print(f"({time.monotonic() - start:.0f} s{'' if done else ', FAILED'})", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    chosen = parser.parse_args().tables
    if unknown := sorted(set(chosen) - set(TABLES)):
        parser.error(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    done = [run(table) for table in chosen or TABLES]
    sys.exit(not all(done))


if __name__ == "__main__":
    main()
