"""``torch.load(..., map_location="lazyeng")``: the tensors of the file are lazy.

torch asks a device to bring each storage to it, and makes tensors of what it gets. There are no
lazy storages: what is in the real device's memory is marked, and tensors made of it are wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._utils
from torch import _weights_only_unpickler

from lazyeng.wrapping import wrap

_MAKERS = ("_rebuild_tensor_v2", "_rebuild_tensor_v3")


def install(name: str, real: str) -> None:
    """Tells torch of the device `name`, which stands for `real`. Once per process, at import."""

    def bring(storage: Any, location: str) -> Any:
        if location.partition(":")[0] != name:
            return None
        storage = torch.serialization.default_restore_location(storage, real)
        storage._lazyeng_wanted = True
        return storage

    torch.serialization.register_package(9, lambda _storage: None, bring)
    for maker in _MAKERS:
        setattr(torch._utils, maker, _wrapping(getattr(torch._utils, maker)))
    _weights_only_unpickler._get_allowed_globals.cache_clear()  # (it has the functions of before)


def _wrapping(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def make(storage: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = original(storage, *args, **kwargs)
        untyped = getattr(storage, "_untyped_storage", storage)
        return wrap(tensor) if getattr(untyped, "_lazyeng_wanted", False) else tensor

    return make
