"""On a real GPU: the programs of the simulated one, and PyTorch's op_db, module_db and optim_db."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import real_cuda

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROOT = Path(__file__).resolve().parent.parent


def run(*words: str, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=os.environ | environment,
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{result.stdout}{result.stderr}"


@pytest.mark.parametrize(
    "module, check", [(m, check) for m in real_cuda.PROGRAMS for check in real_cuda.checks(m)]
)
def test_programs_of_the_simulated_device(module, check):
    environment = {}
    if module == "graph_programs":
        environment["LAZYENG_CUDA_GRAPHS"] = "on"
    if "fusion_that_is_off" in check:
        environment["LAZYENG_FUSION"] = "off"
    run("tests.real_cuda", module, check, **environment)


@pytest.mark.parametrize("suite", ["op", "module", "optim"])
def test_conformance(suite):
    """One entry of ten, two samples of each."""
    run(
        "tests.conformance", "--suite", suite, "--every", "10", "--limit", "2", "--mode", "async",
        "--quiet", LAZYENG_TEST_DEVICE="cuda",
    )  # fmt: skip
