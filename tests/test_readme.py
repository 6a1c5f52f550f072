# tests/test_readme.py: what the README shows works as it stands there.
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_is_a_python_block():
    assert PYTHON_BLOCKS


@pytest.mark.parametrize("number", range(len(PYTHON_BLOCKS)))
def test_python_block_runs(number, tmp_path):
    # As a program of its own: errors name its lines, and what it leaves undone warns at its exit.
    text = PYTHON_BLOCKS[number]
    named = re.match(r"# (\w+\.py)\n", text)
    script = tmp_path / (named[1] if named else "readme.py")
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    comments = [line.strip().removeprefix("# ") for line in text.splitlines() if "# " in line]
    shown = [without_decimals(line) for line in comments]
    assert all(without_decimals(line) in shown for line in done.stdout.splitlines()), done.stdout


def without_decimals(line: str) -> str:
    """Other processors may round otherwise."""
    return re.sub(r"\d\.\d+", "", line)


def test_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"`?make (\w+)", README))
    assert {"demo", "test"} <= commands
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert commands <= set(phony[1].split())


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
