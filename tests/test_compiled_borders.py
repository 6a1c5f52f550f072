"""What autograd, torch.func and failures know of what crosses the border of a compiled function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import lazyeng
from lazyeng import lazy, wrap

Tensor = torch.Tensor
BACKENDS = ["eager", "aot_eager"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def in_block(_name: str) -> contextlib.AbstractContextManager[object]:
    return lazy() if _name == "block" else contextlib.nullcontext()


@pytest.fixture(params=["wrapped", "block"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


def given(way: str, tensor: Tensor) -> Tensor:
    return wrap(tensor) if way == "wrapped" else tensor


# ---- what is written after a graph has saved it


def argument_written(compiled: Callable[..., Callable[..., Tensor]], leaf: Tensor) -> None:
    h = leaf * 1
    y = compiled(lambda x: (x * x).sum())(h)
    h.add_(10)
    y.backward()


def result_written(compiled: Callable[..., Callable[..., Tensor]], leaf: Tensor) -> None:
    y = compiled(lambda x: x.exp())(leaf * 1)
    y.add_(1)
    y.sum().backward()


def closure_written(compiled: Callable[..., Callable[..., Tensor]], leaf: Tensor) -> None:
    factor = leaf.detach() * 1
    y = compiled(lambda x: (x * factor).sum())(leaf * 1)
    factor.add_(10)
    y.backward()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [argument_written, result_written, closure_written])
def test_a_saved_tensor_that_was_written_is_refused(program, backend, way):
    def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(function, backend=backend)

    plain = torch.tensor([1.0, 2.0]).requires_grad_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(compiled, plain)
    with (
        pytest.raises(RuntimeError, match="modified by an inplace operation"), in_block(way),
    ):  # fmt: skip
        program(compiled, given(way, torch.tensor([1.0, 2.0])).requires_grad_())


@pytest.mark.parametrize("backend", BACKENDS)
def test_versions_move_as_in_torch(backend, way):
    def program(make: Callable[[Tensor], Tensor]) -> tuple[int, int, list[float]]:
        leaf = make(torch.ones(2)).requires_grad_()
        h = leaf * 1
        y = torch.compile(lambda x: x.mul_(3) + 1, backend=backend)(h)
        before = h._version
        h.add_(1)
        (y.sum() + (h * h).sum()).backward()
        return before, h._version, leaf.grad.tolist()

    expected = program(lambda x: x)
    torch._dynamo.reset()
    with in_block(way):
        assert program(lambda x: given(way, x)) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_of_a_plain_argument_that_is_written(backend):
    def program() -> list[float]:
        v = torch.compile(lambda x: x[1:], backend=backend)(x)
        v.mul_(3)
        return torch.autograd.grad((x * x).sum(), leaf)[0].tolist()

    leaf = torch.arange(3.0).requires_grad_()
    x = leaf * 2
    expected = program()
    torch._dynamo.reset()
    x = leaf * 2
    with lazy():
        assert program() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_conjugated_arguments(backend, way):
    def program(make: Callable[[Tensor], Tensor]) -> list[object]:
        conj = torch.compile(lambda x: x.conj(), backend=backend)
        parts = torch.compile(lambda x: (x.imag * 1, x[0]), backend=backend)
        x = make(torch.tensor([1 + 1j]))
        return [conj(x).tolist(), conj(x.conj()).tolist(), [p.tolist() for p in parts(x.conj())]]

    expected = program(lambda x: x)
    torch._dynamo.reset()
    with in_block(way):
        assert program(lambda x: given(way, x)) == expected


# ---- torch.func, and forward mode


def tangent(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
        assert found is not None
        return found * 1


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones(()))[0],
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(f)(x),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x])),
    "tangent": tangent,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_compiled_functions(name, way):
    def program(x: Tensor) -> list[float]:
        return TRANSFORMS[name](torch.compile(lambda x: x.sin().sum(), backend="eager"), x).tolist()

    expected = program(torch.arange(3.0))
    torch._dynamo.reset()
    with in_block(way):
        assert program(given(way, torch.arange(3.0))) == expected


# ---- what has failed


def failing(module: torch.nn.Linear, mode: str, read: Callable[[], Tensor]) -> None:
    """The block, which could not write the parameter, raises as well."""
    with (
        pytest.raises(torch.linalg.LinAlgError) as raised, lazy(mode), torch.no_grad(),
    ):  # fmt: skip
        module.weight.copy_(torch.linalg.cholesky(-torch.eye(2)))
        try:
            read()
        except torch.linalg.LinAlgError:
            raise
        except Exception as error:
            raise AssertionError from error
        raise AssertionError("it has read the old values")
    assert isinstance(raised.value, lazyeng.LazyError)


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("compiled_before", [False, True])
def test_what_a_block_failed_to_write(compiled_before, mode):
    module = torch.nn.Linear(2, 2, bias=False)
    twice = torch.compile(lambda x: x * 2, backend="eager")
    compiled = torch.compile(module, backend="eager")
    x = torch.ones(1, 2)
    if compiled_before:
        twice(module.weight), compiled(x)
    failing(module, mode, lambda: twice(module.weight))
    failing(module, mode, lambda: compiled(x))


def test_a_failed_tensor_that_the_compiler_finds():
    """The compiler wraps what it meets in an error of its own."""
    bad = torch.linalg.cholesky(wrap(-torch.eye(2)))
    compiled = torch.compile(lambda x: x + bad, backend="eager")
    for _ in range(2):  # (while it compiles, and later)
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(torch.ones(2, 2))


# ---- fake tensors on the device


def test_moves_to_the_device_in_a_traced_function():
    """The inside of a fake tensor has the device's keys, and is not lazy."""

    def program(x: Tensor) -> Tensor:
        return x.to("lazyeng") * 2

    x = torch.ones(2)
    assert torch.compile(program, backend="aot_eager")(x).tolist() == [2.0, 2.0]
    assert make_fx(program, tracing_mode="fake")(x)(x).tolist() == [2.0, 2.0]
    with FakeTensorMode():
        fake = torch.ones(2, device="lazyeng")
        assert fake.detach().device.type == "lazyeng"
        assert torch.nn.Parameter(fake).requires_grad


