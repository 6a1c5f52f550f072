"""What holds for all kernels: the package, the ops of torch they are, and lazyeng recording."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import torch.nn.functional as F
from lazyeng.triton_kernels import (
    adamw,
    cross_entropy,
    dropout,
    layer_norm,
    linear_act,
    nll_loss,
    rms_norm,
    sgd,
    softmax,
)

import lazyeng
from tests.kernels.compare import assert_same, compiling

ROOT = Path(__file__).parents[2]
X = torch.linspace(-2, 3, 15).view(3, 5)
LABELS = torch.tensor([4, 0, 2])


def ops(x):
    """{op: arguments}: of all that are registered but the optimizers' updates."""
    w, n = x[0].clone(), [x.shape[-1]]
    _, mean, rstd = layer_norm.layer_norm_forward(x, n)
    labels = LABELS.to(x.device)
    rows = cross_entropy.cross_entropy_forward(x, labels, w, -100, 0.1)
    loss, total = nll_loss.nll_loss_forward(x, labels, w, 1, -100)
    return {
        softmax.softmax_forward: (x, True),
        softmax.softmax_backward: (x, x, False),
        layer_norm.layer_norm_forward: (x, n, w, None, 0.1),
        layer_norm.layer_norm_backward: (x, x, n, mean, rstd, w),
        layer_norm.layer_norm_backward_weight: (x, x, n, mean, rstd),
        rms_norm.rms_norm_forward: (x, n, w, None),
        rms_norm.rms_norm_backward: (x, x, n, rstd, w),
        rms_norm.rms_norm_backward_weight: (x, x, n, rstd),
        cross_entropy.cross_entropy_forward: (x, labels, w, -100, 0.1),
        cross_entropy.cross_entropy_backward: (x[0, 0], x, labels, None, rows, -100, 0.0),
        nll_loss.nll_loss_forward: (x, labels, w, 1, -100),
        nll_loss.nll_loss_backward: (loss, x, labels, w, 1, -100, total),
        nll_loss.nll_log_softmax_backward: (loss, x, labels, w, 1, -100, total),
        linear_act.linear_act_forward: (x, x, w[:3], "gelu", True),
        linear_act.act_backward: (x, x, "silu"),
        dropout.dropout_forward: (x, 0.5, 1, 2),
    }


def updates(x):
    one, zeros = [x.clone()], [torch.zeros_like(x)]
    return {
        adamw.adamw_update: (
            one, [x], zeros, [x.square()], [], [1], 0.1, 0.9, 0.99, 1e-8, 0.1, False
        ),
        sgd.sgd_update: (one, [x], zeros, [False], 0.1, 0.9, 0.0, 0.1, False, False),
    }  # fmt: skip


