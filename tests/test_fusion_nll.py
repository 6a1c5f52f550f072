"""nll_loss and its gradient as members of groups: a row's element that an integer names."""

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import _C, lazy, wrap

from .support.fusion_runs import same_bits

aten = torch.ops.aten
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@pytest.fixture(autouse=True)
def by_default():
    _C.set_inexact_fusion(False)


def losses(given, logits, target, weight=None, **kwargs):
    x, target = given(logits) * 2, given(target)  # (nll_loss alone would be no group)
    weight = weight if weight is None else given(weight)
    return [
        F.nll_loss(x, target, weight, **kwargs),
        F.cross_entropy(x - 1, target, weight, **kwargs),
        *aten.nll_loss_forward(
            x, target, weight, REDUCTIONS[kwargs["reduction"]], kwargs.get("ignore_index", -100)
        ),
    ]


def compare_losses(same, logits, target, weight=None, **kwargs):
    eager = losses(lambda x: x, logits, target, weight, **kwargs)
    for _ in range(2):  # what the ops return is learnt
        with lazy("deferred"):
            made = losses(wrap, logits, target, weight, **kwargs)
        for got, expected in zip(made, eager, strict=True):
            same(lazyeng.unwrap(got), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 2), (17, 3), (256, 10), (300, 33), (4097, 10), (70_000, 2), (9, 1000)], ids=str
)
def test_a_loss_has_eagers_bits(shape, dtype, weighted, reduction, groups):
    """The sum has levels of 16, 256, 4,096 ... rows; the last shapes have several threads."""
    logits = torch.randn(shape, dtype=dtype)
    target = torch.randint(0, shape[1], shape[:1])
    target[::3] = 1
    weight = torch.rand(shape[1], dtype=dtype) if weighted else None
    for ignored in (-100, 1):
        groups()
        compare_losses(same_bits, logits, target, weight, reduction=reduction, ignore_index=ignored)
        assert groups() == 2
    nothing = torch.full(shape[:1], 1)
    compare_losses(same_bits, logits, nothing, weight, reduction=reduction, ignore_index=1)


def test_losses_of_the_same_rows_in_one_group(groups):
    """Each has its own results, of which some are dead."""
    x, target = torch.randn(40, 5), torch.randint(0, 5, (40,))
    eager = aten.nll_loss_forward(x * 2, target, None, 1, -100)
    for _ in range(2):
        groups()
        with lazy("deferred"):
            y = wrap(x) * 2
            made = [aten.nll_loss_forward(y, wrap(target), None, 1, -100) for _ in range(3)]
            kept = made[0][0], made[1][1], *made[2]
            del made
        for got, expected in zip(kept, (*eager, *eager), strict=True):
            same_bits(lazyeng.unwrap(got), expected)
    assert groups() == 1


def test_what_a_loss_reads_may_be_written_behind_it():
    def program(given):
        x, target = given(torch.arange(50.0).view(10, 5)), given(torch.arange(10) % 5)
        y = x * 3
        first = F.nll_loss(y, target)
        y.mul_(2).sub_(1)
        second = F.nll_loss(y, target)
        target.add_(1).remainder_(5)
        return first, second, F.nll_loss(y, target), y, target

    eager = program(lambda x: x)
    for _ in range(2):
        with lazy("deferred"):
            made = program(wrap)
        for got, expected in zip(made, eager, strict=True):
            same_bits(lazyeng.unwrap(got), expected)


def test_losses_that_are_left_to_torch():
    logits, target = torch.randn(60, 10), torch.randint(0, 10, (120,))
    for x, y in (
        (logits, target[::2]),
        (logits.t().contiguous().t(), target[:60]),
        (logits[:1], target[:1]),
        (torch.randn(60, 1), torch.zeros(60, dtype=torch.long)),
        (torch.randn(1, 10).expand(60, 10), target[:60]),
        (logits.bfloat16(), target[:60]),
        (logits[:0], target[:0]),
    ):
        for reduction in ("mean", "sum"):
            compare_losses(same_bits, x, y, reduction=reduction)


def gradients(given, logits, target, weight, **kwargs):
    x = logits.clone().requires_grad_()
    x, target = given(x), given(target)
    weight = weight if weight is None else given(weight)
    loss = F.cross_entropy(x, target, weight, **kwargs)
    scale = given(torch.linspace(0.5, 2, loss.numel(), dtype=logits.dtype).view(loss.shape))
    return torch.autograd.grad(loss, x, scale)[0]


def compare(same, logits, target, weight=None, **kwargs):
    eager = gradients(lambda x: x, logits, target, weight, **kwargs)
    for _ in range(2):  # what the ops return is learnt
        with lazy("deferred"):
            got = lazyeng.unwrap(gradients(wrap, logits, target, weight, **kwargs))
        same(got, eager)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(256, 10), (70, 3), (40, 300), (9, 1000)], ids=str)
