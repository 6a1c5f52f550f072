"""LazyTensor: the class of every result that lazyeng records.

Everything that records goes through torch's dispatcher and needs no code here. What stands here are
the places where a tensor leaves the lazy world, which wait, and raise what failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]
from torch.types import Number

from lazyeng import _C, errors

if TYPE_CHECKING:
    from lazyeng._operators import LazyOperators as _Tensor  # what operators return, to a checker
else:
    _Tensor = torch.Tensor

_plain_data: Any = torch.Tensor.data  # a descriptor, whatever its stub says
_plain_deepcopy = torch.Tensor.__deepcopy__
# torch's own, whatever stands in torch.Tensor (lazyeng/torch_patches/plain_reads.py).
_of_torch: Any = torch._C.TensorBase
_numpy = _of_torch.numpy
_tolist = _of_torch.tolist
_modes_on = torch._C._len_torch_dispatch_stack


def list_of(plain: torch.Tensor) -> Any:
    """`plain.tolist()`, inside a block too. Waits for recorded writes."""
    return _C.read_memory(_tolist, plain)


def array_of(plain: torch.Tensor) -> Any:
    """`plain.numpy()`, likewise; recorder and engine hear of the array (unseen_writers.h)."""
    _C.before_lending(plain)
    return tell_of_array(_C.read_memory(_numpy, plain))


def tell_of_array(array: Any) -> Any:
    """What a call of numpy() has made, which recorder and engine hear of."""
    # (The base is torch's own tensor over the memory, which lives for as long as the array and its
    # views. A class of the program's may make anything of the call.)
    if isinstance(owner := getattr(array, "base", None), torch.Tensor):
        _C.lent(owner)
    return array


class LazyTensor(_Tensor):
    """A tensor whose value is computed later, by the engine.

    ``device``, ``dtype``, ``shape`` and ``stride()`` are those of the real tensor and never wait.
    Reading values (``item()``, ``numpy()``, ``bool(x)`` ...) waits for what this tensor depends on
    and raises the failure of any operation that it depends on, as an exception of the type that
    eager raises, which is a `lazyeng.LazyError` too. ``repr()`` never waits.

    ``LazyTensor(data)`` is ``lazyeng.wrap(torch.as_tensor(data))``, detached. It is the class of
    lazy parameters too: ``type(p)(data, requires_grad=p.requires_grad)`` makes a parameter, as
    ``torch.nn.Parameter`` does.

    Args:
        data: what `torch.as_tensor` takes; a strided tensor of any shape and dtype shares its
            memory with the result.
        requires_grad: if given, the result is a parameter, and this says whether autograd records
            operations on it. (Of data that cannot be lazy, such as meta tensors, a plain one.)

    Raises:
        TypeError: `data` cannot be lazy, and `requires_grad` is not given; or that is no bool.
        RuntimeError: `requires_grad` for a dtype that is neither floating nor complex.
    """

    # Results are lazy without it.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    if TYPE_CHECKING:  # (or calls would be checked by torch's too)

        def __init__(self, data: Any, requires_grad: bool | None = None) -> None: ...

    @staticmethod
    def __new__(
        cls, data: Any, requires_grad: bool | None = None, *, _is_param: bool = True
    ) -> LazyTensor:
        # (`_is_param` marks parameters in their `__dict__`, which some libraries pass on.)
        if not (requires_grad is None or isinstance(requires_grad, bool)):
            raise TypeError(
                f"LazyTensor: requires_grad must be a bool, got {type(requires_grad).__name__} (a "
                'tensor of given sizes is made by torch.empty(..., device="lazyeng"))'
            )
        tensor = torch.as_tensor(data).detach()
        if requires_grad is None:
            return _C.wrap_tensor(tensor)
        lazy = _C.wrap_tensor(tensor) if wrappable(tensor) else tensor
        # (torch makes a parameter of the class that the tensor has.)
        return torch.nn.Parameter(lazy, requires_grad)  # pyright: ignore[reportReturnType]

    # ---- waiting

    @errors.boundary
    def wait(self) -> LazyTensor:
        """Waits until this tensor is computed; returns it.

        Raises:
            LazyError: the operation that makes this tensor, or one that it depends on, failed; with
                the type and message that eager raises.
        """
        _C.wait(self)
        return self

    def is_ready(self) -> bool:
        """Whether it is computed, or has failed; never waits.

        On a GPU: whether its kernel is launched. Reading it may still wait for the device.
        """
        return _C.is_ready(self)

    def _plain(self) -> torch.Tensor:
        """The real tensor over the same memory, detached, to be read. Waits; raises failures."""
        return _C.values(self)

    def _to_read(self) -> torch.Tensor:
        """The tensor of which torch's own methods read a number. Waits; raises failures.

        The real one, which is fast. But what modes of the program's (a TorchDispatchMode, such as
        those of make_fx) know is this one: they hear of the read, and may refuse it.
        """
        plain = self._plain()  # (first, as a report or a traceback tells of this call)
        return self if _modes_on() else plain

    def _plain_with_grad_flag(self) -> torch.Tensor:
        """As `_plain`, but refusing what torch refuses for tensors that require grad."""
        plain = self._plain()
        return plain.requires_grad_() if self.requires_grad and plain.is_leaf else plain

    def _plain_copy(self) -> torch.Tensor:
        """A copy that requires grad if this does, for torch to refuse."""
        return _C.call_outside(torch.clone, (self._plain(),), {}).requires_grad_(self.requires_grad)

    # ---- reading values

    @errors.boundary
    def item(self) -> Number:
        """The value as a bool, int, float or complex, as the dtype has it. Waits.

        Raises:
            RuntimeError: the tensor has not exactly one element.
            LazyError: what the tensor depends on failed.
        """
        return _of_torch.item(self._to_read())

    @errors.boundary
    def tolist(self) -> list[Any]:
        """The values as nested lists, as deep as there are dims; a number if there are none. Waits.

        Raises:
            LazyError: what the tensor depends on failed.
        """
        if _modes_on() and (self.is_conj() or self.is_neg()):  # they hear of the copy
            return self.resolve_conj().resolve_neg().tolist()
        return list_of(self._plain())

    @errors.boundary
    def numpy(self, *, force: bool = False) -> np.ndarray:
        """An array of the same shape and dtype over the same memory. Waits.

        Args:
            force: copies where memory cannot be shared: of tensors that require grad, on a GPU,
                conjugated or negated ones.

        Raises:
            RuntimeError: the tensor requires grad.
            TypeError: it is on a GPU, or numpy has no such dtype (bfloat16).
            LazyError: what the tensor depends on failed.
        """
        if force:
            return self._plain().numpy(force=True)
        if self.requires_grad:
            return self._plain_with_grad_flag().numpy()
        return array_of(self._plain())

    @errors.boundary
    def __array__(self, dtype: Any = None) -> np.ndarray:
        plain = self._plain_with_grad_flag()
        return plain.__array__() if dtype is None else plain.__array__(dtype)

    @errors.boundary
    def __bool__(self) -> bool:
        return _of_torch.__bool__(self._to_read())

    @errors.boundary
    def __float__(self) -> float:
        return _of_torch.__float__(self._to_read())

    @errors.boundary
    def __int__(self) -> int:
        return _of_torch.__int__(self._to_read())

    @errors.boundary
    def __complex__(self) -> complex:
        return _of_torch.__complex__(self._to_read())

    @errors.boundary
    def __index__(self) -> int:
        return _of_torch.__index__(self._to_read())

    @errors.boundary
    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and not self.is_meta:
            number = self.detach() if _modes_on() else self  # (a call that they hear of, too)
            return number.item().__format__(spec)
        return object.__format__(self, spec)

    @errors.boundary
    def __contains__(self, element: Any) -> bool:
        return torch.Tensor.__contains__(self, element)

    @errors.boundary
    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._plain_with_grad_flag().__dlpack__(**kwargs)

    @errors.boundary
    def __dlpack_device__(self) -> Any:
        return _C.plain(self).__dlpack_device__()

    @errors.boundary
    def __repr__(self, *, tensor_contents: Any = None) -> str:
        state, text = _C.status(self)
        if state == "ready":
            return self._ready_repr()
        fields = f"shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}'"
        return f"LazyTensor({fields}, {state}={text})"

    def _ready_repr(self) -> str:
        text = _C.call_outside(repr, (self._plain(),), {})  # (a repr computes, which would record)
        text = "LazyTensor" + text.removeprefix("tensor").replace("\n ", "\n     ")
        try:
            node = self.grad_fn
        except RuntimeError:  # of a view made without grad, whose base was written with it
            return f"{text[:-1]}, grad_fn=<Invalid>)"
        if node is not None:
            return f"{text[:-1]}, grad_fn=<{node.name()}>)"
        return f"{text[:-1]}, requires_grad=True)" if self.requires_grad else text

    # ---- memory

    @errors.boundary
    def data_ptr(self) -> int:
        """The address of the first element, in bytes. Waits; raises what failed."""
        return _C.plain(self).data_ptr()

    @errors.boundary
    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage, shared with this tensor. Waits; raises what failed."""
        return _C.plain(self).untyped_storage()

    @errors.boundary
    def _typed_storage(self) -> Any:
        return _C.plain(self)._typed_storage()

    @errors.boundary
    def is_shared(self) -> bool:
        """Whether the memory is shared between processes. Waits; raises what failed."""
        return _C.plain(self).is_shared()

    @property
    def data(self) -> torch.Tensor:
        """A detached LazyTensor over the same memory; assigning a tensor shares its memory."""
        return _plain_data.__get__(self)

    @data.setter
    @errors.boundary
    def data(self, value: torch.Tensor) -> None:
        if isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():  # as torch's setter asks no class
                value = _C.wrap_tensor(value.detach())
        _plain_data.__set__(self, value)

    @data.deleter
    def data(self) -> None:
        _plain_data.__delete__(self)  # which raises

    # ---- calling a Python function for each element

    @errors.boundary
    def apply_(self, callable: Any) -> torch.Tensor:
        """As torch's: replaces each element by what `callable` makes of it. Waits; raises what
        failed, what `callable` raises, and TypeError for a tensor of a GPU."""
        return self._written_by("apply_", callable)

    @errors.boundary
    def map_(self, other: torch.Tensor, callable: Any) -> torch.Tensor:
        """As `apply_`, of its elements and those of `other`, a tensor that broadcasts to it."""
        return self._written_by("map_", _plain_of(other), callable)

    @errors.boundary
    def map2_(self, x: torch.Tensor, y: torch.Tensor, callable: Any) -> torch.Tensor:
        """As `apply_`, of its elements and those of `x` and `y`, which broadcast to it."""
        return self._written_by("map2_", _plain_of(x), _plain_of(y), callable)

    def _written_by(self, name: str, *args: Any) -> torch.Tensor:
        method = getattr(torch.Tensor, name)
        return self.copy_(_C.call_outside(method, (self._plain_copy(), *args), {}))

    # ---- copies

    @errors.boundary
    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if self.__dict__.get("_is_param"):  # (torch's Parameter leaves the same out)
            memo[id(self)] = copy = torch.nn.Parameter(self.data.clone(), self.requires_grad)
            return copy
        if not self.is_leaf:
            with torch._C.DisableTorchFunctionSubclass():
                return _plain_deepcopy(self, memo)  # which raises
        plain = self._plain()
        # The memo knows objects by their address: this one has to live as long as the memo.
        memo.setdefault(id(memo), []).append(plain)
        copy = _C.wrap_tensor(plain.__deepcopy__(memo))
        copy.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copy
        vars(copy).update(_deepcopied(vars(self), memo))
        return copy

    @errors.boundary
    def __copy__(self) -> torch.Tensor:
        make, arguments = self._reduced()
        return make(*arguments)

    @errors.boundary
    def __reduce_ex__(self, protocol: Any) -> Any:
        if _C.thread_mode()[1]:
            return self._plain_twin().__reduce_ex__(protocol)
        return self._reduced()

    def _plain_twin(self) -> torch.Tensor:
        """What the program would have without the block around it: whoever reads a file that is
        written there may not have lazyeng, and was not asked to."""
        plain = self._plain()
        if self.__dict__.get("_is_param"):
            plain = torch.nn.Parameter(plain, self.requires_grad)
        else:
            plain.requires_grad_(self.requires_grad)
        vars(plain).update(self._attributes())
        return plain

    def _attributes(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_is_param"}

    @errors.boundary
    def _reduced(self) -> Any:
        """How a lazy tensor is made of this one's memory."""
        # An OrderedDict, as torch keeps it for backward hooks, is not allowed by weights_only.
        is_param = bool(self.__dict__.get("_is_param", False))
        return (_rebuild, (self._plain(), self.requires_grad, is_param, self._attributes()))


def wrappable(tensor: torch.Tensor) -> bool:
    """Strided tensors with memory; sparse, quantized, nested and meta ones stay as they are, and
    those that stand for many in vmap."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor.is_nested
        and not isinstance(tensor, UninitializedTensorMixin)
        and not is_functorch_wrapped_tensor(tensor)
        and not is_legacy_batchedtensor(tensor)
    )


def _plain_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._plain() if isinstance(tensor, LazyTensor) else tensor


def _deepcopied(state: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    from copy import deepcopy

    return deepcopy(state, memo)


def _rebuild(
    plain: torch.Tensor, requires_grad: bool, is_param: bool, state: dict[str, Any]
) -> torch.Tensor:
    """The inverse of `LazyTensor.__reduce_ex__`; allowed by ``torch.load(weights_only=True)``."""
    tensor = plain.detach()
    if plain.device.type != "meta":  # (a map_location, with which the values are not loaded)
        tensor = _C.wrap_tensor(tensor)
    if is_param:
        tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
    else:
        tensor.requires_grad_(requires_grad)
    vars(tensor).update(state)
    return tensor