def test_package_does_not_import_triton():
    source = (
        "import sys, lazyeng, tests.kernels, lazyeng.triton_kernels; print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_each_kernel_file_has_its_test():
    kernels = {path.name for path in (ROOT / "triton_kernels").glob("[a-z]*.py")}
    tests = {path.name.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert kernels == tests - {"package.py", "docs.py", "benchmark.py"}


def test_ops_are_what_their_schemas_and_fakes_say(device):
    """No input is written that the schema does not name; shapes and dtypes are known before."""
    x = X.to(device)
    for op, arguments in {**ops(x), **updates(x)}.items():
        torch.library.opcheck(
            op._opoverload, arguments, test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.parametrize("lazy_mode", ["async", "deferred", "sync"])
def test_lazyeng_records_each_as_one_op(lazy_mode, device):
    cases = {**ops(X.to(device)), **updates(X.to(device))}
    expected = [op(*arguments) for op, arguments in cases.items()]
    written = [
        arguments[0] for op, arguments in updates(X.to(device)).items() if not op(*arguments)
    ]
    with lazyeng.lazy(lazy_mode):
        cases = {**ops(X.to(device)), **updates(X.to(device))}
        results = [op(*arguments) for op, arguments in cases.items()]
        if lazy_mode == "deferred":
            assert "pending=lazyeng_kernels::softmax_forward @ test_package.py" in repr(results[0])
        assert_same(lazyeng.unwrap(results), expected)
        mutated = [arguments[0] for op, arguments in list(cases.items())[-2:]]
        assert_same(lazyeng.unwrap(mutated), written)


def test_gradients_of_recorded_kernels(device):
    with lazyeng.lazy():
        x = X.to(device).clone().requires_grad_()
        loss = cross_entropy.cross_entropy(softmax.log_softmax(x * 2), LABELS.to(device))
        loss.backward()
        gradient = lazyeng.unwrap(x.grad)
    y = X.to(device).clone().requires_grad_()
    F.cross_entropy(F.log_softmax(y * 2, -1), LABELS.to(device)).backward()
    assert_same(gradient, y.grad)


def test_wrong_label_is_reported_where_the_loss_was_made(device):
    if device == "cuda":
        pytest.skip("a device-side assertion ends the use of the device, in torch too")
    with lazyeng.lazy("deferred"):
        loss = cross_entropy.cross_entropy(X * 1, LABELS + 3)  # recorded: labels are not read yet
        with pytest.raises(IndexError, match="label is out of range, got 7 at row 0") as caught:
            loss.item()
    assert isinstance(caught.value, lazyeng.LazyError)


@pytest.mark.plain_process
def test_scalars_reach_kernels_in_double_precision():
    """Which the interpreter cannot show: there a Python float stays one."""
    doubles = {
        kernel.__name__: {p.name for p in kernel.params if p.annotation_type == "fp64"}
        for kernel in (adamw.adamw_kernel, adamw.adamw_counted_kernel, sgd.sgd_kernel,
                       layer_norm.layer_norm_kernel, rms_norm.rms_norm_kernel,
                       cross_entropy.cross_entropy_kernel,
                       cross_entropy.cross_entropy_backward_kernel, dropout.dropout_kernel)
    }  # fmt: skip
    assert doubles == {
        "adamw_kernel": {"decay", "one_minus_beta1", "beta2", "one_minus_beta2", "step_size",
                         "correction", "eps"},
        "adamw_counted_kernel": {"lr", "beta1", "beta2", "weight_decay", "eps"},
        "sgd_kernel": {"lr", "momentum", "dampening", "weight_decay"},
        "layer_norm_kernel": {"eps"}, "rms_norm_kernel": {"eps"}, "dropout_kernel": {"keep"},
        "cross_entropy_kernel": {"smoothing"}, "cross_entropy_backward_kernel": {"smoothing"},
    }  # fmt: skip


@pytest.mark.plain_process
def test_float64_and_sizes_of_one_compile(tmp_path, monkeypatch):
    """Triton makes constants of integers that are 1, which have no methods of tensors."""
    x, label = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    with compiling(90, tmp_path, monkeypatch) as compiled:
        softmax.softmax_backward(softmax.softmax_forward(x, True), x, True)
        _, mean, rstd = layer_norm.layer_norm_forward(x, [1], x[0], x[0])
        layer_norm.layer_norm_backward(x, x, [1], mean, rstd, x[0])
        layer_norm.layer_norm_backward_weight(x, x, [1], mean, rstd)
        rms_norm.rms_norm_forward(x, [1], x[0])
        rms_norm.rms_norm_backward(x, x, [1], rstd, x[0])
        rms_norm.rms_norm_backward_weight(x, x, [1], rstd)
        rows = cross_entropy.cross_entropy_forward(x, label, x[0], 1, 0.5)
        cross_entropy.cross_entropy_backward(rows[0], x, label, x.repeat(1, 2)[0], rows, 1, 0.5)
        dropout.dropout_forward(x, 0.5, 1, 1)
        loss, total = nll_loss.nll_loss_forward(x, label, x[0], 1, 1)
        nll_loss.nll_loss_backward(loss, x, label, x[0], 1, 1, total)
        nll_loss.nll_log_softmax_backward(loss, x, label, x[0], 1, 1, total)
        half = x.half()
        linear_act.linear_act_forward(half, half, half[0], "silu", True)
        linear_act.act_backward(half, half, "relu")
        adamw.adamw_step([x], [x.clone()], [x.clone()], [x.clone()], step=1)
        sgd.sgd_step([x], [x.clone()], [None], lr=1.0, momentum=1.0)
    assert len(compiled) == 19
