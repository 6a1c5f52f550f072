"""Programs that a hostile user found to differ from eager, each against eager."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import lazyeng
from tests.support.outcomes import same, values

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


def words_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (RuntimeError, TypeError) as error:
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return kind.__name__, str(error).splitlines()[0]


def inference_tensors_outside(w: Wrap) -> Any:
    with torch.inference_mode():
        x = w(torch.ones(4)) + 1
    y = w(torch.ones(4))
    with torch.inference_mode():
        of_normal = [y[1:], y.view(2, 2), y.detach()]
    views = [
        x[1:], x.view(2, 2), x.split(2)[0], x.expand(2, 4), x.data, x[1:][1:], x.unbind()[0],
        torch.view_as_complex(x.view(2, 2)),
    ]  # fmt: skip
    found = [view.is_inference() for view in [*views, *of_normal, x.detach(), x.clone()]]
    found += [words_of(lambda view=view: view.add_(1)) for view in [*views, *of_normal]]
    found += [words_of(x.detach().mul_(2).tolist), words_of(lambda: x[1:]._version)]
    found.append(words_of(lambda: x[1:].requires_grad_()))
    return found, x, y


def legacy_types(w: Wrap) -> Any:
    tensors = [w(torch.ones(2)), w(torch.ones(2)).double(), w(torch.ones(2)) > 0]
    tensors.append(torch.nn.Parameter(w(torch.ones(2))))
    kinds = torch.FloatTensor, torch.DoubleTensor, torch.BoolTensor, torch.cuda.FloatTensor
    return [[isinstance(x, kind) for kind in kinds] for x in tensors], isinstance(3, kinds)


def out_resized_before_it_raises(w: Wrap) -> Any:
    found = []
    a, b = w(torch.ones(3, 3).tril()), w(torch.ones(3, 1))
    for call in (
        lambda out: torch.linalg.solve_triangular(a, b, upper=False, out=out),
        lambda out: torch.var(a, 1, out=out),
        lambda out: torch.unsqueeze_copy(b, 0, out=out),
        lambda out: torch.multinomial(w(torch.ones(2, 2, 2)), 2, out=out),
    ):
        for dtype in (torch.bool, torch.int8, torch.float32):
            out = w(torch.empty(0, dtype=dtype))
            found.append((words_of(lambda call=call, out=out: call(out) is out), tuple(out.shape)))
    return found


def classes_of_views(w: Wrap) -> Any:
    a = w(torch.arange(1.0, 4.0)).requires_grad_()
    b = a * 1
    c = b.exp()
    b.as_subclass(Scaled).mul_(2)  # reaches b, and what autograd knows of it
    (b * b + c).sum().backward()
    e = a * 1
    square = e * e
    e.as_subclass(Scaled).add_(1)
    refused = words_of(lambda: square.sum().backward())
    with torch.no_grad():
        part = a.as_subclass(Scaled)[1:]
        part.mul_(3)
    d = w(torch.ones(3))
    d.as_subclass(Scaled)[0] = 5
    return b, a.grad, refused, a, d, d._version, words_of(lambda: a.as_subclass(Scaled).add_(1))


def settings_that_change_later(w: Wrap) -> Any:
    counts, x = w(torch.arange(3)), w(torch.ones(3))
    try:
        torch.set_default_dtype(torch.float64)
        means = [counts.sigmoid(), counts / 2, counts * 1.5]
        torch.set_default_dtype(torch.float16)
        means += [counts.sigmoid(), counts * 1j]
        torch.use_deterministic_algorithms(True)
        fresh = [torch.empty_like(counts), x.new_empty(3).isnan()]
        index, source = w(torch.tensor([1, 1])), w(torch.ones(2, dtype=torch.float32))
        refused = [words_of(lambda: x.put_(index, source)) for _ in range(2)]
        x.put_(index, source, accumulate=True)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
    x.put_(index[:1], source[:1] * 5)
    return means, fresh, refused, x


def tracers(w: Wrap) -> Any:
    x, y = w(torch.arange(3.0)), w(torch.ones(3))
    value, tangent_of = torch.func.linearize(lambda x: x.sin() * y, x)
    traced = make_fx(lambda x: x.exp() + 1)(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = x + torch.ones(3)
    return value, tangent_of(y), traced.code, traced(y), isinstance(fake, FakeTensor)


def products_of_nested_tensors(w: Wrap) -> Any:
    torch.manual_seed(0)
    layer = w(torch.nn.Linear(3, 2))
    rows = [torch.ones(2, 3), torch.ones(4, 3) * 2]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.strided).requires_grad_()
    result = layer(nested)
    padded = torch.nested.to_padded_tensor(result, 0.0)
    padded.sum().backward()
    square = torch.matmul(nested, nested.transpose(1, 2))
    return padded, layer.weight.grad, list(square.unbind())


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def detached_under_a_mode(w: Wrap) -> Any:
    x = w(torch.ones(3, 3)).requires_grad_()
    with Seen() as seen:
        y = (x @ x).relu().sum()
        y.backward()
        x.data.add_(1)
    return seen.names, x.grad, x


PROGRAMS = (
    take_storage_of_a_tensor, take_a_storage, plain_takes_storage_of_lazy, mark_dirty,
    mark_dirty_of_a_large_one, outputs_that_overlap_inputs, other_data_than_grad,
    copies_of_parameters, copies_of_results, load_onto_meta, tensor_classes,
    inference_tensors_outside, legacy_types, out_resized_before_it_raises, classes_of_views,
    settings_that_change_later, tracers, products_of_nested_tensors, detached_under_a_mode,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
class TestOddPrograms:
    def run(self, program: Callable[[Wrap], Any], w: Wrap) -> Any:
        torch.manual_seed(0)
        return values(program(w))

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
