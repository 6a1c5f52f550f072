"""Programs that a hostile user found to differ from eager, each against eager."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazyeng

Wrap = Callable[[Any], Any]


class Scaled(torch.Tensor):
    """A user's class, whose operators return it."""


class AddOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


def take_storage_of_a_tensor(w: Wrap) -> Any:
    a, b = w(torch.arange(6.0)), w(torch.ones(3))
    b.set_(a)
    b.mul_(2)
    seen = a.tolist()
    a.add_(1)
    return seen, b


def take_a_storage(w: Wrap) -> Any:
    a, b = w(torch.arange(6.0)), w(torch.empty(0))
    b.set_(a.untyped_storage(), 2, (2, 2), (2, 1))
    b += 1
    a.mul_(2)
    b += 1
    return a, b


def plain_takes_storage_of_lazy(w: Wrap) -> Any:
    a, b = w(torch.arange(6.0)), torch.ones(3)
    b.set_(a)
    a.mul_(2)
    return w(b) + 1, a


def mark_dirty(w: Wrap) -> Any:
    a = w(torch.arange(3.0))
    b = AddOne.apply(a)
    leaf = w(torch.ones(3)).requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        AddOne.apply(leaf)
    return a * 2, b, leaf * 3


def mark_dirty_of_a_large_one(w: Wrap) -> Any:
    a = w(torch.arange(100_000))
    twice = a * 2
    AddOne.apply(a)
    return twice, a * 2


def outputs_that_overlap_inputs(w: Wrap) -> Any:
    a = w(torch.ones(2, 3))
    for write in (
        lambda: torch.mul(a, a, out=a[0]),
        lambda: torch.mul(a, 2, out=a[0]),
        lambda: a[0].add_(a),
    ):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            write()
    return a


def other_data_than_grad(w: Wrap) -> Any:
    p = w(torch.ones(3)).requires_grad_()
    (p * p).sum().backward()
    p.data = torch.zeros(5, dtype=torch.float64)
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got int"):
        p.data = 3
    plain = lazyeng.unwrap(p)
    return plain, plain.grad, p, p.grad


def copies_of_parameters(w: Wrap) -> Any:
    module = w(torch.nn.Linear(2, 2))
    module(w(torch.ones(1, 2))).sum().backward()
    module.weight.note = "not copied"
    copied = copy.deepcopy({"a": module, "b": module.weight})
    weight = copied["b"]
    assert weight is copied["a"].weight and isinstance(weight, torch.nn.Parameter)
    return weight, weight.grad, hasattr(weight, "note"), copied["a"].bias.requires_grad


def copies_of_results(w: Wrap) -> Any:
    words = []
    for copy_of in (copy.deepcopy, lambda x: torch.save(x, io.BytesIO()), pickle.dumps):
        try:
            copy_of(w(torch.ones(2)).requires_grad_() * 2)
        except RuntimeError as error:
            words.append(str(error).splitlines()[0])
    return words


def load_onto_meta(w: Wrap) -> Any:
    file = io.BytesIO()
    torch.save({"a": w(torch.ones(2)), "p": torch.nn.Parameter(w(torch.ones(3)))}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="meta")
    return [(t.is_meta, tuple(t.shape), t.requires_grad) for t in loaded.values()]


def tensor_classes(w: Wrap) -> Any:
    x = w(torch.ones(3)).requires_grad_()
    y = (x * 2).as_subclass(Scaled)
    total = (y * y + w(torch.ones(3))).sum()
    total.backward()
    z = torch.zeros(3).as_subclass(Scaled)
    later = z + 0
    z.add_(1)
    later.mul_(5).view(3)[0] = 4
    kinds = [type(t) is Scaled for t in (y, total, z + w(torch.ones(3)), z, later)]
    return kinds, total.tolist(), x.grad, z.tolist(), later.tolist()


PROGRAMS = (
    take_storage_of_a_tensor, take_a_storage, plain_takes_storage_of_lazy, mark_dirty,
    mark_dirty_of_a_large_one, outputs_that_overlap_inputs, other_data_than_grad,
    copies_of_parameters, copies_of_results, load_onto_meta, tensor_classes,
)  # fmt: skip


def look(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return found.tolist(), found.dtype, tuple(found.shape), found.requires_grad
    return [look(item) for item in found] if isinstance(found, (list, tuple)) else found


def same(w: Any) -> Any:
    return w


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
class TestOddPrograms:
    def run(self, program: Callable[[Wrap], Any], w: Wrap) -> Any:
        torch.manual_seed(0)
        return look(program(w))

    def test_wrapped(self, program):
        assert self.run(program, lazyeng.wrap) == self.run(program, same)

    def test_in_a_block(self, program, mode):
        expected = self.run(program, same)
        with lazyeng.lazy(mode):
            assert self.run(program, same) == expected

    def test_both(self, program, mode):
        expected = self.run(program, same)
        with lazyeng.lazy(mode):
            assert self.run(program, lazyeng.wrap) == expected
