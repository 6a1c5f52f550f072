"""Modules of parameters and buffers without a shape yet (torch.nn.LazyLinear), against eager."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

import lazyeng

MAKE: dict[str, tuple[Callable[..., torch.nn.Module], tuple[int, ...]]] = {
    "linear": (lambda **keys: torch.nn.LazyLinear(4, **keys), (2, 3)),
    "conv": (lambda **keys: torch.nn.LazyConv1d(4, 3, **keys), (2, 3, 8)),
    "transposed": (lambda **keys: torch.nn.LazyConvTranspose2d(2, 3, **keys), (2, 3, 4, 4)),
    "batch norm": (lambda **keys: torch.nn.LazyBatchNorm1d(**keys), (6, 3)),
    "instance norm": (
        lambda **keys: torch.nn.LazyInstanceNorm1d(affine=True, track_running_stats=True, **keys),
        (6, 3, 5),
    ),
}
MOVES: dict[str, Callable[[torch.nn.Module], Any]] = {
    "to": lambda module: module.to("lazyeng"),
    "device": lambda module: module.to(device=torch.device("lazyeng")),
    "dtype": lambda module: module.to("lazyeng", torch.float64).float(),
    "index": lambda module: module.to("lazyeng:0"),
    "method": lambda module: module.lazyeng(),  # type: ignore[operator]
    "twice": lambda module: module.to("lazyeng").to("lazyeng"),
    "and back": lambda module: module.to("lazyeng").to("cpu"),
    "and narrow": lambda module: module.to("lazyeng").double().float(),
    "part of another": lambda module: torch.nn.Sequential(module).to("lazyeng"),
    "swapped": lambda module: _under("swap_module_params_on_conversion", module),
    "overwritten": lambda module: _under("overwrite_module_params_on_conversion", module),
}


def _under(setting: str, module: torch.nn.Module) -> None:
    """Moved as torch does it with one of its settings for the future."""
    getattr(torch.__future__, f"set_{setting}")(True)
    try:
        module.to("lazyeng")
    finally:
        getattr(torch.__future__, f"set_{setting}")(False)


def _trained(module: torch.nn.Module, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """What it has after two steps, the first of which gives it its shapes."""
    torch.manual_seed(0)
    module(torch.randn(shape))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.zero_grad()
    result = module(torch.randn(shape))
    result.square().sum().backward()
    optimizer.step()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    return [result, *module.state_dict().values(), *grads]


def _all_lazy(module: torch.nn.Module) -> bool:
    tensors = [*module.parameters(), *module.buffers()]
    return all(isinstance(tensor, lazyeng.LazyTensor) for tensor in tensors)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", MAKE)
def test_a_moved_module_is_lazy_and_equals_eager(name, move):
    make, shape = MAKE[name]
    module = make()
    MOVES[move](module)
    assert _all_lazy(module)
    got = _trained(module, shape)
    assert _all_lazy(module)
    assert all(isinstance(p, torch.nn.Parameter) for p in module.parameters())
    expected = _trained(make(), shape)
    assert [tuple(t.shape) for t in got] == [tuple(t.shape) for t in expected]
    for mine, eager in zip(got, expected, strict=True):
        assert torch.equal(lazyeng.unwrap(mine), eager)


@pytest.mark.parametrize("name", MAKE)
def test_one_that_is_made_on_the_device_equals_eager(name):
    make, shape = MAKE[name]
    module = make(device="lazyeng")
    got = _trained(module, shape)
    assert _all_lazy(module)
    for mine, eager in zip(got, _trained(make(), shape), strict=True):
        assert torch.equal(lazyeng.unwrap(mine), eager)


@pytest.mark.parametrize("name", MAKE)
def test_moved_inside_of_a_block(name):
    make, shape = MAKE[name]
    module = make()
    with lazyeng.lazy():
        module.to("lazyeng")
        got = [lazyeng.unwrap(tensor.detach()) for tensor in _trained(module, shape)]
    for mine, eager in zip(got, _trained(make(), shape), strict=True):
        assert torch.equal(mine, eager)


def test_without_a_shape_they_are_of_torchs_classes():
    module = torch.nn.LazyBatchNorm1d().to("lazyeng")
    assert isinstance(module.weight, UninitializedParameter) and module.weight.requires_grad
    assert isinstance(module.running_mean, UninitializedBuffer)
    assert not module.running_mean.requires_grad
    assert repr(module.weight) == "<UninitializedParameter>"
    with pytest.raises(ValueError, match="uninitialized parameter"):
        module.weight + 1
    with pytest.raises(RuntimeError, match="Can't access the shape"):
        _ = module.running_mean.shape


def test_one_that_is_frozen_stays_so():
    module = torch.nn.LazyLinear(4)
    module.weight = UninitializedParameter(requires_grad=False)
    module.to("lazyeng")(torch.ones(2, 3))
    assert _all_lazy(module)
    assert not module.weight.requires_grad and module.bias.requires_grad


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(copied):
    module = copied(torch.nn.LazyLinear(4).to("lazyeng"))
    assert isinstance(module.weight, UninitializedParameter)
    got = _trained(module, (2, 3))
    for mine, eager in zip(got, _trained(torch.nn.LazyLinear(4), (2, 3)), strict=True):
        assert torch.equal(lazyeng.unwrap(mine), eager)


def test_a_deep_copy_is_refused_where_torch_refuses_it():
    with pytest.raises(ValueError, match="uninitialized parameter"):
        copy.deepcopy(torch.nn.LazyBatchNorm1d().to("lazyeng"))


def test_unwrap_gives_plain_ones():
    module = lazyeng.unwrap(torch.nn.LazyBatchNorm1d().to("lazyeng"))
    assert not any(isinstance(t, lazyeng.LazyTensor) for t in (*module.parameters(),))
    got = _trained(module, (6, 3))
    for mine, eager in zip(got, _trained(torch.nn.LazyBatchNorm1d(), (6, 3)), strict=True):
        assert torch.equal(mine, eager)


def test_states_are_saved_and_loaded():
    module = torch.nn.LazyLinear(4).to("lazyeng")
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    assert isinstance(found["weight"], UninitializedParameter)
    given = torch.nn.Linear(3, 4)
    module.load_state_dict(given.state_dict())
    assert torch.equal(lazyeng.unwrap(module(torch.ones(2, 3))), given(torch.ones(2, 3)))
    assert _all_lazy(module)
