# tests/typed/public_api.py: the types that a checker infers for programs which use lazyeng.
#
# `make lint` checks this file with pyright; tests/test_types.py calls each function and looks
# whether values are what `assert_type` says.
from typing import Any, assert_type

import numpy as np
import torch
from torch.types import Number
from torch.utils.data import TensorDataset

import lazyeng
from lazyeng import LazyTensor

plain = torch.ones(3)
x = lazyeng.wrap(plain)


def wrapped_and_unwrapped():
    assert_type(x, LazyTensor)
    assert_type(lazyeng.wrap(x), LazyTensor)
    assert_type(lazyeng.unwrap(x), torch.Tensor)
    assert_type(lazyeng.wrap([plain]), list[torch.Tensor])
    assert_type(lazyeng.wrap({"x": plain}), dict[str, torch.Tensor])
    assert_type(lazyeng.wrap(torch.nn.Linear(2, 1)), torch.nn.Linear)
    assert_type(lazyeng.unwrap("text"), str)
    assert_type(LazyTensor([1.0, 2.0]), LazyTensor)
    assert_type(LazyTensor(plain, requires_grad=True), LazyTensor)


def read():
    assert_type(x.wait(), LazyTensor)
    assert_type(x.is_ready(), bool)
    assert_type(x[0].item(), Number)
    assert_type(x.tolist(), list[Any])
    assert_type(x.numpy(), np.ndarray)
    assert_type(lazyeng.wrap(torch.relu(x)).is_ready(), bool)  # as docs/lazy.md says


def operators():
    bits = lazyeng.wrap(torch.arange(3))
    for made in (
        assert_type(x + 1, LazyTensor), assert_type(1 + x, LazyTensor),
        assert_type(x - plain, LazyTensor), assert_type(2.0 - x, LazyTensor),
        assert_type(x * 2, LazyTensor), assert_type(2 * x, LazyTensor),
        assert_type(x / x, LazyTensor), assert_type(1 / x, LazyTensor),
        assert_type(x // 2, LazyTensor), assert_type(2 // x, LazyTensor),
        assert_type(x % 2, LazyTensor), assert_type(2 % x, LazyTensor),
        assert_type(x**2, LazyTensor), assert_type(2**x, LazyTensor),
        assert_type(x @ x, LazyTensor), assert_type(-x, LazyTensor), assert_type(+x, LazyTensor),
        assert_type(abs(x), LazyTensor), assert_type(x > 0, LazyTensor),
        assert_type(x == plain, LazyTensor), assert_type(x != 1, LazyTensor),
        assert_type(x <= x, LazyTensor), assert_type(~bits, LazyTensor),
        assert_type(bits & 1, LazyTensor), assert_type(1 | bits, LazyTensor),
        assert_type(bits ^ bits, LazyTensor), assert_type(bits << 1, LazyTensor),
        assert_type(bits >> 1, LazyTensor), assert_type(1 << bits, LazyTensor),
        assert_type(x[0], LazyTensor), assert_type(x[x > 0], LazyTensor),
        assert_type(x[None, ..., 1:], LazyTensor),
    ):  # fmt: skip
        made.wait()


def operators_in_place():
    y, bits = lazyeng.wrap(torch.ones(3)), lazyeng.wrap(torch.arange(3))
    y += 1
    y -= plain
    y *= x
    y /= 2
    y //= 1
    y %= 5
    y **= 2
    bits &= 3
    bits |= 1
    bits ^= 1
    bits <<= 1
    bits >>= 1
    assert_type(y, LazyTensor)
    assert_type(bits, LazyTensor)


def blocks():
    with lazyeng.lazy() as block:
        assert_type(block, lazyeng.lazy)
    lazyeng.lazy("async")
    lazyeng.lazy(mode="deferred")

    @lazyeng.lazy("deferred")
    def doubled(values: torch.Tensor, *, times: int = 2) -> torch.Tensor:
        return values * times

    assert_type(doubled(plain, times=4), torch.Tensor)
    lazyeng.set_sync_debug_mode("off")
    with lazyeng.allow_sync("it may"):
        pass


def lagged():
    of_anything = lazyeng.Lagged(by=1)
    of_anything.push((x, 1.0))
    of_anything.push("text")
    of_tensors = lazyeng.Lagged[torch.Tensor]()
    assert_type(of_tensors.push(x), torch.Tensor | None)
    assert_type(of_tensors.push(x), torch.Tensor | None)
    assert_type(of_tensors.flush(), list[torch.Tensor])


def loaders():
    dataset = TensorDataset(torch.ones(6, 2), torch.zeros(6))
    # All arguments that torch's has, and ours.
    loader = lazyeng.DataLoader(
        dataset, 2, False, None, None, 0, None, False, False, 0.0, None, None, torch.Generator(),
        prefetch_factor=None, persistent_workers=False, pin_memory_device="", in_order=True,
        device="cpu", prefetch=2,
    )  # fmt: skip
    assert_type(loader, lazyeng.DataLoader[tuple[torch.Tensor, ...]])
    assert_type(loader.dataset, torch.utils.data.Dataset[tuple[torch.Tensor, ...]])
    assert isinstance(loader, torch.utils.data.DataLoader)
    lazyeng.DataLoader(dataset, batch_sampler=[[0, 1], [2]], collate_fn=len)
    lazyeng.DataLoader(dataset, batch_size=None, sampler=range(2))
    for batch in loader:
        assert_type(batch, Any)  # a list here, whatever collate_fn returns
    for text in lazyeng.prefetch(["a", "b"], depth=1, device="cpu"):
        assert_type(text, str)
    with lazyeng.prefetch(loader) as ahead:
        next(ahead)


def what_happens():
    with lazyeng.profile("trace.json"):
        pass
    assert_type(lazyeng.engine_stats(), dict[str, int])
    assert_type(lazyeng.graph(x).to_html(), str)
    lazyeng.synchronize()


def failures():
    try:
        lazyeng.wrap(plain)[torch.tensor([7])].wait()
    except IndexError as error:
        assert isinstance(error, lazyeng.LazyError)
        assert_type(error.op, str)
        assert_type(error.inputs, list[str])
