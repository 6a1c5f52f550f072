"""Random models, trained by random loops, have eager's values to the last bit (but for the signs of
zeros). More: `python -m tests.soak --models`, which takes new seeds."""

import contextlib

import pytest
import torch

from lazyeng import lazy, unwrap, wrap
from tests.support.threads import threads_of_torch

from .programs.random_models import Training
from .support.outcomes import Raised, outcome

# The last ones train an LSTM that was run without gradients before.
SEEDS = (*range(24), 428, 875)
# What is lazy: what the block makes so, or the model and its inputs as well.
WAYS = {
    "async": (lambda: lazy("async"), lambda x: x),
    "deferred": (lambda: lazy("deferred"), lambda x: x),
    "wrap": (contextlib.nullcontext, wrap),
    "wrap in a block": (lambda: lazy("deferred"), wrap),
}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def one_thread():
    """On several threads bits depend on how many an op has, which a trial decides by a sample."""
    with threads_of_torch(1):
        yield


def trained(seed, way):
    """The tensors; or the error, which some combinations end in."""
    block, side = way
    return outcome(lambda: unwrap(Training(seed, side).run(block())), RuntimeError)


def differences(expected, got):
    if isinstance(expected, Raised) or isinstance(got, Raised):
        return [] if expected == got else [f"{expected!s:.200} and {got!s:.200}"]
    assert len(expected) == len(got)
    return [
        f"tensor {i}, {tuple(a.shape)}: {a.flatten()[:3].tolist()} and {b.flatten()[:3].tolist()}"
        for i, (a, b) in enumerate(zip(expected, got, strict=True))
        if a.dtype != b.dtype or a.shape != b.shape or not same_values(a, b)
    ]


def same_values(a, b):
    return torch.equal(a, b) or (a.is_floating_point() and torch.equal(a.isnan(), b.isnan())
                                 and torch.equal(a.nan_to_num(), b.nan_to_num()))  # fmt: skip


def check(seed, way):
    """Returns whether eager came to the end."""
    expected = trained(seed, (contextlib.nullcontext, lambda x: x))
    different = differences(expected, trained(seed, way))
    assert not different, f"seed {seed}: {different[:3]}"
    return not isinstance(expected, Raised)


@pytest.mark.parametrize("way", WAYS)
def test_values_are_those_of_eager(way):
    ended = [check(seed, WAYS[way]) for seed in SEEDS]
    assert sum(ended) > 0.8 * len(SEEDS)
