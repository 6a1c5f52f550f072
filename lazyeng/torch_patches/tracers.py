"""torch's tracers (`make_fx`, `torch.func.linearize`, FakeTensorMode) take lazy tensors.

They let tensors of a class that they do not know trace themselves, which a LazyTensor does not: it
is a torch.Tensor to them, whose operators their modes see before they are recorded.
"""

from __future__ import annotations

from typing import Any

from lazyeng.tensor import LazyTensor
from lazyeng.torch_patches._patching import is_lazy, when_imported


def install() -> None:
    """Has the tracers changed when they are imported, which takes a second. Once per process."""
    when_imported("torch.fx.experimental.proxy_tensor", _change_proxies)
    when_imported("torch._subclasses.fake_tensor", _change_fakes)


def _change_proxies(proxy_tensor: Any) -> None:
    proxy_tensor.HANDLED_TYPES = (*proxy_tensor.HANDLED_TYPES, LazyTensor)


def _change_fakes(fake_tensor: Any) -> None:
    is_unknown = fake_tensor._check_for_subclass_arg

    def check(x: object) -> bool:
        return not is_lazy(x) and is_unknown(x)

    fake_tensor._check_for_subclass_arg = check
