"""The error corpus: every program fails with one type, one text and one user line in all modes."""

import traceback

import pytest
import torch

import lazyeng
from lazyeng import LazyError, lazy, synchronize, wrap
from tests.programs import failing_programs

PROGRAMS = {program.__name__: program for program in failing_programs.PROGRAMS}


def read(result):
    if isinstance(result, torch.Tensor):
        return lazyeng.unwrap(result)
    return result


def failure(program, side, mode=None):
    """What a person gets who runs the program and reads its result."""
    torch.manual_seed(0)
    try:
        if mode is None:
            read(program(side))
        else:
            with lazy(mode):
                read(program(side))
    except Exception as error:
        return error
    pytest.fail(f"{program.__name__} does not fail")


def user_line(error):
    """The innermost line in the file of programs, of the place where the op was called."""
    shown = error.__cause__ if isinstance(error, LazyError) else error
    frames = [
        frame
        for frame in traceback.extract_tb(shown.__traceback__)
        if frame.filename == failing_programs.__file__
    ]
    return (frames[-1].name, frames[-1].lineno, frames[-1].line)


def identity(error):
    cls = type(error)
    # A message that names the class of its operand names the class that it has.
    text = str(error).replace("LazyTensor", "Tensor")
    return (cls.__module__, cls.__qualname__, text, *user_line(error))


def test_the_corpus_is_large():
    assert len(PROGRAMS) == len(failing_programs.PROGRAMS) >= 60


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_in_all_modes(name):
    program = PROGRAMS[name]
    expected = identity(failure(program, lambda x: x))
    for mode in ("sync", "async", "deferred"):
        assert identity(failure(program, wrap, mode)) == expected, mode
    synchronize()  # nothing is left that nobody saw


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_for_plain_tensors_in_a_block(name):
    program = PROGRAMS[name]
    expected = identity(failure(program, lambda x: x))
    for mode in ("sync", "deferred"):
        assert identity(failure(program, lambda x: x, mode)) == expected, mode
    synchronize()


@pytest.mark.parametrize("name", PROGRAMS)
def test_names_op_and_line(name):
    error = failure(PROGRAMS[name], wrap, "deferred")
    synchronize()
    if not isinstance(error, LazyError):
        return  # raised at the call: its own traceback shows the line
    line = user_line(error)[1]
    assert error.op.partition(".")[0] in ("aten", "lazyeng_failing")
    assert f"failing_programs.py:{line}" in "\n".join(error.__notes__)
    assert error.__cause__.__class__.__name__ == type(error).__name__
