"""torch.compile and lazy tensors: a compiled function takes them, in blocks and outside."""

import collections
import contextlib
import importlib
import shutil
import sys
import warnings

import pytest
import torch
from torch import nn

import lazyeng
from lazyeng import LazyError, LazyTensor, lazy, unwrap, wrap
from tests.support.processes import printed_by

HAS_COMPILER = shutil.which("g++") is not None
BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param(
        "inductor", marks=pytest.mark.skipif(not HAS_COMPILER, reason="needs a C++ compiler")
    ),
]

pytestmark = [
    pytest.mark.limit(300),
    pytest.mark.skipif(sys.platform != "linux", reason="compiles with g++"),
]


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield request.param
    torch._dynamo.reset()


def rows(x, w):
    return (torch.relu(x @ w) * 2).sum(1)


@pytest.mark.parametrize("block", [contextlib.nullcontext, lazy, lambda: lazy("deferred")])
def test_a_compiled_function_takes_lazy_and_plain_tensors(backend, block):
    x, w = torch.randn(8, 6), torch.randn(6, 5)
    compiled, expected = torch.compile(rows, backend=backend, fullgraph=True), rows(x, w)
    with block():
        results = [compiled(wrap(x) * 1, w), compiled(x, wrap(w)), compiled(x * 1, w * 1)]
        plain = compiled(x, w)
        kinds = [type(y) for y in (*results, plain)]
    lazily = LazyTensor if block is not contextlib.nullcontext else torch.Tensor
    assert kinds == [LazyTensor, LazyTensor, lazily, lazily]
    for y in (*results, plain):
        torch.testing.assert_close(unwrap(y), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # compiled once for all


def test_compiled_outside_and_called_in_a_block(backend):
    x, w = torch.randn(8, 6), torch.randn(6, 5)
    compiled = torch.compile(rows, backend=backend)
    torch.testing.assert_close(compiled(x, w), rows(x, w))
    with lazy():
        y = compiled(x * 2, w) + 1
    torch.testing.assert_close(unwrap(y), rows(x * 2, w) + 1)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))


