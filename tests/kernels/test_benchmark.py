"""benchmarks/kernels.py: its cases run, and it ends well without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from benchmarks import kernels as benchmark
from tests.kernels.compare import assert_same

ROOT = Path(__file__).parents[2]
DRAWN_OR_IN_PLACE = {"dropout", "adamw", "sgd with momentum"}


def test_cases_compute_what_torch_computes(device):
    names = []
    for case in benchmark.cases(device, torch.float32, small=True):
        names.append(case.name)
        ours, theirs = case.ours(), case.theirs()
        if case.name == "layer_norm backward":
            ours = (ours[0], *ours[1])
        if case.name == "rms_norm":
            ours = ours[0]
        if case.name not in DRAWN_OR_IN_PLACE:
            assert_same(ours, theirs)
    assert len(names) == len(set(names)) == 21


@pytest.mark.plain_process
def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "benchmarks.kernels"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert done.stdout.startswith("no CUDA device")
