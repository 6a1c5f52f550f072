"""Tensor classes of a user, made by their constructors: programs with them, against eager."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lazyeng
from tests.support.outcomes import outcome, same

Wrap = Callable[[Any], Any]


class Bare(torch.Tensor): ...


class Tagged(torch.Tensor):
    """As tutorials write it."""

    def __new__(cls, data: Any, tag: str) -> Any:
        return super().__new__(cls, data)

    def __init__(self, data: Any, tag: str) -> None:
        self.tag = tag


def ones() -> torch.Tensor:
    return torch.ones(2)


PROGRAMS = {
    "of a tensor": lambda w: Bare(w(ones())),
    "of a result": lambda w: Bare(w(ones()) * 2),
    "of a leaf": lambda w: Bare(w(ones()).requires_grad_()),
    "of what has history": lambda w: Bare(w(ones()).requires_grad_() * 2),
    "of integers": lambda w: Bare(w(torch.tensor([1, 2]))),
    "of a number": lambda w: Bare(w(torch.tensor(2.0))),
    "of one of its class": lambda w: Bare(Bare(w(ones()))),
    "of another class": lambda w: Bare(Tagged(w(ones()), "a")),
    "of a list": lambda w: Bare([1.0, 2.0]),
    "of sizes": lambda w: Bare(2, 0),
    "of nothing": lambda w: Bare(),
    "of an array": lambda w: Bare(np.ones(2, dtype=np.float32)),
    "by super()": lambda w: Tagged(w(ones()), tag="a"),
    "refused": lambda w: Bare(w(ones()), device="cpu"),
    "torch.Tensor of a tensor": lambda w: torch.Tensor(w(ones())),
    "torch.Tensor of a list": lambda w: torch.Tensor([1.0, 2.0]),
}


def look(made: torch.Tensor) -> tuple[Any, ...]:
    grad_fn = made.grad_fn and made.grad_fn.name()
    kind = torch.Tensor if type(made) is lazyeng.LazyTensor else type(made)
    return kind, vars(made), made.dtype, made.requires_grad, grad_fn, made.tolist()


def seen(program: Callable[[Wrap], Any], wrap: Wrap) -> Any:
    return outcome(lambda: look(program(wrap)))


@pytest.mark.parametrize("name", PROGRAMS)
class TestConstructors:
    def test_wrapped(self, name):
        assert seen(PROGRAMS[name], lazyeng.wrap) == seen(PROGRAMS[name], same)

    @pytest.mark.parametrize("wrap", [same, lazyeng.wrap])
    def test_in_a_block(self, name, wrap, mode):
        expected = seen(PROGRAMS[name], same)
        with lazyeng.lazy(mode):
            assert seen(PROGRAMS[name], wrap) == expected


def test_memory_is_shared():
    x = lazyeng.wrap(torch.zeros(2))
    made = Bare(x)
    made += 1
    assert x.tolist() == [1.0, 1.0]


class Answering(torch.Tensor):
    """What a class of the program's makes of torch's methods need not be what torch makes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Any:
        return "an answer"


@pytest.mark.parametrize("how", [
    lambda x: x.data, lambda x: x.numpy(), lambda x: x.data_ptr(), lambda x: x.tolist(),
    lambda x: x.__dlpack__(), lambda x: x.untyped_storage(), lambda x: x.detach(),
])  # fmt: skip
def test_answers_that_are_no_tensors(how):
    answering = torch.ones(2).as_subclass(Answering)
    assert how(answering) == "an answer"
    with lazyeng.lazy():
        assert how(answering) == "an answer"