def train(side, block, backend):
    """Losses, parameters and buffers; each step reads nothing."""
    torch.manual_seed(0)
    net = side(model())
    compiled = torch.compile(net, backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    with block():
        for _ in range(3):
            loss = compiled(side(torch.randn(8, 6))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [unwrap(x.detach()) for x in (*losses, *net.parameters(), *net.buffers())]


WAYS = {
    "wrapped": (wrap, contextlib.nullcontext),
    "block": (lambda module: module, lazy),
    "deferred": (lambda module: module, lambda: lazy("deferred")),
    "wrapped, in a block": (wrap, lazy),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_a_compiled_module(backend, way):
    expected = train(lambda module: module, contextlib.nullcontext, backend)
    torch._dynamo.reset()
    found = train(*WAYS[way], backend)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_of_lazy_arguments_are_lazy(backend):
    w = wrap(torch.ones(3)).requires_grad_()
    held = wrap(torch.full((3,), 2.0)).requires_grad_()
    compiled = torch.compile(lambda a, b: (a * b * held).cos(), backend=backend)
    compiled(w * 2, torch.ones(3)).sum().backward()
    a, b = torch.ones(3).requires_grad_(), torch.full((3,), 2.0).requires_grad_()
    (a * 2 * b).cos().sum().backward()
    for lazily, eagerly in ((w, a), (held, b)):
        torch.testing.assert_close(unwrap(lazily.grad), eagerly.grad)


def test_writes_of_a_compiled_function_are_seen(backend):
    """What is recorded before reads the values of before, and what comes after the new ones."""

    def advance(counter, x):
        counter.add_(1)
        return counter * x

    compiled = torch.compile(advance, backend=backend)
    with lazy("deferred"):
        counter, plain = wrap(torch.zeros(3)), torch.zeros(3)
        before = (counter + 0, plain + 0)
        found = [compiled(counter, torch.ones(3)), compiled(plain, torch.ones(3))]
        after = (counter + 0, plain + 0)
    assert [y.tolist() for y in before] == [[0.0] * 3] * 2
    assert [y.tolist() for y in (*found, *after)] == [[1.0] * 3] * 4


# --- arguments that are changed


def grown_by(write):
    def program(backend):
        leaf = torch.ones(3).requires_grad_()
        x = leaf * 2
        torch.compile(write, backend=backend)(x)
        x.sum().backward()
        return leaf.grad, x

    return program


def view_written(backend):
    leaf = torch.ones(3).requires_grad_()
    x = leaf * 2
    y = torch.compile(lambda x: x.view(3, 1), backend=backend)(x)
    y.mul_(3)
    x.sum().backward()
    return leaf.grad, x, y


def saved_value_written(backend):
    leaf = torch.ones(3).requires_grad_()
    x = leaf * 1
    y = (x * x).sum()
    torch.compile(lambda x: x.add_(1), backend=backend)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    return (x,)


def parameter_added(backend):  # (of a product torch's own gradient fails with some backends)
    x, w = torch.ones(3) * 1, torch.full((3,), 2.0, requires_grad=True)
    y = torch.compile(lambda x, w: x.add_(w * w), backend=backend)(x, w)
    (x * y).sum().backward()
    return w.grad, x, y


def views_of_an_argument(backend):
    x = torch.ones(2, 2) * 3
    row, turned, new = torch.compile(lambda x: (x[0], x.t(), x * 2), backend=backend)(x)
    row.add_(1)
    return x, turned, new


def lists_and_dicts(backend):
    def fill(x, parts, named):
        parts.append(x)
        parts[0] = x + 1
        named["a"][0] = x * 2
        named["b"] = parts.pop()
        return named

    x, parts, named = torch.ones(1), [torch.zeros(1)], {"a": [torch.zeros(1)]}
    assert torch.compile(fill, backend=backend)(x, parts, named=named) is named
    return *parts, named["a"][0], named["b"]


def queue(backend):
    def note(x, seen):
        seen.append(x)
        seen.append(x + 1)

    seen = collections.deque([torch.zeros(1)])
    torch.compile(note, backend=backend)(torch.ones(1) * 2, seen)
    return tuple(seen)


def returned_itself(backend):
    x = torch.ones(2) * 2
    assert torch.compile(lambda x: x, backend=backend)(x) is x
    return (x,)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


def reversed_gradient(backend):
    leaf = torch.ones(2, requires_grad=True)
    torch.compile(lambda x: Reversed.apply(x), backend=backend)(leaf * 1).sum().backward()
    return (leaf.grad,)


def parameter_written_without_grad(backend):
    def decay(p, q):
        with torch.no_grad():
            p.mul_(0.5)
            q.lerp_(p, 0.5)

    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(2))
    torch.compile(decay, backend=backend)(p, q)
    return p, q


def rows_written(backend):
    leaf = torch.ones(2, 2, requires_grad=True)
    h = leaf * 1
    torch.compile(lambda v: v.mul_(2), backend=backend)(h[0])
    h.sum().backward()
    return leaf.grad, h


def one_tensor_twice(backend):
    def both(a, b):
        a.mul_(2)
        return b * 3

    leaf = torch.ones(3, requires_grad=True)
    h = leaf * 1
    y = torch.compile(both, backend=backend)(h, h)
    y.sum().backward()
    return leaf.grad, h, y


def related(write, arguments):
    """Arguments that share memory: what one is written to, the others and their gradients see."""

    def program(backend):
        leaf = torch.arange(6.0).reshape(2, 3).requires_grad_()
        factor = torch.full((), 2.0, requires_grad=True)
        h, w = leaf * 1, factor * 1
        y = torch.compile(write, backend=backend)(*arguments(h), w)
        (y.sum() + (h * h).sum()).backward()
        return leaf.grad, factor.grad, y, h, torch.tensor(h._version)

    return program


def write_second(a, b, w):  # (of products torch's own gradient fails with some backends)
    b.add_(w * w)
    return (a * w).sum() + b.sum() * 3


def one_list_twice(backend):
    def append(a, b, x):
        a.append(x)
        b.append(x + 1)

    items = [torch.zeros(1) * 1]
    torch.compile(append, backend=backend)(items, items, torch.ones(1) * 2)
    return tuple(items)


class Mapping(dict):
    pass


def mapping_that_holds_itself(backend):
    held = Mapping(x=torch.ones(2))
    held["me"] = held
    return (torch.compile(lambda x, held: x + 1, backend=backend)(torch.ones(2) * 1, held),)


CHANGES = [
    grown_by(lambda x: x.mul_(3)), view_written, saved_value_written, parameter_added,
    views_of_an_argument, lists_and_dicts, queue, returned_itself, reversed_gradient, rows_written,
    parameter_written_without_grad, one_tensor_twice, one_list_twice, mapping_that_holds_itself,
    related(write_second, lambda h: (h, h[0])), related(write_second, lambda h: (h[0], h)),
    related(write_second, lambda h: (h[0], h[:, 1:])),
    related(write_second, lambda h: (h[1], h.t())),
]  # fmt: skip


@pytest.mark.parametrize("program", CHANGES)
def test_what_a_compiled_function_does_to_its_arguments(backend, program, mode):
    expected = program(backend)
    torch._dynamo.reset()
    with lazy(mode):
        found = program(backend)
    assert [y.tolist() for y in found] == [y.tolist() for y in expected]


def test_an_exception_of_a_compiled_function_is_not_masked(backend, mode):
    def fail(p):
        with torch.no_grad():
            p.mul_(0.5)
        raise KeyError("mine")

    p = wrap(torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(KeyError, match="mine"), lazy(mode):
        torch.compile(fail, backend=backend)(p)
    assert p.tolist() == [0.5, 0.5]


def test_exceptions_keep_their_type(backend):
    invert = torch.compile(lambda a: torch.linalg.inv(a) * 2, backend=backend)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        invert(wrap(torch.zeros(2, 2)))
    double = torch.compile(lambda a: a * 2, backend=backend)
    failed = wrap(torch.ones(3))[torch.tensor([9])]
    with pytest.raises(IndexError, match="index 9 is out of bounds") as caught:
        double(failed)
    assert isinstance(caught.value, LazyError)


def test_writes_to_views_of_a_plain_tensor_count_once(backend):
    def program():
        buffer, w = torch.ones(6), torch.ones(2, requires_grad=True)
        a, b = buffer[0:2], buffer[2:4]

        @torch.compile(backend=backend)
        def f(a, b, w):
            a.mul_(2)
            return (a * w).sum() + b.sum()

        f(a, b, w).backward()
        return unwrap(w.grad).tolist(), buffer.tolist()

    expected = program()
    with lazy():
        assert program() == expected  # (the backward pass took them for later changes)


def test_graph_breaks(backend):
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return (y + 1).sum().item() + y

    with lazy():
        y = torch.compile(broken, backend=backend)(torch.ones(3) * 2)
    assert y.tolist() == [19.0] * 3


def test_backward_within_a_compiled_function(backend):
    def step(p, x):
        loss = (p * x).sum()
        loss.backward()
        return loss

    for side in (lambda x: x, wrap):
        p = side(torch.ones(3)).requires_grad_()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss = torch.compile(step, backend=backend)(p, torch.ones(3))
        assert not any("lazyeng" in str(warning.message) for warning in caught)
        assert (float(loss), p.grad.tolist()) == (3.0, [1.0] * 3)


def test_cond(backend):
    """It compiles its branches, with a backend of its own."""
    if backend != "eager":
        pytest.skip("once is enough")
    x = wrap(torch.ones(2))
    for number, expected in ((3, 2.0), (1, 0.0)):
        for operand in (x, torch.ones(2)):
            taken = torch.cond(
                wrap(torch.tensor(number)) > 2, lambda a: a + 1, lambda a: a - 1, (operand,)
            )
            assert taken.tolist() == [expected] * 2
        with lazy("deferred"):
            predicate = torch.tensor(number) > 2
            taken = torch.cond(predicate, lambda a: a + 1, lambda a: a - 1, (torch.ones(2) * 1,))
        assert taken.tolist() == [expected] * 2


def test_who_asks_for_the_compiler_need_not_import_it(backend):
    """Libraries look with find_spec whether it is there."""
    if backend != "eager":
        pytest.skip("once is enough")
    program = """if True:
        import importlib.util, lazyeng, torch
        importlib.util.find_spec("torch._dynamo")
        double = torch.compile(lambda x: x * 2, backend="eager")
        assert double(lazyeng.wrap(torch.ones(2)) + 1).is_ready()
        """
    printed_by(program)


def test_import_of_lazyeng_leaves_the_compiler_alone(backend):
    """It takes seconds to import."""
    if backend != "eager":
        pytest.skip("once is enough")
    program = "import sys, lazyeng; sys.exit('torch._dynamo' in sys.modules)"
    printed_by(program, timeout=60)
    assert lazyeng.__name__ == "lazyeng"


def gradient_penalty(function):
    x = torch.tensor([[0.5, 1.0], [2.0, 3.0]], requires_grad=True)
    p = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
    loss = (function(x) * p).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + gradient.square().sum()).backward()
    return x.grad, p.grad


@pytest.mark.parametrize("how", ["compiled", "scan"])
def test_a_gradient_of_a_gradient(backend, how, mode):
    if backend != "eager":
        pytest.skip("AOTAutograd has no second derivatives")
    scan = importlib.import_module("torch._higher_order_ops.scan").scan
    function = {
        "compiled": torch.compile(lambda x: x.cos() * x, backend=backend),
        "scan": lambda x: scan(lambda c, i: (c * i, c * i.cos()), torch.ones(2), x, dim=0)[1],
    }[how]
    expected = gradient_penalty(function)
    with lazyeng.lazy(mode):
        got = gradient_penalty(function)
    torch.testing.assert_close([unwrap(g) for g in got], list(expected))
