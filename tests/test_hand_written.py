"""Hand-written kernels that run ops of CUDA tensors, on a simulated device."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from tests import simulated_cuda
from tests.programs import hand_written_programs

CHECKS = [name for name in vars(hand_written_programs) if name.startswith("check_")]


@pytest.mark.skipif(simulated_cuda.unavailable, reason="this torch has a backend for CUDA already")
@pytest.mark.parametrize("check", CHECKS)
def test_simulated(check):
    environment = {"LAZYENG_FUSION": "off"} if "fusion_that_is_off" in check else {}
    program = f"from tests.programs import hand_written_programs as p; p.{check}()"
    simulated_cuda.run(program, **environment)
