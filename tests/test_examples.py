# tests/test_examples.py: the examples run as programs and print what they promise.
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def digits_output(tmp_path_factory):
    # One OpenMP thread: the barriers of two take many times as long if something else uses a core.
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train_digits.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path_factory.mktemp("digits"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar without a terminal, and no failure left over
    return done.stdout


@pytest.mark.parametrize("network", ["MLP", "CNN"])
def test_digits_are_learned_as_in_eager(digits_output, network):
    accuracies = dict(
        re.findall(rf"^{network} (eager|lazy) +test accuracy +([\d.]+)%", digits_output, re.M)
    )
    assert set(accuracies) == {"eager", "lazy"}
    assert accuracies["lazy"] == accuracies["eager"]
    assert float(accuracies["lazy"]) >= 97.0


def test_deferred_error_names_its_line(digits_output):
    recorded, _, error = digits_output.partition("nothing has been raised so far.\n")
    assert "Traceback" not in recorded
    assert "IndexError: Target 10 is out of bounds." in error
    lines = re.findall(r'train_digits\.py", line (\d+), in show_deferred_error', error)
    shown = [linecache.getline(str(EXAMPLES / "train_digits.py"), int(n)) for n in lines]
    assert any("F.cross_entropy(model(images), labels)" in line for line in shown), error
    assert any("loss.item()" in line for line in shown), error
