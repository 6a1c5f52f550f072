"""TorchScript looks at memory in C++, and makes constants of tensors that it finds there.

What it saves is saved once recorded writes to it have run. Modules are traced and frozen outside of
blocks, where what they compute is plain: a lazy tensor cannot become a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lazyeng import _C
from lazyeng.torch_patches._patching import inside_block, is_lazy

_SAVERS = ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile")

_MAKERS = ("trace", "trace_module", "freeze", "optimize_for_inference", "run_frozen_optimizations")


def install() -> None:
    """Puts waiting methods in place of torch's. Once per process, at import."""
    for name in _SAVERS:
        if original := getattr(torch._C.ScriptModule, name, None):
            setattr(torch._C.ScriptModule, name, _waiting(original))
    for name in _MAKERS:
        setattr(torch.jit, name, _outside(getattr(torch.jit, name)))


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        _C.wait_for_plain_writes()
        return original(*args, **kwargs)

    return save


def _outside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if not inside_block() and not any(map(is_lazy, leaves)):
            return original(*args, **kwargs)
        _C.wait_for_all()
        plain = [_C.plain(leaf) if is_lazy(leaf) else leaf for leaf in leaves]
        return _C.call_outside(original, *pytree.tree_unflatten(plain, structure))

    return make
