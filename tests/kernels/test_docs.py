"""The examples of docs/kernels.md."""

import re
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_examples_of_the_page(device):
    """One after the other, as a reader would type them; the kernel is a file, as Triton needs."""
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python( kernel)?\n(.*?)^```$", text, re.M | re.S))
    assert len(blocks) == 6
    namespace = {}
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        try:
            for block in blocks:
                if block[1]:
                    (Path(folder) / "scale.py").write_text(block[2])
                    continue
                line = text[: block.start(2)].count("\n")
                exec(compile("\n" * line + block[2], str(PAGE), "exec"), namespace)
        finally:
            sys.path.remove(folder)
            sys.modules.pop("scale", None)
    assert namespace["device"] == device


def test_table_names_each_kernel_file():
    named = set(re.findall(r"^\| `(\w+\.py)`", PAGE.read_text(), re.M))
    assert named == {path.name for path in (PAGE.parents[1] / "triton_kernels").glob("[a-z]*.py")}
