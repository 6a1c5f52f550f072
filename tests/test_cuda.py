"""What needs a GPU, on a simulated one (tests/simulated_cuda)."""

import pytest

from tests import simulated_cuda
from tests.programs import cuda_programs

# Those of what the end of the interpreter does.
AT_THE_END = (
    "check_the_program_may_end_while_kernels_are_compiled",
    "check_an_unseen_device_failure_is_warned_of_once",
)
CHECKS = [name for name in vars(cuda_programs) if name.startswith("check_")]


@pytest.mark.skipif(simulated_cuda.unavailable, reason="this torch has a backend for CUDA already")
@pytest.mark.parametrize("check", CHECKS)
def test_simulated(check):
    program = f"from tests.programs import cuda_programs; cuda_programs.{check}()"
    simulated_cuda.run(program, with_its_end=check in AT_THE_END)
