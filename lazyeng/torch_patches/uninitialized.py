"""Parameters and buffers without a shape yet, as torch.nn.LazyLinear has them, around lazy tensors.

torch forgets that they have none where a move, such as ``module.to("lazyeng")``, gives a tensor of
another class. Here it gives one that is both, as of other classes of parameters.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from lazyeng import device
from lazyeng.torch_patches._patching import is_lazy
from lazyeng.torch_patches.parameters import of_class


def install() -> None:
    """Has them keep their class when they are moved. Once per process, at import."""
    moves = UninitializedTensorMixin._allowed_methods
    if hasattr(torch.Tensor, device.NAME):
        moves.append(getattr(torch.Tensor, device.NAME))  # as torch's `cuda`
    original: Any = UninitializedTensorMixin.__dict__["__torch_function__"].__func__

    @functools.wraps(original)
    def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = original(cls, func, types, args, kwargs)
        if is_lazy(made) and func in moves and not isinstance(made, UninitializedTensorMixin):
            return of_class(cls, made, args[0].requires_grad)
        return made

    setattr(UninitializedTensorMixin, "__torch_function__", classmethod(torch_function))  # noqa: B010
