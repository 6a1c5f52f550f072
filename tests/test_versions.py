"""tools/versions.sh, with a stand-in for Python: a build and all tests would take half an hour."""

import os
import subprocess
from pathlib import Path

import pytest

from lazyeng import _check_torch

ROOT = Path(__file__).parents[1]

# Makes "environments" of itself, writes down how it is called, and "runs tests".
PYTHON = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
  "-m venv --clear "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  *"torch==2.12."*) echo "no such torch"; exit 1 ;;
  "-m pytest"*"tests/good"*) echo "3450 passed, 12 skipped, 651 warnings in 812.34s (0:13:32)" ;;
  "-m pytest"*) echo "3 failed, 3447 passed, 2 warnings, 1 error in 8.1s"; exit 1 ;;
  "-c "*) echo "Python 9.8.7, torch 2.13.0" ;;
esac
"""


@pytest.fixture
def versions(tmp_path):
    """Runs the script for these pairs of a Python 9.8; its lines, status and calls of Python."""
    if not (ROOT / ".git").exists():
        pytest.skip("the script copies what git lists")
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    (programs / "python9.8").write_text(PYTHON)
    (programs / "python9.8").chmod(0o755)

    def run(*pairs, tests):
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", ROOT / "tools" / "versions.sh", "-d", tmp_path / "out", *pairs],
            env=os.environ | {"PATH": path, "PYTEST_ARGS": tests, "CALLS": str(calls)},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.stdout.splitlines(), done.returncode, calls.read_text().splitlines()

    return run


def test_a_pair_is_installed_built_and_tested(versions, tmp_path):
    lines, status, calls = versions("9.8/2.13.0", tests="-n 3 tests/good")
    assert status == 0
    (line,) = lines
    assert line.startswith("Python 9.8.7, torch 2.13.0: 3450 passed, 0 failed, 12 skipped (")
    place = tmp_path / "out" / "python9.8-torch-2.13.0"
    assert (place / "tree" / "csrc" / "torch_headers.h").exists()
    assert not (place / "tree" / "build").exists()
    assert calls[1] == "-m pip install --quiet torch==2.13.0"
    assert calls[4:] == [
        "-m pip install --no-build-isolation --no-deps --editable .",
        calls[5],  # -c ...: which versions they are
        "print(f\"Python {p.python_version()}, torch {torch.__version__}\")",
        "-m pytest -q -n 3 tests/good",
    ]  # fmt: skip


def test_what_fails_is_told_and_the_others_go_on(versions, tmp_path):
    python = tmp_path / "bin" / "python9.8"
    lines, status, calls = versions("9.8/2.12", f"{python}/newest", tests="tests/bad")
    assert status == 1
    assert lines[0].startswith("Python 9.8, torch 2.12: failed at torch (")
    assert "torch 2.13.0: 3447 passed, 4 failed, 0 skipped (" in lines[1]
    assert len(lines) == 2
    assert "-m pip install --quiet torch==2.12.*" in calls
    assert f"-m pip install --quiet {_check_torch.REQUIREMENT}" in calls


@pytest.mark.parametrize("word", ["3.12", "3.12/", "/2.13", "-x"])
def test_other_words_are_refused(versions, word):
    script = ["sh", ROOT / "tools" / "versions.sh", word]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "versions.sh" in done.stderr and not done.stdout
