"""Unmodified training code: eager, inside lazy(), and wrapped outside it, with equal results."""

import contextlib
import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from lazyeng import LazyTensor, lazy, unwrap, wrap

# How a program is run lazily: (context, what is done to inputs and modules).
WAYS = {
    "async": (lambda: lazy("async"), lambda x: x),
    "deferred": (lambda: lazy("deferred"), lambda x: x),
    "sync": (lambda: lazy("sync"), lambda x: x),
    "wrap": (contextlib.nullcontext, wrap),
    "wrap in a block": (lambda: lazy("deferred"), wrap),
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def compare(program, way):
    """`program(side)` returns nested lists of tensors and values; equal from both sides."""
    torch.manual_seed(0)
    expected = tree_leaves(program(lambda x: x))
    torch.manual_seed(0)
    block, side = way
    with block():
        got = tree_leaves(program(side))
    got = unwrap([x.detach() if isinstance(x, torch.Tensor) else x for x in got])
    assert len(got) == len(expected)
    for a, b in zip(expected, got, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a.detach(), check_stride=True)
        else:
            assert a == b
    return got


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Dropout(0.3),
        torch.nn.Linear(8, 3),
    )  # fmt: skip


def state_of(optimizer):
    return [v for s in optimizer.state_dict()["state"].values() for v in s.values()]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD foreach": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2]),
    "SparseAdam": None,  # sparse gradients: has its own test
}  # fmt: skip


def test_every_optimizer_is_here():
    """A new torch brings new optimizers: they must be added."""
    known = {name.split()[0] for name in OPTIMIZERS}
    present = {
        name for name, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name != "Optimizer"
    }  # fmt: skip
    assert present == known


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "Rprop"])
def test_steps_of_narrow_parameters(name, dtype, way):
    """torch's implementation over lists, which is ours to choose, has other bits there."""
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))

    def program(side):
        p = side(values.to(dtype, copy=True)).requires_grad_()
        optimizer = OPTIMIZERS[name]([p, side(values.clone()).requires_grad_()])
        for step in range(1, 8):
            p.grad = side((values / step).to(dtype))
            optimizer.step()
        return [p.detach(), *state_of(optimizer)]

    compare(program, way)


@pytest.mark.parametrize("name", [n for n, make in OPTIMIZERS.items() if make])
def test_optimizer_steps(name, way):
    def program(side):
        model = side(make_model())
        optimizer = OPTIMIZERS[name](list(model.parameters()))
        x, target = side(torch.randn(5, 6)), side(torch.randint(3, (5,)))
        losses = []

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            return loss

        for _ in range(4):
            losses.append(optimizer.step(closure).detach())
        grads = [p.grad for p in model.parameters()]
        return [*losses, *grads, *model.parameters(), *state_of(optimizer)]

    compare(program, way)


def test_sparse_adam(way):
    def program(side):
        table = side(torch.nn.Embedding(10, 3, sparse=True))
        optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
        for i in range(3):
            optimizer.zero_grad()
            table(side(torch.tensor([i, i + 2, i]))).square().sum().backward()
            optimizer.step()
        return [table.weight]

    compare(program, way)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clip_and_accumulation(set_to_none, way):
    def program(side):
        model = side(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        norms = []
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            for _ in range(2):
                model(side(torch.randn(4, 6))).square().mean().backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
        return [*norms, *model.parameters()]

    compare(program, way)


def test_scheduler_and_averaged_model(way):
    def program(side):
        model = side(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        average = torch.optim.swa_utils.AveragedModel(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(side(torch.randn(4, 6))).square().mean().backward()
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
        return [*average.parameters(), scheduler.get_last_lr()[0]]

    compare(program, way)


MODULES = {
    "mlp": (make_model, lambda: torch.randn(5, 6)),
    "cnn": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 2)),
        lambda: torch.randn(3, 1, 8, 8),
    ),
    "lstm": (lambda: torch.nn.LSTM(4, 5, 2, batch_first=True, dropout=0.2),
             lambda: torch.randn(2, 3, 4)),
    "gru": (lambda: torch.nn.GRU(4, 5), lambda: torch.randn(3, 2, 4)),
    "transformer": (
        lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda: torch.randn(2, 4, 8)),
    "embedding bag": (lambda: torch.nn.EmbeddingBag(7, 3), lambda: torch.randint(7, (2, 4))),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, training, way):
    make, draw = MODULES[name]

    def program(side):
        model, x = side(make().train(training)), side(draw())
        y = model(x)
        y = y[0] if isinstance(y, tuple) else y
        y.square().sum().backward()
        return [y, *[p.grad for p in model.parameters()], *model.buffers()]

    compare(program, way)


