"""Random programs give the same bits eagerly and lazily, in every mode and from many threads."""

import os
import random
import threading

import pytest
import torch

import lazyeng

from .programs import random_programs as programs
from .support.random_runs import (
    FACTORIES,
    MODES,
    NOT_MIXED,
    check,
    readable,
    run_eager,
    run_lazy,
    run_threads,
    wrap_all,
    wrap_half,
    wrap_none,
)

# Of out= that has to be resized, and of var() of one element. Here and not in the interpreter:
# warnings.catch_warnings is not for threads.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LENGTH = 10_000
FIXED_SEED = 20260


FRESH_SEED = int(os.environ.get("LAZYENG_TEST_SEED", random.SystemRandom().randrange(2**31)))


@pytest.fixture
def fresh_seed():
    """A new seed each run; LAZYENG_TEST_SEED repeats one. Printed when the test fails."""
    print(f"repeat with LAZYENG_TEST_SEED={FRESH_SEED}")
    return FRESH_SEED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrap", [wrap_all, wrap_half, wrap_none])
def test_fixed_seed(mode, wrap):
    check(FIXED_SEED, LENGTH, mode, wrap)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrap", [wrap_all, wrap_half])
def test_fresh_seeds(mode, wrap, fresh_seed):
    """Many short programs: more ways to begin, and a difference is found close to its cause."""
    for i in range(20):
        check(fresh_seed + i, 250, mode, wrap)


@pytest.mark.parametrize("wrap", [wrap_all, wrap_none])
def test_tensors_that_lie_in_the_pool(mode, wrap, fresh_seed):
    """Most of 32 KiB and more, so that their memory has been that of others before."""
    with programs.scaled(32):
        check(fresh_seed, 300, mode, wrap)


def test_outside_any_block(fresh_seed):
    """Wrapped tensors record in the default mode, without lazy()."""
    # Factories give plain tensors here: changing one in place behind a pending read is an error.
    program = programs.generate(fresh_seed, 2_000, without=FACTORIES)
    shared = programs.make_shared()
    expected = run_eager(program, shared)
    state = programs.make_state(program.seed, shared)
    state.slots, state.shared, state.readable = wrap_all(state.slots), wrap_all(shared), readable
    got = programs.outcome(programs.interpret(program, state), lazyeng.unwrap)
    assert not programs.differences(expected, got)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_threads", [1, 2, 8])
def test_threads_fixed_seed(n_threads, mode):
    run_threads(n_threads, mode, FIXED_SEED, LENGTH // n_threads)


@pytest.mark.parametrize("n_threads", [2, 8])
def test_threads_fresh_seed(n_threads, fresh_seed):
    run_threads(n_threads, "async", fresh_seed, 1_000)


def test_threads_in_different_modes(fresh_seed):
    """A mode is the thread's own: three threads in three modes at once."""
    errors = []
    program = programs.generate(fresh_seed, 1_000, False, NOT_MIXED)

    def work(mode):
        try:
            shared = programs.make_shared()
            expected = run_eager(program, shared)
            got = run_lazy(program, mode, wrap_half, wrap_all(shared))
            assert not programs.differences(expected, got)
        except BaseException as error:
            errors.append((mode, error))

    threads = [threading.Thread(target=work, args=(mode,)) for mode in MODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_same_seed_same_program():
    """What is fixed about a fixed seed; and eager agrees with itself."""
    first, second = (programs.generate(7, 500) for _ in range(2))
    assert first == second
    shared = programs.make_shared()
    assert run_eager(first, shared) == run_eager(second, shared)


def test_a_wrong_value_is_found():
    """The comparison can fail: one step too many changes the outcome."""
    program = programs.generate(7, 500)
    shared = programs.make_shared()
    more = programs.Program(
        program.seed, [*program.steps, programs.Step("add_scalar_", (0,), {"s": 0.5})], True
    )
    with torch.no_grad():
        assert programs.differences(run_eager(program, shared), run_eager(more, shared))
