"""A hundred exceptions, at random places of a training run: each is raised with its type and text,
leaves nothing behind, and the run ends with eager's parameters, to the bit."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

# Where a step fails: in Python's kernels after a layer, forward or backward, in torch's own, in the
# program's own functions that torch calls, and in the optimizer, half of whose work is done then.
PLACES = (
    "layer 0", "layer 1", "backward of 0", "backward of 1", "label", "cholesky", "index",
    "loader", "forward hook", "gradient hook", "step hook", "optimizer",
)  # fmt: skip


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


class Batches(torch.utils.data.Dataset):
    def __init__(self, to_fail):
        self.to_fail = to_fail

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        place, number = self.to_fail.get(step, ("", -1))
        if place == "loader":
            raise EXCEPTIONS[number]()
        return batch(step, place)


def batch(step, place):
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(0, 9, (BATCH,), generator=generator)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    if place == "label":
        labels[step % BATCH] = CLASSES
    if place == "index":
        words[step % BATCH] = 9
    return words, labels


@dataclass(frozen=True)
class Way:
    model: Callable[[nn.Module], Any] = lambda model: model
    data: Callable[[torch.Tensor], Any] = lambda x: x
    run: Callable[[], Any] = contextlib.nullcontext  # around all steps
    step: Callable[[], Any] = contextlib.nullcontext  # around each, within what catches


class Run:
    """A model, its optimizer and its data; what fails is set before each step."""

    def __init__(self, way, to_fail):
        self.way = way
        self.place, self.number = "", -1
        self.model = way.model(Model())
        self.model.layers[1].register_forward_hook(self.hook("forward hook"))
        *first, head = self.model.children()
        groups = [{"params": [p for m in ms for p in m.parameters()]} for ms in (first, [head])]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)
        self.optimizer.register_step_post_hook(self.hook("step hook"))
        self.batches = iter(torch.utils.data.DataLoader(Batches(to_fail), batch_size=None))

    def hook(self, place):
        def fail(*_):
            if self.place == place:
                raise EXCEPTIONS[self.number]()

        return fail

    def loss(self):
        words, labels = map(self.way.data, next(self.batches))
        logits = self.model(words, self.place, self.number)
        logits.register_hook(self.hook("gradient hook"))
        loss = F.cross_entropy(logits, labels)
        if self.place == "cholesky":
            loss = loss + torch.linalg.cholesky(-self.way.data(torch.eye(3))).sum()
        return loss

    def update(self):
        """Where it fails, the first group has been updated, and the second has not. (Within a group
        eager goes on weight by weight, and lazily all go together.)"""
        head = self.optimizer.param_groups[1]
        kept = head["betas"]
        head["betas"] = None if self.place == "optimizer" else kept
        try:
            self.optimizer.step()
        finally:
            head["betas"] = kept


def train(way, read, seed):
    """What was raised in each step, the losses, and the parameters at the end."""
    torch.manual_seed(0)
    to_fail, raised, losses = faults(seed), {}, []
    with way.run():
        run = Run(way, to_fail)
        for step in range(STEPS):
            run.place, run.number = to_fail.get(step, ("", -1))
            try:
                with way.step():
                    loss = run.loss()
                    run.optimizer.zero_grad()
                    loss.backward()
                    losses.append(read(loss))
                    run.update()
            except Exception as error:
                raised[step] = type(error).__name__, str(error), error.args
    return raised, losses, [lazyeng.unwrap(p.detach()) for p in run.model.parameters()]


def read_lazily(loss):
    """Before the step that would use failed gradients, as programs do that look at the loss."""
    value = loss.item()
    synchronize()
    return value


WAYS = {
    "wrapped data": Way(data=wrap),
    "wrapped model": Way(model=wrap),
    "async": Way(run=lambda: lazy("async")),
    "deferred": Way(run=lambda: lazy("deferred")),
    "sync": Way(run=lambda: lazy("sync")),
    "a block for each step": Way(step=lambda: lazy("deferred")),
}


@pytest.mark.limit(180)
@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_exceptions(way):
    seed = sorted(WAYS).index(way)
    expected = train(Way(), lambda loss: loss.item(), seed)
    assert len(expected[0]) == FAILURES
    raised, losses, parameters = train(WAYS[way], read_lazily, seed)
    assert raised == expected[0]
    assert losses == expected[1]
    assert all(map(torch.equal, parameters, expected[2]))
    synchronize()  # nothing is left to be raised
