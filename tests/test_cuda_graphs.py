"""Loops that are launched as CUDA graphs, on a simulated GPU (tests/simulated_cuda)."""

import pytest

from tests import simulated_cuda
from tests.programs import graph_programs

CHECKS = [name for name in vars(graph_programs) if name.startswith("check_")]


@pytest.mark.skipif(simulated_cuda.unavailable, reason="this torch has a backend for CUDA already")
@pytest.mark.parametrize("check", CHECKS)
def test_simulated(check):
    simulated_cuda.run(
        f"from tests.programs import graph_programs; graph_programs.{check}()",
        LAZYENG_CUDA_GRAPHS="on",
    )


@pytest.mark.skipif(simulated_cuda.unavailable, reason="this torch has a backend for CUDA already")
def test_a_process_forks_and_ends_while_graphs_live():
    """(With the simulated device a child cannot use its streams, whose threads are the parent's;
    nor could it with CUDA.)"""
    program = """
import os, torch
from tests.programs.graph_programs import kernels, layers, numbers, run_loop, simulated

def step(to, i):
    return [layers(to(numbers(i, 8, 4)), to(numbers(0, 4, 4)))]

kernels.install()
assert run_loop(step, range(14))[-1] == 1 and simulated.graphs() > 0
child = os.fork()
if child == 0:
    with lazyeng.lazy():
        assert (torch.ones(4) * 2).sum().item() == 8
    raise SystemExit(7)  # with all of the interpreter's end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert run_loop(step, range(3)) == [1, 1, 1]
print("the parent goes on")
"""
    out = simulated_cuda.run(program, with_its_end=True, LAZYENG_CUDA_GRAPHS="on")
    assert out == "the parent goes on\n"
