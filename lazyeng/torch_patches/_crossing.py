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

_MARK = "lazyeng: gradients are made plain"
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
        plain = self._passed[id(base)] if id(base) in self._passed else _twin_of(base)
        if plain is not base:  # (a plain base sees by itself what is written to it)
            _pass_marks(base, plain)
            if base.is_leaf and plain.is_leaf:  # (where autograd is off)
                self._pass_leaf(base, plain)
            self._twins.append(
                _Twin(base, plain, _version_of(plain), plain.grad_fn, _grad_of(plain))
            )
        self._note(base, plain)
        for view in views:
            passed = _same_view(view, plain)
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
            container = given
        else:
            container = copy.copy(given)
            for place, item in zip(places, passed, strict=True):
                container[place] = item
        self._note(given, container)
        self._containers.append((given, container, _contents(container)))
        return container

    def _tell_writes(self) -> None:
        for twin in self._twins:
            written = _version_of(twin.plain) != twin.version
            # (Not what was written under no_grad, which a parameter may be.)
            if written and twin.plain.grad_fn is not twin.grad_fn:
                _take_history(twin.lazy, twin.plain)

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
            if now is given:
                continue
            given.clear()
            given.update(now) if isinstance(given, dict) else given.extend(now)

    def _back(self, value: Any, of_itself: bool = False) -> Any:
        """Lazy, with the objects that were given in the place of those that were passed. What has
        neither in it is the object that it is."""

        def is_known(part: Any) -> bool:
            return id(part) in self._given and not (of_itself and part is value)

        leaves = pytree.tree_leaves(value, is_leaf=is_known)
        self._make_lazy([x for x in leaves if not is_known(x) and _becomes_lazy(x)])
        done: dict[int, Any] = {}

        def rebuilt(part: Any) -> Any:
            if is_known(part):
                return self._given[id(part)]
            node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(part))
            if node is None:
                return part
            if id(part) not in done:
                children, context = node.flatten_fn(part)
                new = [rebuilt(child) for child in children]
                same = all(map(operator.is_, new, children))
                done[id(part)] = part if same else node.unflatten_fn(new, context)
            return done[id(part)]

        return rebuilt(value)

    def _make_lazy(self, results: list[torch.Tensor]) -> None:
        """Each object once, and with its views among them: what one is written to, all see."""
        new = []
        for result in {id(result): result for result in results}.values():
            view = self._view_of_given(result)
            if view is None:
                new.append(result)
            else:
                self._note(view, result)
        for base, views in _families(new):
            if not views and _needs_base(base):
                self._make_family(base._base, [base])
            else:
                self._make_family(base, views)

    def _make_family(self, base: Any, views: list[torch.Tensor]) -> None:
        lazy = _lazy_one(base)
        self._note(lazy, base)
        for view in views:
            self._note(_lazy_view(view, lazy), view)

    def _view_of_given(self, result: torch.Tensor) -> torch.Tensor | None:
        """A view of a lazy argument; of a plain one the view itself, so that autograd sees what it
        is written to."""
        base: Any = self._given.get(id(result._base)) if _is_view(result) else None
        if base is None:
            return None
        return _lazy_view(result, base) if is_lazy(base) else result


def _pass_marks(lazy: torch.Tensor, plain: torch.Tensor) -> None:
    """What torch._dynamo.mark_dynamic and its like leave at a tensor for the compiler."""
    for name, value in vars(lazy).items():
        if name.startswith("_dynamo_") or name == "_specialize_on":
            setattr(plain, name, value)


def _families(
    tensors: Sequence[torch.Tensor],
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Each with its views among them: what one of them is written to, the others see. A base that
    is not among them is there if it has two views that are; what is alone is its own base."""
    families: dict[int, tuple[Any, list[torch.Tensor]]] = {}
    for tensor in tensors:
        base = tensor._base if _is_view(tensor) else tensor
        members = families.setdefault(id(base), (base, []))[1]
        members.append(tensor)
    found = []
    for base, members in families.values():
        alone = len(members) == 1
        found.append((members[0] if alone else base, [m for m in members[alone:] if m is not base]))
    return found


def _is_view(tensor: torch.Tensor) -> bool:
    """Of its base, by ops. (An autograd.Function's view has a gradient of its own.)"""
    if not tensor._is_view() or tensor._base.layout != torch.strided:  # type: ignore[union-attr]
        return False
    meta = autograd._get_creation_meta(tensor)
    return meta in (autograd.CreationMeta.DEFAULT, autograd.CreationMeta.MULTI_OUTPUT_NODE)


def _needs_base(result: torch.Tensor) -> bool:
    """A view that must not be written, which its base tells, though that is no result."""
    if not _is_view(result) or not result.requires_grad:
        return False
    several = autograd._get_creation_meta(result) == autograd.CreationMeta.MULTI_OUTPUT_NODE
    base: Any = result._base
    return several or (base.is_leaf and base.requires_grad)


def _same_view(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """As `view` is one of its own base, of `base`, which looks like that."""
    plain_look = (view.dtype, view.is_conj(), view.is_neg(), view.layout)
    of: Any = view._base
    if plain_look == (of.dtype, of.is_conj(), of.is_neg(), torch.strided):
        same = base.as_strided(*_place_of(view))
    else:
        same = view._view_func_unsafe(base)
    meta = autograd._get_creation_meta(view)
    if same._is_view() and meta != autograd._get_creation_meta(same):
        autograd._set_creation_meta(same, meta)
    return same


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


def _twin_of(lazy: torch.Tensor) -> Any:
    """Under no_grad a leaf is passed as one: an optimizer writes it."""
    if lazy.is_leaf and not torch.is_grad_enabled():
        return _with_versions_of([lazy], [_C.plain(lazy)])[0]
    return to_twins([lazy])[0]


def _lazy_one(plain: torch.Tensor) -> torch.Tensor:
    """A result. Where autograd follows it, it has the gradient of the plain one, which others may
    have been made of: the losses of a function that returns its hidden states, too."""
    if plain.grad_fn is None or _has_tangent(plain):
        return _to_lazy([plain])[0]
    (lazy,) = _with_versions_of([plain], [wrap(plain.detach())])
    _share_history(plain, lazy)
    for name, value in vars(plain).items():
        setattr(lazy, name, value)
    if plain.retains_grad:
        lazy.retain_grad()
    return lazy


def _lazy_view(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    lazy = _same_view(view, base)
    if view.grad_fn is not None and not _has_tangent(view):
        _share_history(view, lazy)
    return lazy


def _share_history(plain: torch.Tensor, lazy: torch.Tensor) -> None:
    _C.share_history(plain, lazy)
    node: Any = plain.grad_fn
    if _MARK not in node.metadata:  # (it may have many results, and live on for many calls)
        node.metadata[_MARK] = True
        node.register_prehook(_made_plain)


def _made_plain(grads: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(to_plain(grads))


def _take_history(lazy: torch.Tensor, plain: torch.Tensor) -> None:
    """Of a lazy tensor whose plain one was written: the memory is one, the history is not."""
    if not lazy._is_view():
        return _share_history(plain, lazy)
    # (The base has to learn of it. It moves the version, which the write has moved.)
    autograd._unsafe_set_version_counter((lazy,), (lazy._version - 1,))
    _TakeHistory.apply(lazy, plain)
    return None


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
        if (leaf.requires_grad and not torch.is_inference_mode_enabled()) or _has_tangent(leaf):
            followed.append(i)
        else:
            replaced[i] = convert(leaf)
    if followed:
        with torch.enable_grad():  # (the function may turn it on itself)
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
    """For a lazy view (_take_history)."""

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