def test_the_gradient_of_cross_entropy_has_eagers_bits(shape, dtype, weighted, reduction, groups):
    logits = torch.randn(shape, dtype=dtype)
    target = torch.randint(0, shape[1], shape[:1])
    target[::5] = 1
    weight = torch.rand(shape[1], dtype=dtype) if weighted else None
    groups()
    compare(same_bits, logits, target, weight, reduction=reduction, ignore_index=1)
    if shape[1] < 16:  # (Else log_softmax' gradient is left to torch, and nll_loss' is alone.)
        assert groups() >= 1
    x, grad = logits.log_softmax(-1), torch.rand(shape[:1] if reduction == "none" else ())
    args = x, target, weight, REDUCTIONS[reduction], 1, torch.tensor(2.5, dtype=dtype)
    eager = aten.nll_loss_backward(grad.to(dtype), *args) * 2
    for _ in range(2):
        groups()
        with lazy("deferred"):
            lazily = [wrap(t) if torch.is_tensor(t) else t for t in args]
            made = lazyeng.unwrap(aten.nll_loss_backward(wrap(grad.to(dtype)), *lazily) * 2)
        same_bits(made, eager)
    assert groups() == 1


@pytest.mark.parametrize("ignored", [-100, 2, -1, 1 << 60])
def test_rows_that_are_ignored(ignored):
    logits, target = torch.randn(50, 5), torch.arange(50) % 5
    if ignored < 5:
        target[7] = ignored
        target[49] = ignored
    compare(same_bits, logits, target, ignore_index=ignored)
    if ignored < 5:
        compare(same_bits, logits, torch.full((50,), ignored), ignore_index=ignored)


@pytest.mark.usefixtures("inexact")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(70, 7), (60, 50), (30, 300)], ids=str)
def test_with_other_bits_allowed(shape, dtype, groups):
    """Numbers are rounded as in eager. (log_softmax has rounded its result to the narrow dtypes: so
    has its gradient, in eager, what it has summed up.)"""
    _C.set_inexact_fusion(True)
    logits = torch.randn(shape).to(dtype)
    target = torch.randint(0, shape[1], shape[:1])
    weight = torch.rand(shape[1]).to(dtype)
    if dtype == torch.float32:
        compare(torch.testing.assert_close, logits, target, weight)
        compare(torch.testing.assert_close, logits, target, reduction="sum")
    args = weight, 1, -100, torch.tensor(3.7, dtype=dtype)
    eager = aten.nll_loss_backward(torch.ones((), dtype=dtype), logits, target, *args) + 1
    for _ in range(2):
        groups()
        with lazy("deferred"):
            lazily = (wrap(t) if torch.is_tensor(t) else t for t in (logits, target, *args))
            made = aten.nll_loss_backward(wrap(torch.ones((), dtype=dtype)), *lazily) + 1
            made = lazyeng.unwrap(made)
        same_bits(made, eager)
    assert groups() == 1


def nll_backward(given, logits, target, reduction, behind):
    grad = given(torch.ones(()))
    made = aten.nll_loss_backward(
        grad, given(logits), given(target), None, reduction, -100, given(torch.tensor(3.0))
    )
    return behind(made)


@pytest.mark.parametrize("lazy_mode", ["async", "deferred"])
@pytest.mark.parametrize("label", [-1, 10, 1 << 40, -(1 << 62)])
def test_a_label_out_of_range_fails_its_own_op(label, lazy_mode):
    logits, target = torch.randn(256, 10), torch.randint(0, 10, (256,))
    good = target.clone()
    target[200] = label
    with pytest.raises(IndexError) as eager:
        nll_backward(lambda x: x, logits, target, 1, lambda x: x * 2)
    with pytest.raises(IndexError) as forward:
        F.cross_entropy(logits, target)
    for _ in range(2):
        with lazy(lazy_mode):
            x = wrap(logits)
            beside = (x + 1) * 3
            failing = nll_backward(wrap, logits, target, 1, lambda x: x * 2)
            with pytest.raises(IndexError) as caught:
                lazyeng.unwrap(failing)
            assert str(caught.value) == str(eager.value)
            with pytest.raises(IndexError) as caught:
                lazyeng.unwrap(F.cross_entropy(x * 1, wrap(target)) + 1)
            assert str(caught.value) == str(forward.value)
            same_bits(lazyeng.unwrap(beside), (logits + 1) * 3)
    same_bits(
        lazyeng.unwrap(nll_backward(wrap, logits, good, 2, lambda x: x * 2)),
        nll_backward(lambda x: x, logits, good, 2, lambda x: x * 2),
    )


def test_what_does_not_lie_as_rows_is_left_to_torch():
    logits, target = torch.randn(60, 10), torch.randint(0, 10, (120,))
    compare(same_bits, logits, target[::2])
    compare(same_bits, logits.t().contiguous().t(), target[:60])
    compare(same_bits, logits[:1], target[:1])
    compare(same_bits, torch.randn(10), target[0])
    compare(same_bits, torch.randn(6, 10, 4, 5), torch.randint(0, 10, (6, 4, 5)))
    compare(same_bits, torch.randn(60, 1), torch.zeros(60, dtype=torch.long))
    loss_of_each = F.cross_entropy(logits.requires_grad_(), target[:60], reduction="none")
    expected = torch.autograd.grad(loss_of_each.sum(), logits)[0]
    x = wrap(logits.detach().clone().requires_grad_())
    with lazy("deferred"):
        loss = F.cross_entropy(x, wrap(target[:60]), reduction="none").sum()  # expands a gradient
        same_bits(lazyeng.unwrap(torch.autograd.grad(loss, x)[0]), expected)
