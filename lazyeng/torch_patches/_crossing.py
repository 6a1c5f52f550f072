"""The arguments and results of a compiled function, on their way over its border (compiled.py)."""

from __future__ import annotations

import collections
import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C import _autograd as autograd
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from lazyeng import _C
from lazyeng.torch_patches._patching import is_lazy
from lazyeng.wrapping import wrap

_CONTAINERS = (list, dict, collections.OrderedDict, collections.defaultdict, collections.deque)


class _Twin(NamedTuple):
    lazy: torch.Tensor
    plain: torch.Tensor
    version: int  # of the plain one, and its grad_fn and grad, before the call
    grad_fn: Any
    grad: torch.Tensor | None


class Crossing:
    """The arguments of one call past the border, and what has to come back over it.

    A plain tensor stands for each lazy one, over the same memory and with the same version counter:
    what is written to either after the call was saved for a backward pass by both. What the
    function does to the arguments it does to those, and to copies of the lists and dicts that they
    are in.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> None:
        self._passed: dict[int, Any] = {}  # by the id of what was given; of what is another object
        self._given: dict[int, Any] = {id(x): x for x in leaves if isinstance(x, torch.Tensor)}
        self._twins: list[_Twin] = []
        self._containers: list[tuple[Any, Any, list[Any]]] = []  # given, passed, what was in it
        for family in _families([*{id(leaf): leaf for leaf in leaves if is_lazy(leaf)}.values()]):
            self._pass_family(*family)
        self._args = tuple(map(self._pass, args))
        self._kwargs = {name: self._pass(value) for name, value in kwargs.items()}

    def call(self, compiled: Callable[..., Any]) -> Any:
        try:
            results = compiled(*self._args, **self._kwargs)
        finally:
            self._tell_writes()
            self._tell_grads()
            self._fill_containers()
        return self._back(results)

    def _pass_family(self, base: torch.Tensor, views: list[torch.Tensor]) -> None:
        plain = self._passed[id(base)] if id(base) in self._passed else to_twins([base])[0]
        if plain is not base:  # (a plain base sees by itself what is written to it)
            _pass_marks(base, plain)
            if base.is_leaf and plain.is_leaf:  # (where autograd is off)
                self._pass_leaf(base, plain)
            self._twins.append(
                _Twin(base, plain, _version_of(plain), plain.grad_fn, _grad_of(plain))
            )
        self._note(base, plain)
        for view in views:
            passed = plain.as_strided(*_place_of(view))
            _pass_marks(view, passed)
            self._note(view, passed)

    def _pass_leaf(self, lazy: torch.Tensor, plain: torch.Tensor) -> None:
        """With its gradient: compiled autograd has the leaves as arguments, and adds to those."""
        plain.requires_grad_(lazy.requires_grad)
        if lazy.grad is None:
            return
        if id(lazy.grad) not in self._passed:
            self._note(lazy.grad, *to_twins([lazy.grad]))
        plain.grad = self._passed[id(lazy.grad)]

    def _note(self, given: Any, passed: Any) -> None:
        self._given[id(passed)] = given
        self._passed[id(given)] = passed

    def _pass(self, given: Any) -> Any:
        """What is passed for it: itself, if nothing in it is lazy."""
        if id(given) in self._passed:
            return self._passed[id(given)]
        if type(given) in _CONTAINERS:
            return self._pass_container(given)
        node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(given))
        if node is None:
            return given
        children, context = node.flatten_fn(given)
        passed = [self._pass(child) for child in children]
        same = all(map(operator.is_, passed, children))
        return given if same else node.unflatten_fn(passed, context)

    def _pass_container(self, given: Any) -> Any:
        places = [*given] if isinstance(given, dict) else range(len(given))
        passed = [self._pass(given[place]) for place in places]
        if all(given[place] is item for place, item in zip(places, passed, strict=True)):
            self._given[id(given)] = given
            return given
        copied = copy.copy(given)
        for place, item in zip(places, passed, strict=True):
            copied[place] = item
        self._note(given, copied)
        self._containers.append((given, copied, _contents(copied)))
        return copied

    def _tell_writes(self) -> None:
        for twin in self._twins:
            written = _version_of(twin.plain) != twin.version
            # (Not what was written under no_grad, which a parameter may be.)
            if written and twin.plain.grad_fn is not twin.grad_fn and torch.is_grad_enabled():
                # (It moves the version, which the write has moved.)
                autograd._unsafe_set_version_counter((twin.lazy,), (twin.lazy._version - 1,))
                _TakeHistory.apply(twin.lazy, twin.plain)

    def _tell_grads(self) -> None:
        for twin in self._twins:
            grad = _grad_of(twin.plain)
            if grad is not twin.grad:
                twin.lazy.grad = self._back(grad)

    def _fill_containers(self) -> None:
        for given, passed, before in self._containers:
            now = _contents(passed)
            if len(now) == len(before) and all(map(operator.is_, now, before)):
                continue
            now = self._back(passed, of_itself=True)
            given.clear()
            given.update(now) if isinstance(given, dict) else given.extend(now)

    def _back(self, value: Any, of_itself: bool = False) -> Any:
        """Lazy, with the objects that were given in the place of those that were passed."""

        def is_known(part: Any) -> bool:
            return id(part) in self._given and not (of_itself and part is value)

        leaves, structure = pytree.tree_flatten(value, is_leaf=is_known)
        known = [self._given.get(id(leaf)) for leaf in leaves]
        views = [
            self._view_of_given(leaf) if old is None else old
            for leaf, old in zip(leaves, known, strict=True)
        ]
        left = iter(
            _to_lazy([leaf for leaf, old in zip(leaves, views, strict=True) if old is None])
        )
        return pytree.tree_unflatten([next(left) if v is None else v for v in views], structure)

    def _view_of_given(self, result: Any) -> torch.Tensor | None:
        """A view of a lazy argument; of a plain one the view itself, so that autograd sees what it
        is written to."""
        if type(result) is not torch.Tensor or not result._is_view():
            return None
        base: Any = self._given.get(id(result._base))
        if base is not None and not is_lazy(base):
            return result
        if base is None or not _is_place_in_base(result):
            return None
        view: torch.Tensor = base.as_strided(*_place_of(result))
        return view


def _pass_marks(lazy: torch.Tensor, plain: torch.Tensor) -> None:
    """What torch._dynamo.mark_dynamic and its like leave at a tensor for the compiler."""
    for name, value in vars(lazy).items():
        if name.startswith("_dynamo_") or name == "_specialize_on":
            setattr(plain, name, value)


def _families(
    lazy: Sequence[torch.Tensor],
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Each with its views among them: what one of them is written to, the others see. A base that
    is not among them is there if it has two views that are; what is alone is its own base."""
    families: dict[int, tuple[Any, list[torch.Tensor]]] = {}
    for tensor in lazy:
        base = tensor._base if _is_place_in_base(tensor) else tensor
        members = families.setdefault(id(base), (base, []))[1]
        members.append(tensor)
    found = []
    for base, members in families.values():
        alone = len(members) == 1
        found.append((members[0] if alone else base, [m for m in members[alone:] if m is not base]))
    return found


