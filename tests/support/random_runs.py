"""Random programs (tests/programs/random_programs.py) run eagerly and lazily, on one thread or on
several, and compared."""

import functools
import threading

import lazyeng
from tests.programs import random_programs as programs

MODES = ["async", "deferred", "sync"]
# A plain tensor cannot take the storage of a lazy one by set_(), nor the reverse: that is not
# in the contract. Everything else may mix.
NOT_MIXED = frozenset({"set_"})
# In a block they give plain tensors: left out where all tensors have to be lazy.
FACTORIES = frozenset({"rand", "randint", "randn", "randperm"})


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
