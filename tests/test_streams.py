"""Streams of a GPU, and its memory, on a simulated one (tests/simulated_cuda)."""

import pytest

from tests import simulated_cuda
from tests.programs import stream_programs

CHECKS = [name for name in vars(stream_programs) if name.startswith("check_")]


@pytest.mark.skipif(simulated_cuda.unavailable, reason="this torch has a backend for CUDA already")
@pytest.mark.parametrize("check", CHECKS)
def test_simulated(check):
    simulated_cuda.run(f"from tests.programs import stream_programs; stream_programs.{check}()")
