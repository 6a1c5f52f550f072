# tests/typed/public_api.py: the types that a checker infers for programs which use lazyeng.
#
# `make lint` checks this file with pyright; tests/test_types.py calls each function and looks
# whether values are what `assert_type` says.
from typing import Any, assert_type

import torch
from torch.utils.data import TensorDataset

import lazyeng

plain = torch.ones(3)
x = lazyeng.wrap(plain)


def blocks(mode: str = "sync"):
    with lazyeng.lazy() as block:
        assert_type(block, lazyeng.lazy)
    lazyeng.lazy("async")
    lazyeng.lazy(mode="deferred")
    if mode == "sync":
        lazyeng.lazy(mode)

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
