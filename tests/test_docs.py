"""The examples of the guides in docs/, and the programs in examples/ that are about data."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page, count", [("data", 5), ("profiling", 4)])
def test_examples_of_a_guide(page, count):
    """One after the other, as a reader would type them."""
    text = (ROOT / f"docs/{page}.md").read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
    assert len(blocks) == count
    namespace = {}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], f"docs/{page}.md", "exec"), namespace)


def output(name, *arguments):
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_csv_with_too_few_labels(workers):
    """The case of MXNet's tutorial: all batches before the bad one, then its error."""
    batches, _, error = output("csv_labels.py", "--workers", workers).partition("Traceback")
    assert re.findall(r"^batch (\d+): loss", batches, re.M) == ["0", "1", "2", "3", "4"]
    for expected in (
        "MissingLabelError: labels.csv has no label for row 43\n",
        "in __getitem__\n    raise MissingLabelError(self.labels, index)\n",
        "in train\n    for images, labels in loader:\n",
        "lazyeng: DataLoader(batch 5), created at csv_labels.py:",
        "(a LazyError: True)\n",
        "with all labels: 8 batches\n",
    ):
        assert expected in error


def test_losses_read_one_step_late_are_the_same():
    assert "the same 30 losses: True" in output("loss_buffer.py", "--steps", "30")
