"""Subclasses of `torch.nn.Parameter` around lazy tensors.

torch.nn.Parameter(data) of a tensor of another class keeps that class, and only marks the object as
a parameter. A user's subclass of it would be forgotten, with its methods. Here such an object is of
a class made for the purpose, which is the user's class and LazyTensor, and is named as the former.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.nn import Parameter
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from lazyeng import _C, errors
from lazyeng.tensor import LazyTensor, wrappable

# Their subclasses are kept (a buffer without a shape yet is no Parameter).
KEPT = (Parameter, UninitializedTensorMixin)

_deepcopy_of_torch = torch.Tensor.__deepcopy__


class _Quiet:
    """The user's class is not told of the classes made here: it may have a register of its own."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None: ...


_lazy_classes: WeakValueDictionary[type, type] = WeakValueDictionary()


def install() -> None:
    """Puts the constructors that keep classes in place of torch's. Once per process, at import."""
    torch.Tensor._make_subclass = staticmethod(_make_subclass_like(torch.Tensor._make_subclass))
    Parameter.__new__ = staticmethod(_new_like(Parameter.__new__))


def plain_class(cls: type) -> type:
    """The class of plain parameters that are of this class if lazy: the inverse of `lazy_class`."""
    if not issubclass(cls, KEPT):  # LazyTensor, or another class that is marked
        return Parameter
    return cls.__dict__.get("_lazyeng_plain_class", cls)


def lazy_class(cls: type) -> type:
    """The class of lazy tensors that are parameters of the class `cls`."""
    if issubclass(cls, LazyTensor):
        return cls
    if cls is Parameter or cls is torch.Tensor:
        return LazyTensor
    made = _lazy_classes.get(cls)
    if made is None:
        names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
        names["_lazyeng_plain_class"] = cls
        if issubclass(cls, UninitializedTensorMixin):
            names["cls_to_become"] = lazy_class(cls.cls_to_become)
            names["__reduce_ex__"] = _reduce_uninitialized
            if not issubclass(cls, Parameter):
                names["__deepcopy__"] = _deepcopy_of_torch  # which refuses buffers
        metaclass: Any = type(cls)
        made = metaclass(cls.__name__, (_Quiet, cls, LazyTensor), names)
        made = _lazy_classes.setdefault(cls, made)
    return made


def _reduce_uninitialized(self: torch.Tensor, protocol: Any) -> Any:
    """As torch pickles them: the class alone, which forgets the device."""
    return plain_class(type(self)), (self.requires_grad,)


def as_parameter(tensor: torch.Tensor, cls: type, requires_grad: bool) -> torch.Tensor:
    """A parameter of the class `cls` over the memory of `tensor`; no code of that class runs."""
    if not _C.is_lazy(tensor):
        return torch.Tensor._make_subclass(plain_class(cls), tensor, requires_grad)
    return of_class(cls, tensor, requires_grad)


def of_class(cls: type, lazy: torch.Tensor, requires_grad: bool) -> Any:
    """A leaf of the class `cls`, one of parameters or of what has no shape yet."""
    # As torch's constructor makes it of tensors of another class; but that calls requires_grad_,
    # which is refused inside of torch.func's transforms, where a parameter may be made.
    if requires_grad and not (lazy.is_floating_point() or lazy.is_complex()):
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    with torch._C.DisableTorchFunctionSubclass():
        made: Any = lazy.detach()
    made.requires_grad = requires_grad
    cls = plain_class(cls)
    if issubclass(cls, Parameter):
        made._is_param = True
    return made if cls is Parameter else _turned_into(cls, made)


def _turned_into(cls: type, made: Any) -> Any:
    """`made`, a LazyTensor marked as a parameter, as one of the class `cls`."""
    with contextlib.suppress(TypeError):  # one with __slots__: it stays a LazyTensor
        made.__class__ = lazy_class(cls)
    return made


def _new_like(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if not isinstance(data, LazyTensor):
            return original(cls, data, requires_grad)
        keeps_class = cls is Parameter and isinstance(data, UninitializedTensorMixin)
        return of_class(type(data) if keeps_class else cls, data, requires_grad)

    return new


def _unrecorded(data: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """For what has the keys of the device "lazyeng" and is not lazy: the inside of a tensor of
    FakeTensorMode, whose `detach` our kernel would hand to itself."""
    if not torch._C._dispatch_keys(data).has(torch._C.DispatchKey.PrivateUse1):
        return contextlib.nullcontext()
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
    )


def _make_subclass_like(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.Tensor._make_subclass, which constructors of such classes call; never in a block."""

    @functools.wraps(original)
    @errors.boundary
    def make_subclass(
        cls: type, data: torch.Tensor, require_grad: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        lazy = _C.is_lazy(data)
        if isinstance(cls, type) and issubclass(cls, LazyTensor) and not lazy:
            if wrappable(data):
                data, lazy = _C.wrap_tensor(data.detach()), True
            else:
                cls = plain_class(cls)
        if not lazy:
            with _unrecorded(data):
                return _C.call_outside(original, (cls, data, require_grad), kwargs)
        if issubclass(cls, KEPT):
            return as_parameter(data, cls, require_grad)
        return _C.call_outside(original, (cls, _C.plain(data), require_grad), kwargs)

    return make_subclass
