"""What looks at plain tensors' memory waits for recorded writes, and runs outside the lazy mode.

Values of a plain tensor are read through operators, which record, except by the few methods that
look at its memory. Inside lazy(), and while a recorded write is pending, those would find stale
memory, or a LazyTensor where they need storage. (Whatever else touches the memory meanwhile, such
as a foreign C++ kernel, gets the error of csrc/run/plain/plain_storage.cpp.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack
from torch._C._functorch import get_unwrapped, is_gradtrackingtensor

from lazyeng import _C, errors
from lazyeng.tensor import LazyTensor, array_of, list_of, tell_of_array
from lazyeng.torch_patches._patching import put_method

_METHODS = (
    "numpy", "tolist", "data_ptr", "__dlpack__", "__deepcopy__", "__reduce_ex__", "untyped_storage",
    "_typed_storage", "share_memory_", "is_shared", "__repr__",
)  # fmt: skip
# These give the memory to others, who may write it unseen.
_LENDING = frozenset({"__dlpack__", "to_dlpack"})
# These do not raise what failed. (The text of a plain tensor is that of the values it keeps.)
_NO_READS = frozenset({"share_memory_", "is_shared", "__repr__"})
# These look at the memory below a tensor of torch.func.grad or jvp, in which a lazy one has none.
_BELOW_TRANSFORMS = frozenset({"tolist"})
# Programs call these all the time.
_WITHOUT_ARGUMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": array_of, "tolist": list_of,
}  # fmt: skip
_METHODS_OF_ELEMENTS = ("apply_", "map_", "map2_")
# Of storages, and whether they write.
_METHODS_OF_STORAGES = {
    "__getitem__": False, "data_ptr": False, "_write_file": False,
    "__setitem__": True, "copy_": True, "fill_": True,
}  # fmt: skip


def install() -> None:
    """Puts the waiting methods in place of torch's. Once per process, at import."""
    for name in _METHODS:
        put_method(name, _waiting(name, getattr(torch.Tensor, name)))
    for name in _METHODS_OF_ELEMENTS:
        put_method(name, _also_of_lazy(name, getattr(torch.Tensor, name)))
    for name, writes in _METHODS_OF_STORAGES.items():
        method = getattr(torch.UntypedStorage, name)
        setattr(torch.UntypedStorage, name, _waiting_of_storage(method, writes))
    to_dlpack = _waiting_to_dlpack(torch.to_dlpack)
    for module in (torch, torch.utils.dlpack):
        vars(module)["to_dlpack"] = to_dlpack


def _giving(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which engine and recorder hear of (csrc/run/plain/unseen_writers.h)."""

    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _C.before_lending(self)
        return tell_of_array(original(self, *args, **kwargs))

    def lend(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(_C.lend(self), *args, **kwargs)

    def tell_address(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _C.tell_address(self)
        return original(self, *args, **kwargs)

    if name == "numpy":
        return numpy
    if name in _LENDING:
        return lend
    return tell_address if name == "data_ptr" else original


def _waiting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    # `torch.Tensor.tolist(x)` is `x.tolist()`, which is LazyTensor's own.
    of_lazy = vars(LazyTensor).get(name)
    look = _giving(name, original)
    reads = name not in _NO_READS
    look_alone = _WITHOUT_ARGUMENTS.get(name)

    below = name in _BELOW_TRANSFORMS

    def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if of_lazy is not None and isinstance(self, LazyTensor):
            return of_lazy(self, *args, **kwargs)
        try:
            if _C.reads_directly(self):
                return look(self, *args, **kwargs)
            if look_alone is not None and not args and not kwargs:
                return look_alone(self)
            return _C.call_eagerly(look, self, args, kwargs, reads)
        except RuntimeError:  # (to ask beforehand would take a tenth of the call)
            lazy = _lazy_below(self) if below else None
            if lazy is None:
                raise
        return getattr(lazy, name)(*args, **kwargs)

    # What sync_debug calls the frame that waits.
    read.__code__ = read.__code__.replace(co_qualname=f"Tensor.{name}")
    return errors.boundary(functools.wraps(original)(read))


def _lazy_below(tensor: Any) -> LazyTensor | None:
    """The lazy tensor that one in torch.func.grad, jvp or the like stands for, if it is lazy.

    (One in vmap stands for many: torch refuses it.)
    """
    while is_gradtrackingtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor if isinstance(tensor, LazyTensor) else None


def _also_of_lazy(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    of_lazy = vars(LazyTensor)[name]

    @errors.boundary
    @functools.wraps(original)
    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, LazyTensor):
            return of_lazy(self, *args, **kwargs)
        if all(map(_is_at_hand, (self, *args, *kwargs.values()))):
            return original(self, *args, **kwargs)
        # What was recorded may still read the memory, so it is written by an operator.
        copy = _C.call_outside(torch.clone, (_values(self),), {}).requires_grad_(self.requires_grad)
        named = {name: _values(value) for name, value in kwargs.items()}
        return self.copy_(_C.call_outside(original, (copy, *map(_values, args)), named))

    return call


def _waiting_of_storage(original: Callable[..., Any], writes: bool) -> Callable[..., Any]:
    @errors.boundary
    @functools.wraps(original)
    def method(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        _C.complete_storage(self, writes)
        for storage in (*args, *kwargs.values()):
            if isinstance(storage, torch.UntypedStorage):
                _C.complete_storage(storage, False)
        return original(self, *args, **kwargs)

    return method


def _is_at_hand(argument: Any) -> bool:
    """Whether C++ may look at its memory at once, if it has any."""
    if not isinstance(argument, torch.Tensor):
        return True
    return not isinstance(argument, LazyTensor) and _C.reads_directly(argument)


def _values(argument: Any) -> Any:
    """Of a tensor: a plain one, for C++ to look at. Waits."""
    if isinstance(argument, LazyTensor):
        return argument._plain()
    if not isinstance(argument, torch.Tensor):
        return argument
    return _C.call_eagerly(torch.Tensor.detach, argument, (), {}, True)


def _waiting_to_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's is a function of C++, which looks at the memory without asking the tensor's class."""
    read_plain = _waiting("to_dlpack", original)

    @errors.boundary
    @functools.wraps(original)
    def to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, LazyTensor):
            # (In a block the copy that `copy=True` makes would be recorded.)
            return _C.call_outside(original, (_C.plain(tensor), *args), kwargs)
        return read_plain(tensor, *args, **kwargs)

    return to_dlpack
