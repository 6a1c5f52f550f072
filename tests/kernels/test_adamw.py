"""adamw.py against torch.optim.AdamW."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
from lazyeng.triton_kernels import adamw as kernels

from tests.kernels.compare import ARCHES, assert_same, compiling, kernels_of
from tests.kernels.optimizers import gradients, parameters, steps_of_torch

OPTIONS = {
    "default": {},
    "all": {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.3, "maximize": True},
    "amsgrad": {"lr": 0.05, "amsgrad": True, "weight_decay": 0.0},
}


def states(params, amsgrad):
    return [[torch.zeros_like(p) for p in params] for _ in range(3 if amsgrad else 2)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_torch(dtype, options, device):
    params = parameters(device, (dtype,))
    all_grads = gradients(params)
    ours, theirs, their_states = steps_of_torch(
        torch.optim.AdamW, params, all_grads, foreach=False, **options
    )
    our_states = states(ours, options.get("amsgrad", False))
    for step, grads in enumerate(all_grads, 1):
        kernels.adamw_step(ours, grads, *our_states, step=step, **options)
    assert_same(ours, theirs)
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    for name, tensors in zip(names, our_states, strict=False):
        assert_same(tensors, [state[name] for state in their_states])


def test_float64_options_are_not_rounded_to_float32(device):
    """Within 1e-12: scalars reach the kernel in double precision."""
    params = [torch.ones(5, device=device, dtype=torch.float64)]
    grads = gradients(params, steps=1)
    ours, theirs, _ = steps_of_torch(torch.optim.AdamW, params, grads, lr=0.1, foreach=False)
    kernels.adamw_step(ours, grads[0], *states(ours, False), step=1, lr=0.1)
    assert_same(ours, theirs, tolerances=(1e-12, 1e-12))


def test_mixed_dtypes_are_rounded_once(device):
    """16-bit parameters with float32 states, beside others, against a float32 step."""
    params = parameters(device, (torch.bfloat16, torch.float16, torch.float32))[:-5]
    grads = gradients(params, steps=1)[0]
    wide = [p.float() for p in params]
    our_states, wide_states = states(wide, False), states(wide, False)
    kernels.adamw_step(params, grads, *our_states, step=1, lr=0.1)
    kernels.adamw_step(wide, [g.float() for g in grads], *wide_states, step=1, lr=0.1)
    assert_same(params, [w.to(p.dtype) for w, p in zip(wide, params, strict=True)])
    assert_same(our_states, wide_states)


def test_steps_of_their_own(device):
    """A parameter that joined later has another correction."""
    params = [torch.ones(3, device=device), torch.ones(3, device=device)]
    grads, our_states = gradients(params, 1)[0], states(params, False)
    expected = [p.clone() for p in params]
    for i, step in enumerate((7, 1)):
        kernels.adamw_step(
            expected[i : i + 1], grads[i : i + 1], *states(expected[:1], False), step=step
        )
    kernels.adamw_step(params, grads, *our_states, step=[7, 1])
    assert_same(params, expected)


def test_other_strides_and_unaligned_addresses(device):
    """What does not fill its memory in one order is copied and written back."""
    base = torch.randn(4, 9, device=device)
    param, grad = base[:, 1::2], torch.randn(4, 4, device=device).t()
    shifted = torch.randn(40, device=device)[1:]  # 4 bytes behind a multiple of 16
    params, grads = [param, shifted], [grad, torch.randn_like(shifted)]
    copies = [p.clone(memory_format=torch.contiguous_format) for p in params]
    rest = base[:, ::2].clone()
    kernels.adamw_step(params, grads, *states(params, False), step=1)
    kernels.adamw_step(copies, [g.contiguous() for g in grads], *states(copies, False), step=1)
    assert_same(params, copies)
    assert_same(base[:, ::2], rest)


def test_nan_in_the_largest_square_stays(device):
    params, nan = [torch.ones(2, device=device)], torch.tensor([torch.nan, 1.0], device=device)
    kernels.adamw_step(params, [nan], *states(params, True), step=1, amsgrad=True)
    assert params[0].isnan().tolist() == [True, False]


def test_autograd_notices_the_step(device):
    param = torch.ones(3, device=device, requires_grad=True)
    loss = (param * param).sum()
    kernels.adamw_step([param], [torch.ones_like(param)], *states([param], False), step=1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nothing_to_do():
    kernels.adamw_step([], [], [], [], step=1)


def test_errors(device):
    params = [torch.ones(2, device=device)]
    grads, own = [torch.ones(2, device=device)], states(params, False)
    for options, message in (
        ({"lr": -1.0}, "lr is out of range, got -1.0, expected 0.0 or more"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] is out of range, got 1.0, expected 0.0 or more, less"),
        ({"step": 0}, "step is out of range, got 0, expected 1 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.adamw_step(params, grads, *own, **{"step": 1, **options})
    with pytest.raises(RuntimeError, match="grads has another length than params, got 0, expect"):
        kernels.adamw_step(params, [], *own, step=1)
    with pytest.raises(RuntimeError, match="max_exp_avg_sqs has another length"):
        kernels.adamw_step(params, grads, *own, step=1, amsgrad=True)
    with pytest.raises(
        RuntimeError, match=r"shape of grads\[0\] does not fit, got \[1\], expected"
    ):
        kernels.adamw_step(params, [grads[0][:1]], *own, step=1)
    with pytest.raises(RuntimeError, match=r"grads\[0\] is sparse"):
        kernels.adamw_step(params, [grads[0].to_sparse()], *own, step=1)
    with pytest.raises(NotImplementedError, match=r"dtype of params\[0\] is not supported"):
        kernels.adamw_step([params[0].to(torch.complex64)], grads, *own, step=1)


@pytest.mark.plain_process
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles(arch, tmp_path, monkeypatch):
    params = [torch.ones(2000, dtype=torch.bfloat16), torch.ones(3)]
    with compiling(arch, tmp_path, monkeypatch) as compiled:
        kernels.adamw_step(params, params, *states(params, True), step=1, amsgrad=True)
    # (The other one is launched for torch's own op: tests/fuse/test_chosen.py.)
    assert compiled == kernels_of(kernels) - {"adamw_counted_kernel"}
