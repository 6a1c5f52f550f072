"""wrap and unwrap: between plain tensors and lazy ones, through containers and modules."""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import torch
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils.hooks import RemovableHandle

from lazyeng import _C, errors
from lazyeng.config import MODES
from lazyeng.containers import map_leaves
from lazyeng.tensor import LazyTensor, wrappable
from lazyeng.torch_patches.parameters import KEPT, as_parameter, plain_class

T = TypeVar("T")


@overload
def wrap(obj: torch.Tensor) -> LazyTensor: ...
@overload
def wrap(obj: T) -> T: ...
def wrap(obj: T) -> T:
    """Makes tensors, containers of tensors, and modules lazy, without copying values.

    Args:
        obj: a strided tensor (any shape, dtype, device) gives a LazyTensor over the same storage. A
            list, tuple, mapping, mutable sequence or dataclass, also nested, gives a copy of the
            same structure, or itself if it holds nothing to make lazy. An ``nn.Module`` gets lazy
            parameters and buffers in place and is returned. Everything else is returned as it is:
            lazy tensors, sparse, quantized, nested and meta tensors, tensors of a class of their
            own (subclasses of ``nn.Parameter`` excepted), parameters without a shape yet, other
            objects.

    Returns:
        The same structure. Lazy tensors have the shape, strides, dtype and device of what they
        wrap; ``requires_grad``, ``.grad`` and the history of autograd go with them.

    Raises:
        RuntimeError: C++ code holds a parameter of the module, so that no other tensor can take its
            place (``torch.utils.swap_tensors``); the module is as before.
    """
    made: Any = _C.wrap_bare(obj)  # the common case, in a tenth of the time
    return _mapped(obj, _wrap_tensor) if made is None else made


@overload
def unwrap(obj: LazyTensor) -> torch.Tensor: ...
@overload
def unwrap(obj: T) -> T: ...
@errors.boundary
def unwrap(obj: T) -> T:  # pyright: ignore[reportInconsistentOverload]
    """Waits, and returns plain tensors over the same memory.

    Args:
        obj: a LazyTensor gives a plain ``torch.Tensor`` over the same memory, of the same shape and
            dtype; containers and modules as for `wrap`; anything else, and what is plain already,
            is returned as it is.

    Returns:
        What `wrap` was given, but that each tensor is a leaf: one that was a leaf keeps its
        ``requires_grad`` and ``.grad``, any other is cut off from its history, as by ``detach()``.

    Raises:
        LazyError: an operation that a tensor depends on failed; with the type and message that
            eager raises.
    """
    made: Any = _C.unwrap_bare(obj)
    return _mapped(obj, _unwrap_tensor) if made is None else made


def _wrap_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if _C.is_lazy(tensor) or not (_has_no_class_of_its_own(tensor) and wrappable(tensor)):
        return tensor
    if tensor.grad_fn is not None and not torch.is_inference_mode_enabled():
        return _with_history(tensor)
    lazy = _C.wrap_tensor(tensor.detach())
    return _like(tensor, lazy, _wrap_tensor)


def _with_history(tensor: torch.Tensor) -> torch.Tensor:
    """A lazy view that autograd knows, of what is no leaf.

    It is recorded in a block, as the operators on plain tensors are. Nothing runs, and there are no
    writes to wait for when the block is left.
    """
    return _C.call_in_block(MODES.index("deferred"), _view_of_all, (tensor,))