def test_grad_types(way):
    block, side = way
    with block():
        model = side(torch.nn.Linear(2, 2))
        loss = model(side(torch.ones(1, 2))).sum()
        assert type(loss) is LazyTensor
        loss.backward()
    assert all(type(p.grad) is LazyTensor for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, way):
    def program(side):
        model, x = side(make_model().eval()), side(torch.randn(4, 6))
        with torch.autocast("cpu", dtype=dtype):
            y = model(x)
        y.float().sum().backward()
        return [y, y.dtype, *[p.grad for p in model.parameters()]]

    compare(program, way)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("name", ["lazyeng", "lazyeng:0"])
def test_autocast_by_the_name_of_the_device(name, enabled):
    x = torch.ones(2, 2, device=name)
    with torch.autocast(name, dtype=torch.bfloat16, enabled=enabled):
        assert (x @ x).dtype == (torch.bfloat16 if enabled else torch.float32)
    assert (x @ x).dtype == torch.float32


@pytest.mark.parametrize("vmap", [torch.func.vmap, torch._vmap_internals._vmap])
@pytest.mark.parametrize("gradient", [lambda x: x, wrap], ids=["plain", "lazy"])
def test_many_gradients_at_once(vmap, gradient):
    """vmap over grad(): what stands for many gradients is no tensor that could be wrapped."""
    x = torch.tensor([0.3, 0.7])
    expected = torch.autograd.functional.jacobian(torch.sin, x)
    x = wrap(x).requires_grad_()
    y = x.sin()
    rows = vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(
        gradient(torch.eye(2))
    )
    assert rows.tolist() == expected.tolist()


def test_vectorized_jacobian(way):
    def program(side):
        x, weight = side(torch.rand(3)), side(torch.rand(4, 3))
        return [
            torch.autograd.functional.jacobian(lambda v: (weight @ v).sin(), x, vectorize=True),
            torch.autograd.functional.hessian(
                lambda v: (weight @ v).sin().sum(), x, vectorize=True
            ),
        ]

    compare(program, way)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_with_dropout(use_reentrant, way):
    """The recomputed forward pass draws the same dropout masks."""

    def program(side):
        model, x = side(make_model()), side(torch.randn(16, 6)).requires_grad_()
        y = checkpoint(model, x, use_reentrant=use_reentrant)
        torch.rand(3)
        y.square().sum().backward()
        return [y, x.grad, *[p.grad for p in model.parameters()], torch.rand(2)]

    compare(program, way)


def test_hooks(way):
    def program(side):
        seen = []
        model, x = side(torch.nn.Linear(3, 2)), side(torch.ones(2, 3)).requires_grad_()
        model.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model.register_forward_hook(lambda m, args, out: out + 1)
        model.register_full_backward_hook(lambda m, gi, go: seen.append(go[0]))
        model.weight.register_hook(lambda g: g * 3)
        model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        x.register_hook(lambda g: seen.append(g))
        model(x).sum().backward()
        return [x.grad, model.weight.grad, *seen]

    compare(program, way)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2 * ctx.scale, None


