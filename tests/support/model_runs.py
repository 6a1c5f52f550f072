"""Random models (tests/programs/random_models.py) trained eagerly and lazily, and compared."""

import contextlib

import torch

from lazyeng import lazy, unwrap, wrap
from tests.programs.random_models import Training
from tests.support.outcomes import Raised, outcome

# What is lazy: what the block makes so, or the model and its inputs as well.
WAYS = {
    "async": (lambda: lazy("async"), lambda x: x),
    "deferred": (lambda: lazy("deferred"), lambda x: x),
    "wrap": (contextlib.nullcontext, wrap),
    "wrap in a block": (lambda: lazy("deferred"), wrap),
}


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
