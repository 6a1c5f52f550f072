"""Random programs give the same bits eagerly and lazily, in every mode and from many threads."""

import functools
import os
import random
import threading

import pytest
import torch

import lazyeng

from .programs import random_programs as programs

# Of out= that has to be resized, and of var() of one element. Here and not in the interpreter:
# warnings.catch_warnings is not for threads.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MODES = ["async", "deferred", "sync"]
LENGTH = 10_000
FIXED_SEED = 20260
# A plain tensor cannot take the storage of a lazy one by set_(), nor the reverse: that is not
# in the contract. Everything else may mix.
NOT_MIXED = frozenset({"set_"})
# In a block they give plain tensors: left out where all tensors have to be lazy.
FACTORIES = frozenset({"rand", "randint", "randn", "randperm"})


FRESH_SEED = int(os.environ.get("LAZYENG_TEST_SEED", random.SystemRandom().randrange(2**31)))


@pytest.fixture
def fresh_seed():
    """A new seed each run; LAZYENG_TEST_SEED repeats one. Printed when the test fails."""
    print(f"repeat with LAZYENG_TEST_SEED={FRESH_SEED}")
    return FRESH_SEED


def wrap_all(tensors):
    return [lazyeng.wrap(x) for x in tensors]


def wrap_half(tensors):
    return [lazyeng.wrap(x) if i % 2 else x for i, x in enumerate(tensors)]


def wrap_none(tensors):
    return tensors


def readable(x):
    """A plain tensor with a pending write may refuse tolist() and numpy(): read a copy of it."""
    return x if type(x) is lazyeng.LazyTensor else lazyeng.unwrap(x.clone())


# Making a program takes three times as long as running it, and most are run in several ways.
def generated_with_result(seed, length, **settings):
    return _generated(programs.lengths(2), seed, length, **settings)


@functools.cache
def _generated(_scale, seed, length, **settings):
    program = programs.generate(seed, length, **settings)
    return program, run_eager(program, programs.make_shared())


def run_eager(program, shared):
    state = programs.make_state(program.seed, shared)
    return programs.outcome(programs.interpret(program, state), lambda x: x)


def run_lazy(program, mode, wrap, shared):
    """In a lazy(mode) block; the results are read after it."""
    state = programs.make_state(program.seed, shared)
    state.slots, state.readable = wrap(state.slots), readable
    with lazyeng.lazy(mode):
        programs.interpret(program, state)
    return programs.outcome(state, lazyeng.unwrap)


def shortest_failing(program, mode, wrap):
    """The shortest prefix that differs, as text: bisected, since a difference mostly stays."""
    low, high = 0, len(program.steps)
    while low + 1 < high:
        middle = (low + high) // 2
        prefix = programs.Program(program.seed, program.steps[:middle], program.default_generator)
        shared = programs.make_shared()
        same = run_eager(prefix, shared) == run_lazy(prefix, mode, wrap, wrap_all(shared))
        low, high = (middle, high) if same else (low, middle)
    last = "\n".join(str(step) for step in program.steps[max(high - 12, 0) : high])
    return f"shortest failing prefix: {high} steps of seed {program.seed}, ending in\n{last}"


def check(seed, length, mode, wrap):
    without = FACTORIES if wrap is wrap_all else NOT_MIXED
    program, expected = generated_with_result(seed, length, without=without)
    got = run_lazy(program, mode, wrap, wrap_all(programs.make_shared()))
    different = programs.differences(expected, got)
    assert not different, f"{different[:5]}; {shortest_failing(program, mode, wrap)}"


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


def run_threads(n_threads, mode, seed, length):
    """Each thread has its own program and generator; all read the same shared inputs."""
    # The default generator is the process's: no thread may draw from it.
    settings = {"default_generator": False, "without": NOT_MIXED}
    made = [generated_with_result(seed + i, length, **settings) for i in range(n_threads)]
    shared = wrap_all(programs.make_shared())
    got: list = [None] * n_threads
    barrier = threading.Barrier(n_threads)

    def work(i):
        try:
            barrier.wait()
            got[i] = run_lazy(made[i][0], mode, wrap_half if i % 2 else wrap_all, shared)
        except BaseException as error:  # shown by the main thread
            got[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(n_threads):
        if isinstance(got[i], BaseException):
            raise got[i]
        different = programs.differences(made[i][1], got[i])
        assert not different, f"thread {i}, program seed {seed + i}: {different[:5]}"


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
