# tools/error_texts.py: writes the outputs in docs/errors/. Usage: error_texts.py [MXNET_PYTHON]
"""Runs the programs of docs/errors/ and puts what they print below the marks of its README.md.

A mark is `<!-- index.py: eager -->` before a fenced block; the last block of Python before the
first mark is the program itself. It and lazyeng's texts are checked by tests/test_errors_texts.py;
the other texts are kept as they were printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors" / "README.md"
PROGRAMS = ("index", "cholesky", "labels", "custom_op", "backward")
_LONGEST = 30  # lines of torch.compile's text

# In place of the package: the same program, eagerly.
_EAGER = """
import contextlib
lazy = contextlib.nullcontext
def wrap(x): return x
"""


def output(program: str, how: str, mxnet_python: str = "") -> str:
    """What the program prints: `how` is "lazyeng", "eager", "torch.compile" or "MXNet"."""
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        name = f"mxnet_{program}.py" if how == "MXNet" else f"{program}.py"
        source = (ROOT / "docs" / "errors" / name).read_text()
        if how == "torch.compile":
            source = source.replace("def step(", "@torch.compile\ndef step(")
        if how != "lazyeng":
            (Path(folder) / "lazyeng.py").write_text(_EAGER)
            environment["PYTHONPATH"] = folder
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        (Path(folder) / f"{program}.py").write_text(source)
        done = subprocess.run(
            [mxnet_python if how == "MXNet" else sys.executable, f"{folder}/{program}.py"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    return shortened((done.stdout + done.stderr).replace(f"{folder}/", ""))


def shortened(text: str) -> str:
    """Without this machine's paths, and without the middle of what is very long."""
    text = re.sub(r'"/[^"]*/(?:site-packages|lib/python[\d.]*)/', '".../', text)
    text = re.sub(r"/[^\s\"]*/(torch|pytorch)/", r".../\1/", text)
    text = re.sub(r"/tmp/torchinductor_[^/]*/", ".../torchinductor/", text)
    lines = [line if len(line) <= 160 else line[:150] + " […]" for line in text.strip().split("\n")]
    if len(lines) > _LONGEST:
        left_out = len(lines) - _LONGEST
        lines[8 : 8 + left_out] = [f"    [… {left_out} lines …]"]
    return "\n".join(lines)


def parts(page: str, program: str) -> tuple[str, str, str]:
    """The page up to the program that it shows, the program, and the rest."""
    before, mark, rest = page.partition(f"<!-- {program}.py: lazyeng -->\n")
    start = before.rindex("```python\n") + len("```python\n")
    end = before.index("```\n", start)
    return before[:start], before[start:end], before[end:] + mark + rest


def with_source(page: str, program: str) -> str:
    """The page with the program as its file is."""
    before, _, rest = parts(page, program)
    return before + (PAGE.parent / f"{program}.py").read_text() + rest


def with_block(page: str, program: str, how: str, text: str) -> str:
    """The page with another text below the mark."""
    mark = f"<!-- {program}.py: {how} -->\n"
    before, found, rest = page.partition(mark)
    assert found, f"docs/errors/README.md has no mark {mark.strip()}"
    _, _, after = rest.partition("```text\n")[2].partition("\n```\n")
    return f"{before}{mark}```text\n{text}\n```\n{after}"


def block(page: str, program: str, how: str) -> str:
    """The text below the mark."""
    rest = page.partition(f"<!-- {program}.py: {how} -->\n```text\n")[2]
    return rest.partition("\n```\n")[0]


def main(mxnet_python: str) -> None:
    page = PAGE.read_text()
    for program in PROGRAMS:
        page = with_source(page, program)
        for how in ("lazyeng", "eager", "torch.compile", *(["MXNet"] if mxnet_python else [])):
            page = with_block(page, program, how, output(program, how, mxnet_python))
    PAGE.write_text(page)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