# ---- gradients that the compiler adds up, and optimizers


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 1))


def train(net: nn.Module, backward: Callable[[Tensor], None], step: Callable[[], None]) -> None:
    x = torch.linspace(-1, 1, 20).view(4, 5)
    for accumulates in (False, True, False):
        if not accumulates:
            for p in net.parameters():
                p.grad = None
        backward(net(x).square().sum())
        step()


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_autograd_adds_to_the_gradients_of_leaves(backend, way):
    def backward(loss: Tensor) -> None:
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend=backend)):
            loss.backward()

    expected, net = network(), network()
    train(expected, lambda loss: loss.backward(), lambda: None)
    net = wrap(net) if way == "wrapped" else net
    with in_block(way):
        train(net, backward, lambda: None)
    for p, q in zip(net.parameters(), expected.parameters(), strict=True):
        assert p.grad is not None
        assert isinstance(p.grad, lazyeng.LazyTensor) or way == "block"
        torch.testing.assert_close(lazyeng.unwrap(p.grad), q.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_a_compiled_function_reads_and_sets(backend, way):
    def decay(x: Tensor) -> Tensor | None:
        before = x.grad
        x.grad = x.detach() * 2 if before is None else before + x
        return before

    expected = torch.tensor([1.0, 2.0], requires_grad=True)
    leaf = given(way, torch.tensor([1.0, 2.0])).requires_grad_()
    for _ in range(3):
        before = leaf.grad
        with torch.no_grad(), in_block(way):
            decay(expected)
            returned = torch.compile(decay, backend=backend)(leaf)
        assert returned is before or way == "block"
        assert leaf.grad is not None and expected.grad is not None
        assert leaf.grad.tolist() == expected.grad.tolist()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "SGD"])
