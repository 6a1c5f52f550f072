"""sgd.py against torch.optim.SGD."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
from lazyeng.triton_kernels import sgd as kernels

from tests.kernels.compare import ARCHES, assert_same, compiling, kernels_of
from tests.kernels.optimizers import gradients, parameters, steps_of_torch

OPTIONS = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.2},
    "nesterov": {"lr": 0.1, "momentum": 0.7, "nesterov": True, "maximize": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_torch(dtype, options, device):
    params = parameters(device, (dtype,))
    all_grads = gradients(params)
    ours, theirs, their_states = steps_of_torch(
        torch.optim.SGD, params, all_grads, foreach=False, **options
    )
    buffers = [None] * len(ours)
    for grads in all_grads:
        kernels.sgd_step(ours, grads, buffers, **options)
    assert_same(ours, theirs)
    assert_same(buffers, [state.get("momentum_buffer") for state in their_states])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_infinite_parameters_without_weight_decay(momentum, device):
    params = [torch.tensor([1.0, torch.inf, -torch.inf, -0.0], device=device)]
    all_grads = [[torch.tensor([0.5, 0.0, 0.25, -0.0], device=device)]] * 2
    options = {"lr": 0.1, "momentum": momentum}
    ours, theirs, their_states = steps_of_torch(
        torch.optim.SGD, params, all_grads, foreach=False, **options
    )
    buffers = [None]
    for grads in all_grads:
        kernels.sgd_step(ours, grads, buffers, **options)
    assert_same(ours, theirs)
    assert_same(buffers, [state.get("momentum_buffer") for state in their_states])


def test_mixed_dtypes_are_rounded_once(device):
    params = parameters(device, (torch.bfloat16, torch.float16))
    grads = gradients(params, steps=1)[0]
    wide = [p.float() for p in params]
    kernels.sgd_step(params, grads, [None] * len(params), lr=0.1)
    kernels.sgd_step(wide, [g.float() for g in grads], [None] * len(params), lr=0.1)
    assert_same(params, [w.to(p.dtype) for w, p in zip(wide, params, strict=True)])


def test_buffers_of_some_parameters(device):
    """A parameter that joined later starts with its gradient, undamped."""
    params, grads = [torch.zeros(3, device=device) for _ in range(2)], gradients([torch.ones(3)], 2)
    grads = [g[0].to(device) for g in grads]
    old = torch.ones(3, device=device)
    buffers = [old, None]
    kernels.sgd_step(params, grads, buffers, lr=1.0, momentum=0.5, dampening=0.5)
    assert_same(params, [-(0.5 + 0.5 * grads[0]), -grads[1]])
    assert buffers[0] is old
    assert_same(buffers, [0.5 + 0.5 * grads[0], grads[1]])


def test_buffers_keep_the_strides(device):
    params, buffers = [torch.randn(6, 4, device=device).t()], [None]
    kernels.sgd_step(params, gradients(params, 1)[0], buffers, lr=1.0, momentum=0.5)
    assert buffers[0].stride() == params[0].stride()


def test_errors(device):
    params, buffers = [torch.ones(2, device=device)], [None]
    for options, message in (
        ({"lr": -1.0}, "lr is out of range, got -1.0, expected 0.0 or more"),
        ({"lr": 1.0, "nesterov": True}, "nesterov does not fit, got momentum 0.0 and dampening 0"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.sgd_step(params, params, buffers, **options)
    with pytest.raises(RuntimeError, match="momentum_buffers has another length than params"):
        kernels.sgd_step(params, params, [], lr=1.0)


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    params = [torch.ones(2000, dtype=torch.bfloat16), torch.ones(3)]
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        kernels.sgd_step(params, params, [None, params[1]], lr=0.1, momentum=0.9)
    assert compiled == kernels_of(kernels)