def _view_of_all(tensor: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return torch.ops.aten.alias(tensor)


def _unwrap_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if not _C.is_lazy(tensor):
        return tensor
    return _like(tensor, _C.plain(tensor), _unwrap_tensor)


def _has_no_class_of_its_own(tensor: torch.Tensor) -> bool:
    """A LazyTensor has a class already, and without its own a user's tensor has neither its methods
    nor its attributes. (Those of parameter classes are kept. A tensor of another class that is only
    marked as a parameter, as DTensors are, is an instance of Parameter too, but not by its type.)
    """
    return type(tensor) is torch.Tensor or issubclass(type(tensor), torch.nn.Parameter)


def _like(
    old: torch.Tensor, new: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Gives `new` what belongs to the tensor `old` and not to its memory."""
    is_leaf = _is_leaf(old)
    requires_grad = old.requires_grad and (is_leaf or isinstance(old, LazyTensor) is False)
    if isinstance(old, KEPT):
        new = as_parameter(new, type(old), old.requires_grad)
        if plain_class(type(old)) is not torch.nn.Parameter:
            _take_attributes(old, new)
    elif requires_grad:
        new.requires_grad_()
    if is_leaf and old.grad is not None:
        _set_grad(new, convert(old.grad))
    return new


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # of a view made without grad, whose base was written with it
        return False


def _set_grad(tensor: torch.Tensor, grad: torch.Tensor) -> None:
    """Of any shape and dtype, as `tensor.data = ...` leaves it: torch compares when it assigns."""
    if grad.shape == tensor.shape and grad.dtype == tensor.dtype:
        tensor.grad = grad
        return
    data = tensor.data
    tensor.data = grad.detach()
    tensor.grad = grad
    tensor.data = data


def map_tensors(obj: T, leaf: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """The containers that `wrap` goes into, with `leaf` applied to each tensor in them."""
    return map_leaves(obj, lambda item: leaf(item) if isinstance(item, torch.Tensor) else item)


def _mapped(obj: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """As `map_tensors`; modules are changed in place."""

    def converted(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return convert(item)
        return _in_place(item, convert) if isinstance(item, torch.nn.Module) else item

    # One tensor is the common case, and takes half the time without a walk.
    return converted(obj) if isinstance(obj, torch.Tensor) else map_leaves(obj, converted)


def _in_place(
    module: torch.nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Module:
    """Swaps every parameter and buffer once: tied ones stay tied, optimizers keep working.

    All of them or, if it raises, none.
    """
    exchanges: list[_Exchange] = []
    with _computed_weights_renewed(module):
        try:
            for tensor in _tensors_of(module):
                new = convert(tensor)
                if new is not tensor:
                    # Noted before it is made: an interrupt may come in the middle.
                    exchanges.append(_Exchange(tensor, new))
                    _swap_in(module, exchanges[-1])
        except BaseException:
            for exchange in reversed(exchanges):
                exchange.undo()
            raise
    return module


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Each parameter and buffer once."""
    parts = ((*part._parameters.values(), *part._buffers.values()) for part in module.modules())
    found = (tensor for part in parts for tensor in part if tensor is not None)
    return list({id(tensor): tensor for tensor in found}.values())


@contextlib.contextmanager
def _computed_weights_renewed(module: torch.nn.Module) -> Iterator[None]:
    """Some hooks keep a weight that they compute anew before each call; the graph of the last one
    holds the parameters, which can be swapped only without it."""
    computed = [
        (part, hook)
        for part in module.modules()
        for hook in part._forward_pre_hooks.values()
        if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod)
    ]
    try:
        for part, hook in computed:
            setattr(part, _name_of(hook), getattr(part, _name_of(hook)).detach())
        yield
    finally:
        for part, hook in computed:
            setattr(part, _name_of(hook), _weight_of(part, hook))


def _name_of(hook: Any) -> str:
    return hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name


def _weight_of(part: torch.nn.Module, hook: Any) -> torch.Tensor:
    """As the hook makes it, of what the module has now."""
    if isinstance(hook, BasePruningMethod):
        return hook.apply_mask(part)
    if isinstance(hook, SpectralNorm):
        return hook.compute_weight(part, do_power_iteration=False)
    return hook.compute_weight(part)


def _take_attributes(old: torch.Tensor, new: torch.Tensor) -> None:
    """Of a user's class, whose methods may need them."""
    for name, value in vars(old).items():
        if name != "_is_param":
            vars(new).setdefault(name, value)


def _swap_in(module: torch.nn.Module, exchange: _Exchange) -> None:
    """Raises what torch does of a tensor that it cannot swap, with a note that names it."""
    try:
        exchange.make()
    except RuntimeError as error:
        named = (*module.named_parameters(), *module.named_buffers())
        name = next((name for name, other in named if other is exchange.tensor), "a tensor")
        error.add_note(
            f"lazyeng: {name} of {type(module).__name__} could not be exchanged in place"
        )
        raise


class _Exchange:
    """Makes the object `tensor` what `new` is; attributes and hooks of the object stay.

    It checks and raises as torch.utils.swap_tensors does, but for two things. That function refuses
    objects with weak references, such as the parameters of torch.nn.LSTM; those refer to the
    object, whose identity stays. It also refuses what a view refers to, and `new` is one if
    `tensor` is no leaf; autograd gives such tensors no gradients, which could be lost.

    And it can be undone, wherever it was interrupted.
    """

    __slots__ = ("_before", "_impl", "_poison", "new", "tensor")

    def __init__(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        self.tensor, self.new = tensor, new
        self._before = [(one, type(one), vars(one)) for one in (tensor, new)]
        self._impl = tensor._cdata
        self._poison: list[RemovableHandle] = []

    def make(self) -> None:
        tensor, new = self.tensor, self.new
        (_, old_class, old_attributes), (_, new_class, new_attributes) = self._before
        if _slots(old_class) != _slots(new_class):
            raise RuntimeError("Cannot swap t1 and t2 if they have different slots")
        if tensor.grad_fn is None:
            for name, one in (("t1", tensor), ("t2", new)):
                self._check_use_count(name, one)
        torch._C._swap_tensor_impl(tensor, new)  # which also refuses some
        _turn_into(tensor, new_class, new_attributes)
        _turn_into(new, old_class, old_attributes)
        for name, value in old_attributes.items():
            if name != "_is_param":
                new_attributes.setdefault(name, value)
        if tensor.grad_fn is not None:
            return
        # The object has these, but autograd runs those that it was told of for the memory.
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if getattr(tensor, hooks) is not None:
                setattr(tensor, hooks, getattr(tensor, hooks))

    def undo(self) -> None:
        for one, its_class, attributes in self._before:
            _turn_into(one, its_class, attributes)
        if self.tensor._cdata != self._impl:
            torch._C._swap_tensor_impl(self.tensor, self.new)
        for handle in self._poison:
            handle.remove()

    def _check_use_count(self, name: str, tensor: Any) -> None:
        """C++ code that holds the tensor would keep what the object was; autograd would add
        gradients to that. The latter is noticed only when, and if, it does."""
        count = tensor._use_count()
        if count == 1:
            return
        if count == 2 and tensor.is_leaf:
            node = torch.autograd.graph.get_gradient_edge(tensor).node
            if tensor._use_count() == 2:  # the node was there before
                self._poison.append(node.register_prehook(_raise_poisoned))
                return
        raise RuntimeError(
            f"Expected use_count of {name} to be 1 or 2 with an AccumulateGrad node but got {count}"
            " make sure you are not holding references to the tensor in other places."
        )


def _slots(cls: type) -> set[str]:
    return set(copyreg._slotnames(cls))  # pyright: ignore[reportAttributeAccessIssue]


def _turn_into(tensor: Any, cls: type, attributes: dict[str, Any]) -> None:
    tensor.__class__ = cls
    tensor.__dict__ = attributes


def _raise_poisoned(_grads: Any) -> None:
    raise RuntimeError(
        "Trying to execute AccumulateGrad node that was poisoned by swap_tensors "
        "this can happen when you try to run backward on a tensor that was swapped. "
        "For a module m with `torch.__future__.set_swap_module_params_on_conversion(True)` "
        "you should not change the device or dtype of the module (e.g. `m.cpu()` or `m.half()`) "
        "between running forward and backward. To resolve this, please only change the "
        "device/dtype before running forward (or after both forward and backward)."
    )