def test_a_compiled_step_of_an_optimizer(name, way):
    def trained(net: nn.Module) -> nn.Module:
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1)
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        train(net, lambda loss: loss.backward(), step)
        return net

    expected = trained(network())
    torch._dynamo.reset()
    with in_block(way):
        net = trained(wrap(network()) if way == "wrapped" else network())
    for p, q in zip(net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(lazyeng.unwrap(p), q, rtol=0, atol=0)


class ManyMethods(nn.Module):
    """Of its parameter: some that lazy tensors have of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        y = x @ w.abs().t() + w.sum() * w.data.mean() + w.shape[0] + w.T.pow(2).mean(0)
        return (
            y + w.detach().norm() + w[0, 1] + w.view(-1)[3] + w.clamp(min=0).mul(w).sum(1)
        ).relu()


@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_of_wrapped_parameters_break_no_graph(backend):
    x = torch.linspace(-1, 1, 8).view(2, 4)
    plain, wrapped = ManyMethods(), wrap(ManyMethods())
    plain(x).sum().backward()
    result = torch.compile(wrapped, backend=backend, fullgraph=True)(x)
    result.sum().backward()
    torch.testing.assert_close(lazyeng.unwrap(result), plain(x))
    torch.testing.assert_close(lazyeng.unwrap(wrapped.weight.grad), plain.weight.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_network_with_statistics_is_one_graph(backend, way):
    def network() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)]
        return nn.Sequential(*layers)

    x = torch.linspace(-1, 1, 384).view(2, 3, 8, 8)
    plain = network()
    plain(x).square().sum().backward()
    with in_block(way):  # (also: made in a block)
        net = network()
    compiled = torch.compile(
        wrap(net) if way == "wrapped" else net, backend=backend, fullgraph=True
    )
    compiled(x).square().sum().backward()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(lazyeng.unwrap(ours.grad), theirs.grad)
    for ours, theirs in zip(net.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(lazyeng.unwrap(ours), theirs)


def test_marks_for_the_compiler_cross(way):
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: x.relu() + 1, backend=backend)
    with in_block(way):
        for n in (4, 5, 6):
            whole = given(way, torch.ones(2, n))
            for x in (whole, whole[0], whole[1:]):
                torch._dynamo.mark_dynamic(x, x.dim() - 1)
                assert compiled(x).tolist() == (torch.ones(x.shape) + 1).tolist()
    assert len(graphs) == 3  # of two rows, none, and one; of no n alone


# ---- results that have to do with each other

Program = Callable[[Callable[..., Callable[..., Tensor]], Tensor], object]


def doubled_and(results: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
    return lambda x: results(x * 2)


def two_of_one(compiled, x):
    a, b = compiled(doubled_and(lambda y: (y, y)))(x)
    a.mul_(5)
    b.sum().backward()
    return a is b


def a_result_and_its_row(compiled, x):
    a, row = compiled(doubled_and(lambda y: (y, y[0])))(x)
    row.mul_(3)
    a.sum().backward()
    return row._is_view(), row._base is a


def two_views(compiled, x):
    a, b = compiled(doubled_and(lambda y: (y.view(-1), y.t())))(x)
    a.mul_(5)
    b.sum().backward()


def real_part_of_an_argument(compiled, x):
    y = torch.complex(x * 2, x)
    compiled(lambda y: y.real)(y).mul_(3)
    torch.view_as_real(y).sum().backward()


def named_results(compiled, x):
    found = compiled(doubled_and(lambda h: {"hidden": h, "logits": h}))(x)
    found["logits"].mul_(3)
    found["hidden"].sum().backward()


def appended_and_returned(compiled, x):
    def function(x, kept):
        y = x * 2
        kept.append(y)
        return y

    kept: list[Tensor] = []
    result = compiled(function)(x, kept)
    result.mul_(5)
    kept[0].sum().backward()
    return kept[0] is result


def piece_written(compiled, x):
    first, second = compiled(lambda x: (x * 2).chunk(2))(x)
    kept = first.exp()
    try:
        second.mul_(2)
    except RuntimeError as error:
        return str(error)[:7], str(error)[-60:]  # (which output of what differs)
    return (kept.sum() + second.sum()).backward()


def loss_by_hidden(compiled, x):
    def net(x):
        h = x * 2
        torch._dynamo.graph_break()
        return h.pow(2).sum(), h

    loss, h = compiled(net)(x)
    told: list[list[list[float]]] = []
    h.retain_grad()
    h.register_hook(lambda grad: told.append(grad.tolist()))
    (grad,) = torch.autograd.grad(loss, h, retain_graph=True)
    (loss + (h * 3).sum()).backward()
    return grad.tolist(), told, h.grad.tolist()


def second_derivative_by_hidden(compiled, x):
    loss, h = compiled(doubled_and(lambda h: (h.pow(3).sum(), h)))(x)
    try:
        (grad,) = torch.autograd.grad(loss, h, create_graph=True)
        (grad.sum() * 2).backward()
    except RuntimeError as error:  # (AOTAutograd has no second derivatives)
        return str(error)[:30]
    return grad.tolist()


def loss_by_a_view(compiled, x):
    def net(x):
        h = x * 2
        flat = h.view(-1)
        return h, flat, (flat * torch.arange(4.0)).pow(2).sum()

    h, flat, loss = compiled(net)(x)
    flat.retain_grad()
    flat.register_hook(lambda grad: grad * 100)
    (grad,) = torch.autograd.grad(loss, flat, retain_graph=True)
    loss.backward()
    return grad.tolist(), flat.grad.tolist(), h.shape


def loss_by_a_written_argument(compiled, x):
    h = x * 1

    def net(h):
        h.mul_(2)
        return (h * h).sum()

    loss = compiled(net)(h)
    h.retain_grad()
    h.register_hook(lambda grad: grad * 100)
    (grad,) = torch.autograd.grad(loss, h, retain_graph=True)
    loss.backward()
    return grad.tolist(), h.grad.tolist()


def grad_mode_of_its_own(compiled, x):
    def net(h):
        with torch.enable_grad():
            h.mul_(3)
            return (h * h).sum()

    h = x * 1
    with torch.no_grad():
        loss = compiled(net)(h)
    (loss + h.sum()).backward()
    return loss.requires_grad


def view_under_no_grad(compiled, x):
    with torch.no_grad():
        return compiled(lambda h: h[0])(x * 1).requires_grad


def marks_of_its_own(compiled, x):
    def net(x):
        h = x * 2
        h.retain_grad()
        h.label = "hidden"
        torch._dynamo.graph_break()
        return h

    h = compiled(net)(x)
    h.sum().backward()
    return h.label, h.grad is not None


def a_new_list_twice(compiled, x):
    def net(x):
        new = [x * 2]
        return new, {"again": new}

    first, second = compiled(net)(x)
    return first is second["again"]


def one_piece_written(compiled, x):
    piece = compiled(lambda x: (x * 2).chunk(2)[1])(x)
    try:
        piece.mul_(2)
    except RuntimeError as error:
        return str(error)[-60:]
    return piece.sum().backward()


def part_of_a_parameter_written(compiled, x):
    weight = torch.nn.Parameter(torch.ones(3))
    part = compiled(lambda x: weight[:2])(x)
    try:
        part.mul_(2)
    except RuntimeError as error:
        return str(error), weight.tolist()
    return weight.tolist()


def values_of_a_sparse_one(compiled, x):
    def net(x):
        sparse = x.to_sparse()
        return sparse, sparse.coalesce().values()

    sparse, values = compiled(net)(x)
    return sparse.layout == torch.sparse_coo, values.tolist()


SHARING: list[Program] = [
    loss_by_a_view, loss_by_a_written_argument, grad_mode_of_its_own, view_under_no_grad,
    marks_of_its_own, a_new_list_twice, one_piece_written, part_of_a_parameter_written,
    values_of_a_sparse_one,
    two_of_one, a_result_and_its_row, two_views, real_part_of_an_argument, named_results,
    appended_and_returned, piece_written, loss_by_hidden, second_derivative_by_hidden,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", SHARING, ids=lambda f: f.__name__)
def test_results_share_memory_and_gradients_as_in_torch(program, backend, way):
    def run(leaf: Tensor, block: contextlib.AbstractContextManager[object]) -> object:
        torch._dynamo.reset()
        with block:
            try:
                told = program(lambda function: torch.compile(function, backend=backend), leaf)
            except RuntimeError as error:  # (AOTAutograd's graphs have all results at once)
                told = str(error)
            return told, leaf.grad.tolist() if leaf.grad is not None else None

    expected = run(torch.rand(2, 2).fill_(1.5).requires_grad_(), contextlib.nullcontext())
    leaf = given(way, torch.rand(2, 2).fill_(1.5)).requires_grad_()
    assert run(leaf, in_block(way)) == expected


SETTINGS = {"n": 1, "sizes": [2, 3]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_no_tensor_comes_back_as_it_is(backend, way):
    compiled = torch.compile(lambda x: (SETTINGS, x.shape, {"of": x.shape}, x * 2), backend=backend)
    with in_block(way):
        settings, shape, within, doubled = compiled(given(way, torch.ones(2, 3)))
        assert settings is SETTINGS
        assert type(shape) is type(within["of"]) is torch.Size
        assert doubled.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_many_results_pass_one_hook(backend, way, monkeypatch):
    """Not one for each result, over the gradients of all."""
    from lazyeng.torch_patches import _crossing

    passed: list[int] = []
    monkeypatch.setattr(
        _crossing, "_made_plain", lambda grads: passed.append(len(grads)) or tuple(grads)
    )
    kept = torch.ones(2).requires_grad_() * 1
    compiled = torch.compile(lambda x: (*(x * i for i in range(20)), kept), backend=backend)
    x = given(way, torch.ones(2)).requires_grad_()
    with in_block(way):
        for _ in range(3):  # (the node of `kept` lives on)
            torch.stack(compiled(x)).sum().backward(retain_graph=True)
    assert passed and sum(passed) <= 3 * 22
