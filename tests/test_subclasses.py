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


def gradient_of_a_view(w: Wrap) -> Any:
    """The gradient that it is given is a plain tensor, in a block too."""
    x = w(torch.tensor([1.0, 2.0, 3.0])).requires_grad_()
    (x * 2).as_subclass(Bare).backward(torch.ones(3))
    return x.grad.tolist()


def gradient_by_a_function(w: Wrap) -> Any:
    """That of a result, made of what a class of the user's was saved as."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            return grad * b, grad * a

    x = w(torch.tensor([1.0, 2.0, 3.0])).requires_grad_()
    a = x.as_subclass(Bare)
    Product.apply(a, a * 2).as_subclass(torch.Tensor).sum().backward()
    return x.grad.tolist()


def made_in_inference_mode(w: Wrap) -> Any:
    x = w(torch.ones(3)) * 1
    with torch.inference_mode():
        made = x.as_subclass(Bare), Bare(x)
    return [(type(one), one.is_inference(), one.tolist(), (one + 1).tolist()) for one in made]


@pytest.mark.parametrize(
    "program", [gradient_of_a_view, gradient_by_a_function, made_in_inference_mode]
)
@pytest.mark.parametrize("wrap", [same, lazyeng.wrap])
def test_programs(program, wrap, mode):
    expected = program(same)
    assert program(lazyeng.wrap) == expected
    with lazyeng.lazy(mode):
        assert program(wrap) == expected


class Holder(torch.Tensor):
    """It has no memory: what is called with it is called with the tensor that it holds."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), dtype=held.dtype, device=held.device
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None) -> Any:
        return func(*[x.held if isinstance(x, Holder) else x for x in args], **(kwargs or {}))


@pytest.mark.parametrize("transform", [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
@pytest.mark.parametrize("call", [
    lambda x: x * 2, lambda x: x.sum(), lambda x: x.add_(1), lambda x: x.nonzero(),
    lambda x: x.view(-1), lambda x: x[0],
])  # fmt: skip
def test_a_class_that_holds_what_torch_func_passes_is_refused_as_in_eager(transform, call):
    def program(w: Wrap) -> Any:
        def calls(x: torch.Tensor) -> torch.Tensor:
            call(Holder(x))
            return x

        return outcome(lambda: transform(calls)(w(torch.ones(2, 3))).tolist())

    expected = program(same)
    assert program(lazyeng.wrap) == expected
    with lazyeng.lazy("sync"):
        assert program(lazyeng.wrap) == expected


@pytest.mark.parametrize("call", [
    lambda q: torch.tensor([q[0, 0], 1]), lambda q: torch.tensor(q),
    lambda q: torch.tensor([q[0, 0]]),
])  # fmt: skip
@pytest.mark.parametrize("transform", [torch.func.functionalize, torch.vmap])
def test_data_that_torch_func_has_wrapped_is_refused_as_in_eager(transform, call, mode):
    def program(w: Wrap) -> Any:
        return outcome(lambda: transform(call)(w(torch.ones(2, 3))).tolist())

    expected = program(same)
    assert program(lazyeng.wrap) == expected
    with lazyeng.lazy(mode):
        assert program(lazyeng.wrap) == program(same) == expected
