"""A hundred exceptions, at random places of a training run: each is raised with its type and text,
leaves nothing behind, and the run ends with eager's parameters, to the bit."""

import contextlib
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazyeng
from lazyeng import lazy, synchronize, wrap

STEPS, FAILURES = 250, 100
BATCH, WIDTH, CLASSES = 16, 12, 5


class SeveralArguments(Exception):  # noqa: N818
    """Cannot be made from its text."""

    def __init__(self, code, *, where):
        super().__init__(code, where)
        self.code, self.where = code, where


EXCEPTIONS = (
    lambda: ValueError("a value"),
    lambda: KeyError("a key"),
    lambda: OSError(28, "No space left on device"),
    lambda: RuntimeError("several\nlines"),
    lambda: SeveralArguments(7, where="a layer"),
    lambda: ZeroDivisionError(),
    lambda: AssertionError("never"),
)


@torch.library.custom_op("lazyeng_failing_training::pass_on", mutates_args=())
def pass_on(x: torch.Tensor, forward: int, backward: int) -> torch.Tensor:
    """The same numbers, or the exception of that number: now, or of the gradient."""
    if forward >= 0:
        raise EXCEPTIONS[forward]()
    return x.clone()


pass_on.register_fake(lambda x, forward, backward: torch.empty_like(x))
pass_on.register_autograd(
    lambda ctx, grad: (pass_on(grad, ctx.backward, -1), None, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "backward", inputs[2]),
)

# Where a step fails: in Python's kernels after a layer, forward or backward, and in torch's own.
PLACES = ("layer 0", "layer 1", "backward of 0", "backward of 1", "label", "cholesky", "index")


def faults(seed):
    """By step: the place, and the number of the exception."""
    choice = random.Random(seed)
    return {
        step: (choice.choice(PLACES), choice.randrange(len(EXCEPTIONS)))
        for step in choice.sample(range(STEPS), FAILURES)
    }


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words, place, number):
        x = self.embedding(words)
        for i, layer in enumerate(self.layers):
            x = pass_on(
                layer(x).tanh(),
                number if place == f"layer {i}" else -1,
                number if place == f"backward of {i}" else -1,
            )
        return self.head(x)


def batch(step, place):
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(0, 9, (BATCH,), generator=generator)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    if place == "label":
        labels[step % BATCH] = CLASSES
    if place == "index":
        words[step % BATCH] = 9
    return words, labels


def train(given, read, where, seed):
    """What was raised in each step, the losses, and the parameters at the end."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    to_fail, raised, losses = faults(seed), {}, []
    with where():
        for step in range(STEPS):
            place, number = to_fail.get(step, ("", -1))
            try:
                words, labels = map(given, batch(step, place))
                loss = F.cross_entropy(model(words, place, number), labels)
                if place == "cholesky":
                    loss = loss + torch.linalg.cholesky(-given(torch.eye(3))).sum()
                optimizer.zero_grad()
                loss.backward()
                losses.append(read(loss))
                optimizer.step()
            except Exception as error:
                raised[step] = type(error).__name__, str(error), error.args
    return raised, losses, [lazyeng.unwrap(p.detach()) for p in model.parameters()]


def read_lazily(loss):
    """Before the step that would use failed gradients, as programs do that look at the loss."""
    value = loss.item()
    synchronize()
    return value


WAYS = {
    "wrapped data": (wrap, contextlib.nullcontext),
    "async": (lambda x: x, lambda: lazy("async")),
    "deferred": (lambda x: x, lambda: lazy("deferred")),
    "sync": (lambda x: x, lambda: lazy("sync")),
}


@pytest.mark.limit(180)
@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_exceptions(way):
    seed = sorted(WAYS).index(way)
    expected = train(lambda x: x, lambda loss: loss.item(), contextlib.nullcontext, seed)
    assert len(expected[0]) == FAILURES
    given, where = WAYS[way]
    raised, losses, parameters = train(given, read_lazily, where, seed)
    assert raised == expected[0]
    assert losses == expected[1]
    assert all(map(torch.equal, parameters, expected[2]))
    synchronize()  # nothing is left to be raised