def test_autograd_function(way):
    def program(side):
        x = side(torch.randn(4)).requires_grad_()
        y = Cube.apply(x, 2.0)
        y.sum().backward()
        return [y, x.grad]

    compare(program, way)


def test_autograd_function_sees_lazy_tensors():
    types = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.mark_non_differentiable()
            types.append(type(x))
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            types.extend([type(grad), type(ctx.saved_tensors[0])])
            return grad * 2

    x = wrap(torch.ones(2)).requires_grad_()
    Spy.apply(x).sum().backward()
    assert types == [LazyTensor] * 3


class MakesTensors(torch.autograd.Function):
    """Its backward makes tensors of Python's numbers and numpy's, and of nothing."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        order = torch.tensor([2, 0, 1])
        factors = torch.from_numpy(np.linspace(0, 1, 3)).float() + torch.as_tensor(3.0)
        same = torch.zeros(3) + torch.ones(3) * torch.full((3,), 2.0) + torch.eye(3)[1]
        return grad[order] * factors * torch.tensor(2.0) + grad.new_tensor([1, 2, 3]) + same


def test_tensors_made_in_a_backward(way):
    def program(side):
        x = side(torch.randn(3)).requires_grad_()
        x.register_hook(lambda grad: grad[torch.tensor([1, 1, 0])] + torch.tensor([1.0, 2, 3]))
        MakesTensors.apply(x).pow(2).sum().backward()
        return [x.grad]

    compare(program, way)


def test_in_place_autograd_function(way):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def program(side):
        x = side(torch.ones(3)).requires_grad_()
        y = Double.apply(x.clone())
        y.sum().backward()
        return [y, x.grad]

    compare(program, way)


def test_double_backward(way):
    def program(side):
        x = side(torch.randn(4)).requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), x, create_graph=True)
        second.sum().backward()
        return [first, second, x.grad]

    compare(program, way)


def test_a_plain_gradient_given_that_wants_one_itself(way):
    """It comes through `x + 1` unchanged: a forward-mode derivative by two backward passes."""

    def program(side):
        x, v = side(torch.ones(3, requires_grad=True)), torch.zeros(3, requires_grad=True)
        (grad,) = torch.autograd.grad(x + 1, x, v, create_graph=True)
        (tangent,) = torch.autograd.grad(grad, v, torch.ones(3), retain_graph=True)
        grad.add(1).pow(2).sum().backward()
        return [grad is v, tangent, v.grad]

    compare(program, way)


def zero_of_abs(x):
    """Its second derivative, which torch has as zeros without memory."""
    (first,) = torch.autograd.grad(x.abs().sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


def added_to_zeros(x):
    (first,) = torch.autograd.grad((x.abs() * -x * x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


def added_to_zeros_of_odd_strides(x):
    gradient = torch.ones_like(x).t().contiguous().t()
    (first,) = torch.autograd.grad(x.abs() * x, x, gradient, create_graph=True)
    return torch.autograd.grad(first, x, gradient)[0]


def accumulated_into_zeros(x):
    (first,) = torch.autograd.grad(x.abs().sum(), x, create_graph=True)
    first.sum().backward()
    with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
        x.pow(2).sum().backward()
    return x.grad.clone()


ZEROS = [zero_of_abs, added_to_zeros, added_to_zeros_of_odd_strides, accumulated_into_zeros]


@pytest.mark.parametrize("shape", [(2, 3), (200, 100), ()])
@pytest.mark.parametrize("second", ZEROS)
def test_second_derivatives_that_are_zeros_without_memory(second, shape, way):
    if second is added_to_zeros_of_odd_strides and not shape:
        shape = (3, 1)

    def program(side):
        x = side(torch.randn(shape).requires_grad_())
        with torch.no_grad():
            x.view(-1)[0] = 0
        grad = second(x)
        return [grad, torch.signbit(grad)]

    compare(program, way)


@pytest.mark.parametrize("shape", [(3,), ()])
def test_gradients_that_are_zeros_are_lazy(shape, way):
    block, side = way
    with block():
        x = side(torch.ones(shape, requires_grad=True))
        (grad,) = torch.autograd.grad(x.sgn().sum(), x)
    assert type(grad) is LazyTensor and grad.tolist() == torch.zeros(shape).tolist()
    x = torch.ones(shape, requires_grad=True)  # eager's own are as they were
    assert torch.autograd.grad(x.sgn().sum(), x)[0]._is_zerotensor()


@pytest.mark.parametrize("s", [torch.tensor(2.0), torch.ones(3)])
def test_a_hessian_of_zeros(s, way):
    compare(lambda side: [torch.autograd.functional.hessian(
        lambda s: (s.abs() * 3).sum(), side(s.clone()))], way)  # fmt: skip
    compare(lambda side: [torch.func.hessian(lambda s: (s.abs() * -s).sum())(side(s.clone()))], way)


def test_lift_fresh_gives_back_what_it_is_given(way):
    def program(side):
        x = side(torch.ones(3, requires_grad=True))
        y = x * 1
        z = torch.ops.aten.lift_fresh(y)
        z.mul_(2)
        y.sum().backward()
        return [z is y, y, x.grad]

    compare(program, way)


def test_gradient_penalty(way):
    def program(side):
        model, x = side(make_model()), side(torch.randn(3, 6)).requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        grad.norm(2, dim=1).sub(1).square().mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    compare(program, way)


def test_retain_grad_and_retain_graph(way):
    def program(side):
        x = side(torch.ones(3)).requires_grad_()
        y = x * 2
        y.retain_grad()
        z = (y * y).sum()
        z.backward(retain_graph=True)
        z.backward()
        return [x.grad, y.grad]

    compare(program, way)


def test_backward_twice_fails_as_in_eager():
    x = wrap(torch.ones(2)).requires_grad_()
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_no_grad_and_detach(way):
    def program(side):
        x = side(torch.ones(2)).requires_grad_()
        with torch.no_grad():
            a = x * 2
        b = x.detach() * 2
        with torch.set_grad_enabled(False):
            c = x * 2
        d = x * 2
        return [
            a.requires_grad,
            b.requires_grad,
            c.requires_grad,
            d.requires_grad,
            d.is_leaf,
            a,
            b,
            c,
            d,
        ]

    compare(program, way)


def test_inference_mode(way):
    def program(side):
        model, x = side(make_model().eval()), side(torch.randn(2, 6))
        with torch.inference_mode():
            y = model(x)
            y.add_(1)
        return [y, y.requires_grad, y.is_inference()]

    compare(program, way)


@contextlib.contextmanager
def below_autograd():
    """As the autograd kernel of a custom op calls its kernel."""
    with torch._C._AutoDispatchBelowAutograd():
        yield


@pytest.mark.parametrize("scope", [torch.inference_mode, below_autograd, torch.no_grad])
def test_plain_tensors_in_a_backward_pass(way, scope):
    """They have nothing to do with the lazy ones whose gradients are computed."""

    def program(side):
        plain = torch.tensor([1.0, 2.0, 3.0])

        class Through(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                with scope():
                    made = (plain * 2 + torch.ones(3)).cumsum(0)
                return grad * float(made.sum())

        x = side(torch.rand(3)).requires_grad_()
        Through.apply(x).sum().backward()
        return [x.grad]

    compare(program, way)


def test_linearize_in_a_backward_pass(way):
    """A checkpoint computes once more; derivatives of numbers are zeros of one element."""

    def program(side):
        def calls(x):
            made, tangent = torch.func.linearize(lambda a: (a + 1).sin() * 2, x)
            return made + tangent(x)

        x = side(torch.rand(3)).requires_grad_()
        checkpoint(calls, x * 1, use_reentrant=True).sum().backward()
        return [x.grad]

    compare(program, way)


def test_in_place_on_a_view_with_grad(way):
    def program(side):
        x = side(torch.randn(3, 3)).requires_grad_()
        y = x * 2
        y[0].mul_(3)
        y[:, 1] = y[:, 2] * 2
        y.t().add_(1)
        (y**2).sum().backward()
        return [y, x.grad]

    compare(program, way)


def test_saved_tensor_changed_in_place_is_detected(way):
    block, side = way
    with block():
        x = side(torch.ones(2)).requires_grad_()
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_saved_tensor_hooks(way):
    def program(side):
        packed = []
        x = side(torch.randn(3)).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(t.shape) or t * 1, lambda t: t
        ):
            y = (x * x).sum()
        y.backward()
        return [x.grad, len(packed)]

    compare(program, way)


def test_forward_mode_of_a_complex_convolution(mode):
    """Its kernel makes tangents that lie at another offset than recorded."""
    shapes = ((1, 1, 1, 1, 10), (1, 1, 1, 1, 4))
    args = [torch.rand(shape, dtype=torch.complex128, requires_grad=True) for shape in shapes]
    with lazy(mode):
        assert torch.autograd.gradcheck(F.conv3d, args, check_forward_ad=True)


def test_anomaly_mode_and_gradcheck():
    x = wrap(torch.randn(3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: (a * a).sum(), x)
    with torch.autograd.detect_anomaly(check_nan=True):
        (x * 2).sum().backward()


def test_deepcopied_model_trains_apart(way):
    def program(side):
        model = side(torch.nn.Linear(2, 2))
        twin = copy.deepcopy(model)
        twin(side(torch.ones(1, 2))).sum().backward()
        torch.optim.SGD(twin.parameters(), lr=1.0).step()
        return [model.weight, twin.weight]

    compare(program, way)


def test_functional_call_and_parametrization(way):
    def program(side):
        model = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
        x = side(torch.ones(1, 3))
        y = torch.func.functional_call(model, {"bias": torch.ones(2)}, (x,))
        y.sum().backward()
        return [y, *[p.grad for p in model.parameters() if p.grad is not None]]

    compare(program, way)


@pytest.mark.parametrize("function", [F.silu, F.mish, lambda x: torch.channel_shuffle(x, 2)])
def test_gradients_with_a_kernel_and_a_decomposition(function, way):
    """Eager runs the kernel; the decomposition, meant for other backends, rounds otherwise."""

    def program(side):
        x = side(torch.randn(4, 6, 5)).requires_grad_()
        (function(x) ** 2).sum().backward()
        return [x.grad]

    (found,) = compare(program, way)
    torch.manual_seed(0)
    assert torch.equal(found, program(lambda x: x)[0])


def test_backward_functions_may_compute_with_plain_tensors():
    """What kernels of plain tensors make is plain, also in a backward pass of lazy ones."""

    class ThroughNumpy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            plain = torch.from_numpy(grad.numpy() * 2)
            return (plain * 3 + torch.ones(3)).exp().log()

    x = wrap(torch.ones(3)).requires_grad_()
    ThroughNumpy.apply(x * 2).sum().backward()
    assert x.grad is not None
    assert torch.allclose(unwrap(x.grad), torch.full((3,), 14.0))


@pytest.mark.parametrize("order", [(False, False, True), (True, False, True, False)])
@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_with_and_without_grad_mode(layer, order, way):
    """oneDNN's LSTM computes in another way without it, and keeps nothing for a gradient."""

    def program(side):
        torch.manual_seed(0)
        model = side(getattr(torch.nn, layer)(4, 8, batch_first=True, bidirectional=True))
        results = []
        for grad in order:
            with torch.set_grad_enabled(grad):
                y = model(side(torch.linspace(-2, 2, 128).view(8, 4, 4)))[0]
            results.append(y.detach())
            if grad:
                model.zero_grad()
                y.square().sum().backward()
                results += [p.grad for p in model.parameters()]
        return results

    compare(program, way)
