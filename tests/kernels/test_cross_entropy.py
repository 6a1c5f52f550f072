"""cross_entropy.py against F.cross_entropy."""

import itertools

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import cross_entropy as kernels
from lazyeng.triton_kernels._launch import LOOP_BLOCK

from tests.kernels.compare import (
    ARCHES,
    DTYPES,
    assert_same,
    assert_same_as_eager,
    assert_same_error,
    compiling,
    kernels_of,
)

LONG = 2 * LOOP_BLOCK + 5


def both(target, **options):
    def ours(x):
        return kernels.cross_entropy(x, target, **options)

    def theirs(x):
        return F.cross_entropy(x, target, **options)

    return ours, theirs


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_forward_and_backward(reduction, weighted, label_smoothing, device):
    """Two of the rows are ignored, one of them with an index that is a class."""
    x = torch.randn(6, 11, device=device) * 3
    target = torch.tensor([3, 0, 10, 4, 4, 7], device=device)
    weight = torch.rand(11, device=device) + 0.1 if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": label_smoothing}
    assert_same_as_eager(*both(target, ignore_index=4, **options), x)
    target[1] = -100
    assert_same_as_eager(*both(target, **options), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_dtypes(dtype, label_smoothing, device):
    x = torch.randn(4, 9, device=device).to(dtype)
    target = torch.tensor([1, 8, -100, 0], device=device)
    weight = torch.rand(9, device=device).to(dtype)
    for reduction in ("none", "mean"):
        options = {"weight": weight, "reduction": reduction, "label_smoothing": label_smoothing}
        assert_same_as_eager(*both(target, **options), x)


def test_rows_longer_than_a_block(device):
    x = torch.randn(2, LONG, device=device)
    target = torch.tensor([5, LONG - 1], device=device)
    weight = torch.rand(LONG, device=device)
    for label_smoothing in (0.0, 0.1):
        options = {"weight": weight, "label_smoothing": label_smoothing}
        assert_same_as_eager(*both(target, **options), x)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_shapes(reduction, device):
    """One sample without a batch; labels of one byte; images; strided views."""
    x = torch.randn(2, 5, 3, 4, device=device)
    target = torch.randint(5, (2, 3, 4), device=device)
    for logits, labels in (
        (x[0, :, 0, 0], target[0, 0, 0]),
        (x[:, :, 0, 0], target[:, 0, 0].to(torch.uint8)),
        (x[:, :, 0], target[:, 0]),
        (x, target),
        (x[:, :, ::2, 1::2], target[:, ::2, 1::2]),
    ):
        assert_same_as_eager(*both(labels, reduction=reduction), logits)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("case", ["no rows", "no classes", "all ignored"])
def test_nothing_to_do(case, reduction, device):
    x = torch.randn((0, 4) if case == "no rows" else (3, 0 if case == "no classes" else 4))
    target = torch.full((x.shape[0],), -100, device=device)
    assert_same_as_eager(*both(target, reduction=reduction), x.to(device))


def test_infinities(device):
    """A class that is impossible, the label impossible, everything impossible, large values."""
    x = torch.randn(5, 6, device=device)
    x[0, 1] = x[1, 2] = x[2] = -torch.inf
    x[3] = 1e30
    x[4, :] = -torch.inf
    target = torch.tensor([0, 2, 1, 1, -100], device=device)
    for label_smoothing in (0.0, 0.1):
        ours, theirs = both(target, reduction="none", label_smoothing=label_smoothing)
        assert_same(ours(x), theirs(x))
    assert_same_as_eager(*both(target[[0, 3]]), x[[0, 3]])


def test_ignored_rows_have_no_gradient(device):
    """Whatever is in them; eager makes NaN of infinities there."""
    x = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]], device=device, requires_grad=True)
    kernels.cross_entropy(x, torch.tensor([0, -100], device=device)).backward()
    assert_same(x.grad[1], torch.zeros(2, device=device))
    assert x.grad[0].isfinite().all() and x.grad[0].all()


def test_errors(device):
    x, target = torch.randn(3, 4, device=device), torch.tensor([0, 1, 2], device=device)
    for logits, labels, options, text in (
        (x, target, {"reduction": "max"}, "unknown reduction, got 'max'"),
        (x, target[:2], {}, "shape of target does not fit, got [2], expected [3]"),
        (x, target[:, None], {}, "shape of target does not fit, got [3, 1], expected [3]"),
        (x, target.int(), {}, "dtype of target is not supported, got torch.int32"),
        (x.long(), target, {}, "dtype of x is not supported, got torch.int64"),
        (x, target, {"weight": x[0, :3]}, "shape of weight does not fit, got [3], expected [4]"),
        (x, target, {"label_smoothing": 1.5}, "label_smoothing is out of range, got 1.5"),
    ):
        ours, theirs = both(labels, **options)
        assert_same_error(lambda f=ours, x=logits: f(x), lambda f=theirs, x=logits: f(x), text)


def test_label_out_of_range(device):
    if device == "cuda":
        pytest.skip("a device-side assertion ends the use of the device, in torch too")
    x = torch.randn(3, 4)
    for label, options in itertools.product((-1, 4, -100), ({}, {"ignore_index": 9})):
        target = torch.tensor([0, label, 2])
        ours, theirs = both(target, **options)
        if label == -100 and not options:
            assert_same(ours(x), theirs(x))
        else:
            text = f"label is out of range, got {label} at row 1, expected 0 to 3 or ignore_index"
            assert_same_error(lambda f=ours: f(x), lambda f=theirs: f(x), text)


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    x, target = torch.empty(8, 100, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.int64)
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        x.requires_grad_()
        loss = kernels.cross_entropy(x, target, torch.ones(100), label_smoothing=0.1)
        loss.backward()
    assert compiled == kernels_of(kernels)
