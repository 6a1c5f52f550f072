# tools/documented_programs.py: writes the programs of the documentation as files, for pyright.
"""Usage: python tools/documented_programs.py FOLDER

README.md and docs/*.md become one file each: their Python blocks, which the tests run in this
order, at the lines that they have in the page. So line 7 of docs_lazy_md.py is line 7 of
docs/lazy.md. Blocks that are programs of their own become files of their own.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python(?: (\w+))?\n(.*?)^```$", re.M | re.S)
KERNEL_FILE = "scale.py"  # docs/kernels.md imports its kernel from there
LOOPS_RUN = (
    "# pyright: reportPossiblyUnboundVariable=false"  # (the first line of a page is no code)
)
NOT_COMPLETE = {"setup"}  # what tests/test_sync_points.py puts before the calls of a table


def programs(page: Path) -> Iterator[tuple[str, str]]:
    """(file name, source) of each program of a page."""
    text = page.read_text(encoding="utf-8").replace("lazyeng.triton_kernels", "triton_kernels")
    name = re.sub(r"\W", "_", str(page.relative_to(ROOT)))
    whole = ""
    for block in BLOCK.finditer(text):
        mark, source = block.groups()
        line = text[: block.start(2)].count("\n")
        if mark is None:
            whole += "\n" * (line - whole.count("\n")) + source
        elif mark == "kernel":
            yield KERNEL_FILE, "\n" * line + source
        elif mark not in NOT_COMPLETE:
            yield f"{name}_{line}.py", "\n" * line + source
    if whole:
        yield f"{name}.py", whole


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for name, source in programs(page):
            (folder / name).write_text(LOOPS_RUN + source, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
