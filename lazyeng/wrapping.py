"""wrap and unwrap: between plain tensors and lazy ones, through containers and modules."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from lazyeng import _C, errors
from lazyeng.tensor import LazyTensor

T = TypeVar("T")


def wrap(obj: T) -> T:
    """Makes what is plain lazy, zero-copy.

    Args:
        obj: a strided tensor (any shape, dtype, device) gives a LazyTensor over the same storage; a
            list, tuple, dict or dataclass, also nested, gives the same structure; an ``nn.Module``
            gets lazy parameters and buffers in place and is returned; anything else, and what is
            lazy already, is returned as it is; so are sparse, quantized, nested and meta tensors
            and parameters without a shape yet.

    Returns:
        The same structure. Lazy tensors have the shape, strides, dtype and device of what they
        wrap; ``requires_grad`` and ``.grad`` go with them, the history of autograd does not.
    """
    if isinstance(obj, torch.nn.Module):
        return _in_place(obj, _wrap_tensor)
    return _mapped(obj, _wrap_tensor, wrap)


@errors.boundary
def unwrap(obj: T) -> T:
    """The inverse of `wrap`: waits, and makes what is lazy plain, zero-copy.

    Args:
        obj: a LazyTensor gives a plain ``torch.Tensor`` over the same memory, a leaf; containers
            and modules as for `wrap`; anything else, and what is plain already, is returned as it
            is.

    Raises:
        LazyError: an operation that a tensor depends on failed; with the type and message that
            eager raises.
    """
    if isinstance(obj, torch.nn.Module):
        return _in_place(obj, _unwrap_tensor)
    return _mapped(obj, _unwrap_tensor, unwrap)


def _wrap_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if _C.is_lazy(tensor) or not _wrappable(tensor):
        return tensor
    lazy = _C.wrap_tensor(tensor.detach())
    return _like(tensor, lazy, _wrap_tensor)


def _unwrap_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if not _C.is_lazy(tensor):
        return tensor
    return _like(tensor, _C.plain(tensor), _unwrap_tensor)


def _wrappable(tensor: torch.Tensor) -> bool:
    """Strided tensors with memory; sparse, quantized, nested and meta ones stay as they are."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor.is_nested
        and not isinstance(tensor, UninitializedTensorMixin)
    )


def _like(
    old: torch.Tensor, new: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Gives `new` what belongs to the tensor `old` and not to its memory."""
    requires_grad = old.requires_grad and (old.is_leaf or isinstance(old, LazyTensor) is False)
    if isinstance(old, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
    elif requires_grad:
        new.requires_grad_()
    if old.is_leaf and old.grad is not None:
        new.grad = convert(old.grad)
    return new


def map_tensors(obj: T, leaf: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """The containers that `wrap` goes into, with `leaf` applied to each tensor in them."""
    return _mapped(obj, leaf, lambda item: map_tensors(item, leaf))


def _mapped(
    obj: Any, leaf: Callable[[torch.Tensor], torch.Tensor], again: Callable[[Any], Any]
) -> Any:
    if isinstance(obj, torch.Tensor):
        return leaf(obj)
    if isinstance(obj, tuple):
        items = [again(item) for item in obj]
        if hasattr(obj, "_fields"):  # a namedtuple
            return type(obj)(*items)
        return type(obj)(items) if not isinstance(obj, torch.Size) else obj
    if isinstance(obj, list):
        return type(obj)([again(item) for item in obj])
    if isinstance(obj, dict):
        return _mapped_dict(obj, again)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return _mapped_dataclass(obj, again)
    return obj


def _mapped_dict(obj: dict[Any, Any], again: Callable[[Any], Any]) -> dict[Any, Any]:
    import copy

    result = copy.copy(obj)  # keeps the class, and what a subclass (defaultdict) has besides items
    for key, value in obj.items():
        result[key] = again(value)
    return result


def _mapped_dataclass(obj: Any, again: Callable[[Any], Any]) -> Any:
    import copy

    result = copy.copy(obj)  # neither __init__ nor __post_init__ runs again
    for field in dataclasses.fields(obj):
        if hasattr(obj, field.name):
            object.__setattr__(result, field.name, again(getattr(obj, field.name)))
    return result


def _in_place(
    module: torch.nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Module:
    """Swaps every parameter and buffer once: tied ones stay tied, optimizers keep working."""
    seen: set[int] = set()
    for part in module.modules():
        for tensor in (*part._parameters.values(), *part._buffers.values()):
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            new = convert(tensor)
            if new is not tensor:
                _swap(tensor, new)
    return module


def _swap(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Exchanges what two tensor objects are, as torch.utils.swap_tensors does.

    That function refuses objects with weak references, such as the parameters of torch.nn.LSTM.
    Those refer to the object, whose identity stays, so they may be kept.
    """
    if not weakref.getweakrefs(tensor):
        torch.utils.swap_tensors(tensor, new)
        return
    for name in ("__class__", "__dict__"):
        old_value, new_value = getattr(tensor, name), getattr(new, name)
        setattr(tensor, name, new_value)
        setattr(new, name, old_value)
    torch._C._swap_tensor_impl(tensor, new)