def _is_place_in_base(tensor: torch.Tensor) -> bool:
    """Whether as_strided of its base makes it."""
    base = tensor._base if tensor._is_view() else None
    if base is None or tensor.dtype != base.dtype or tensor.layout != torch.strided:
        return False
    if any(t.is_conj() or t.is_neg() for t in (tensor, base)):
        return False
    # (An autograd.Function's view has a gradient of its own.)
    return autograd._get_creation_meta(tensor) == autograd.CreationMeta.DEFAULT


def _place_of(view: torch.Tensor) -> tuple[Sequence[int], Sequence[int], int]:
    return view.shape, view.stride(), int(view.storage_offset())


def _contents(container: Any) -> list[Any]:
    """For a comparison of objects: of a dict also the keys."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def _version_of(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def to_plain(leaves: Sequence[Any]) -> list[Any]:
    return _replaced(leaves, is_lazy, _C.plain, _ToPlain)


def to_twins(leaves: Sequence[Any]) -> list[Any]:
    """Plain ones that have the versions of the lazy ones."""
    return _with_versions_of(leaves, to_plain(leaves))


def _to_lazy(leaves: Sequence[Any]) -> list[Any]:
    lazy = _replaced(leaves, _becomes_lazy, wrap, _ToLazy)
    return _with_versions_of(leaves, lazy)


def _becomes_lazy(leaf: Any) -> bool:
    """A plain tensor, but not one of torch.func, which stands for another one."""
    return type(leaf) is torch.Tensor and not is_functorch_wrapped_tensor(leaf)


def _with_versions_of(before: Sequence[Any], after: list[Any]) -> list[Any]:
    for old, new in zip(before, after, strict=True):
        if new is not old:
            _C.share_version(old, new)
    return after


def _replaced(
    leaves: Sequence[Any],
    chosen: Callable[[Any], bool],
    convert: Callable[[Any], Any],
    crossing: type[torch.autograd.Function],
) -> list[Any]:
    """Those that are chosen, converted; with `crossing` those that autograd follows."""
    replaced = list(leaves)
    followed = []
    for i, leaf in enumerate(leaves):
        if not chosen(leaf):
            continue
        if (leaf.requires_grad and torch.is_grad_enabled()) or _has_tangent(leaf):
            followed.append(i)
        else:
            replaced[i] = convert(leaf)
    if followed:
        crossed: Any = crossing.apply(*(leaves[i] for i in followed))
        for i, new in zip(followed, crossed, strict=True):
            replaced[i] = new
    return replaced


def _has_tangent(leaf: Any) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(leaf).tangent is not None


class _ToPlain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(_C.plain(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(_to_lazy(grads))  # (with their history, for gradients of gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tuple(to_plain(tangents))


class _TakeHistory(torch.autograd.Function):
    """Of a lazy tensor whose plain one was written: the memory is one, the history is not."""

    @staticmethod
    def forward(ctx: Any, lazy: Any, _twin: Any) -> Any:
        ctx.dirty_tensors = (lazy,)  # (mark_dirty() would count a recorded write)
        return lazy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # What the lazy one was made of is in the plain one's history. (Zeros, not None: of a view
        # autograd would drop the gradient of what else is in its base.)
        return torch.zeros_like(grads[0]), *to_plain(grads)


class _ToLazy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(wrap(tensor.detach()) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(to_plain(grads))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tuple(_to_lazy(tangents))


def plain(value: Any) -> Any:
    """The plain tensor of a lazy one, once it is there; anything else itself."""
    return _C.plain(value) if is_lazy(value) else value
