"""nll_loss.py against F.nll_loss, and against aten's backward of it and of log_softmax."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import nll_loss as kernels
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
        return kernels.nll_loss(x, target, **options)

    def theirs(x):
        return F.nll_loss(x, target, **options)

    return ours, theirs


def labels_for(n, classes, device):
    labels = torch.randint(classes, (n,), device=device)
    labels[::3] = -100
    return labels


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_forward_and_backward(weighted, reduction, dtype, device):
    x = torch.randn(11, 7, device=device).log_softmax(-1).to(dtype)
    weight = torch.rand(7, device=device).to(dtype) if weighted else None
    options = {"reduction": reduction, "weight": weight}
    assert_same_as_eager(*both(labels_for(11, 7, device), **options), x)


@pytest.mark.parametrize("n", [1024, 1025])
def test_more_rows_than_a_block(n, device):
    x = torch.randn(n, 3, device=device)
    assert_same_as_eager(*both(labels_for(n, 3, device)), x)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_ignored_and_empty(reduction, device):
    for n in (4, 0):
        labels = torch.full((n,), -100, device=device)
        assert_same_as_eager(*both(labels, reduction=reduction), torch.randn(n, 3, device=device))


def test_labels_of_a_byte_and_strides(device):
    labels = torch.tensor([2, 255, 1, 0], device=device).to(torch.uint8)
    x = torch.randn(3, 8, device=device).t()[::2]
    assert_same_as_eager(*both(labels, ignore_index=255), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("classes", [7, LONG])
def test_backward_together_with_log_softmax(classes, reduction, dtype, device):
    aten = torch.ops.aten
    x = torch.randn(5, classes, device=device).log_softmax(-1).to(dtype)
    labels, weight = labels_for(5, classes, device), torch.rand(classes, device=device).to(dtype)
    loss, total = aten.nll_loss_forward(x, labels, weight, reduction, -100)
    dy = torch.randn(loss.shape, device=device).to(dtype)
    arguments = (dy, x, labels, weight, reduction, -100, total)
    expected = aten._log_softmax_backward_data(aten.nll_loss_backward(*arguments), x, 1, dtype)
    assert_same(kernels.nll_log_softmax_backward(*arguments), expected)


def test_errors(device):
    x, labels = torch.randn(4, 3, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    cases = [
        (x, labels, {"reduction": "no"}, "unknown reduction, got 'no'"),
        (x.half().to(torch.int32), labels, {}, "dtype of x is not supported, got torch.int32"),
        (x, labels.float(), {}, "dtype of target is not supported, got torch.float32"),
    ]
    for a, target, options, text in cases:
        ours, theirs = both(target, **options)
        assert_same_error(lambda ours=ours, a=a: ours(a), lambda theirs=theirs, a=a: theirs(a),
                          text)  # fmt: skip
    for a, target in ((x[0], labels[0]), (x, labels[1:])):
        with pytest.raises(RuntimeError, match="does not fit"):
            kernels.nll_loss(a, target)


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    x, labels = torch.empty(8, 100, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.int64)
    weight = torch.ones(100, dtype=torch.bfloat16)
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        loss, total = kernels.nll_loss_forward(x, labels, weight, 1, -100)
        arguments = (loss, x, labels, weight, 1, -100, total)
        kernels.nll_loss_backward(*arguments)
        kernels.nll_log_softmax_backward(*arguments)
    assert compiled == kernels_of(kernels)
