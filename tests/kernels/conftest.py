"""Kernel tests run on the GPU if there is one, else on CPU tensors in Triton's interpreter.

The interpreter has to be chosen (TRITON_INTERPRET=1) before Triton is imported, and then kernels
cannot be compiled any more. So without a GPU the bodies of these tests run in a process of their
own, one for each pytest process, and the variable never reaches the other tests. Tests marked
`plain_process`, those that compile kernels, stay here.
"""

import functools
import multiprocessing
import os

import pytest
import torch

from tests.kernels import interpreter


def pytest_configure(config):
    config.addinivalue_line("markers", "plain_process: a kernel test without Triton's interpreter")


@pytest.fixture
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@functools.cache
def child():
    """A connection to the process that interprets; it ends when this one does."""
    context = multiprocessing.get_context("spawn")  # a fork would have Triton imported already
    ours, theirs = context.Pipe()
    context.Process(target=interpreter.serve, args=(theirs,), daemon=True).start()
    theirs.close()  # so that recv() ends if the child dies
    return ours


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if pyfuncitem.get_closest_marker("plain_process"):
        if os.environ.get("TRITON_INTERPRET", "0") != "0":
            pytest.skip("TRITON_INTERPRET is set: nothing can be compiled in this process")
        return None
    if torch.cuda.is_available():
        return None
    function = pyfuncitem.function
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    child().send((function.__module__, function.__name__, arguments))
    try:
        outcome, text = child().recv()
    except EOFError:
        child.cache_clear()
        outcome, text = "failed", "the process with Triton's interpreter died"
    if outcome == "skipped":
        pytest.skip(text)
    if outcome == "failed":
        pytest.fail(text, pytrace=False)
    return True
