"""What needs a GPU, on a simulated one (tests/simulated_cuda)."""

import pytest

from tests import cuda_programs, simulated_cuda

CHECKS = [name for name in vars(cuda_programs) if name.startswith("check_")]


@pytest.mark.skipif(simulated_cuda.unavailable, reason="this torch has a backend for CUDA already")
@pytest.mark.parametrize("check", CHECKS)
def test_simulated(check):
    simulated_cuda.run(f"from tests import cuda_programs; cuda_programs.{check}()")
