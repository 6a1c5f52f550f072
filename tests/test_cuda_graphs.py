"""Loops that are launched as CUDA graphs, on a simulated GPU (tests/simulated_cuda)."""

import pytest

from tests import graph_programs, simulated_cuda

CHECKS = [name for name in vars(graph_programs) if name.startswith("check_")]


@pytest.mark.skipif(simulated_cuda.unavailable, reason="this torch has a backend for CUDA already")
@pytest.mark.parametrize("check", CHECKS)
def test_simulated(check):
    simulated_cuda.run(
        f"from tests import graph_programs; graph_programs.{check}()", LAZYENG_CUDA_GRAPHS="on"
    )
