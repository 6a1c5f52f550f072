"""Containers with something else in them: the same structure, of the same classes, as copies.

`Kind` says how the containers of one class are read, copied and filled; KINDS has all of them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from array import array
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Changes = dict[Any, Any]  # by index, key or field: what is to be there


def map_leaves(obj: T, leaf: Callable[[Any], Any]) -> T:
    """The structure of `obj` with `leaf` applied to everything that is no container.

    A container in which nothing changes is the same object as before; the others are copies. What
    stands at several places, or inside of itself, does so in the result. A container that cannot
    be copied, or whose copy cannot be changed alone, stays as it is.
    """
    return _Walk(leaf).of(obj)


class _Walk:
    def __init__(self, leaf: Callable[[Any], Any]) -> None:
        self._leaf = leaf
        self._done: dict[int, tuple[Any, Any]] = {}  # old and new; the old ones keep their ids
        self._open: dict[int, Any] = {}  # containers being read: their copies, once needed

    def of(self, obj: Any) -> Any:
        if id(obj) in self._done:
            return self._done[id(obj)][1]
        kind = _kind_of(obj)
        if kind is None:
            new = self._leaf(obj)
        elif id(obj) in self._open:  # it contains itself
            if self._open[id(obj)] is None:
                self._open[id(obj)] = kind.copy(obj)
            return self._open[id(obj)]
        else:
            new = self._container(obj, kind)
        if new is not obj:
            self._done[id(obj)] = obj, new
        return new

    def _container(self, obj: Any, kind: Kind) -> Any:
        if kind.mutable:
            self._open[id(obj)] = None
        changes = {}
        for key, old in kind.items(obj):
            new = self.of(old)
            if new is not old:
                changes[key] = new
        made = self._open.pop(id(obj), None)
        if id(obj) in self._done:  # a tuple that contains itself: made on the way
            return self._done[id(obj)][1]
        if not changes:
            return obj if made is None else made
        return kind.fill(obj, kind.copy(obj) if made is None else made, changes)


@dataclass(frozen=True, slots=True)
class Kind:
    """How containers of one class are handled.

    Attributes:
        items: what is in one, by key.
        copy: a shallow copy; the object itself if there can be none.
        fill: the copy of an object, with changes; or another object to take in its place.
        mutable: whether one can contain itself directly.
    """

    items: Callable[[Any], Iterable[tuple[Any, Any]]]
    copy: Callable[[Any], Any]
    fill: Callable[[Any, Any, Changes], Any]
    mutable: bool = True


def _kind_of(obj: Any) -> Kind | None:
    cls = type(obj)
    if cls in _LEAVES or issubclass(cls, _LEAF_BASES):
        return None
    for base, kind in KINDS:
        if issubclass(cls, base):
            return kind
    return _DATACLASS if dataclasses.is_dataclass(cls) else None


# ---- lists, tuples and dicts: whatever a subclass forbids, their own methods do it


def _copied(base: Any, put: Callable[[Any, Any], None]) -> Callable[[Any], Any]:
    """A function like copy.copy, for subclasses of `base` that it fails for too."""

    def copied(obj: Any) -> Any:
        with contextlib.suppress(Exception):
            result = copy.copy(obj)
            if result is not obj:
                return result
        result = base.__new__(type(obj))
        put(result, obj)
        _give_attributes(obj, result)
        return result

    return copied


def _give_attributes(old: Any, new: Any) -> None:
    state: Any = object.__getstate__(old)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(attributes or {}), **(slots or {})}.items():
        object.__setattr__(new, name, value)


def _fill_list(_old: Any, new: Any, changes: Changes) -> Any:
    for index, value in changes.items():
        list.__setitem__(new, index, value)
    return new


def _fill_dict(_old: Any, new: Any, changes: Changes) -> Any:
    for key, value in changes.items():
        try:
            new[key] = value  # which may do more, such as setting an attribute
        except Exception:
            dict.__setitem__(new, key, value)
    return new


def _filled_tuple(old: Any, _new: Any, changes: Changes) -> Any:
    items = list(tuple.__iter__(old))
    for index, value in changes.items():
        items[index] = value
    try:
        new = tuple.__new__(type(old), items)  # named tuples too, whatever their __new__ expects
    except TypeError:  # a struct sequence, such as torch.return_types.max
        return type(old)(items)
    _give_attributes(old, new)
    return new


# ---- other classes: by their own methods, if those keep the original as it is


def _copied_or_same(obj: Any) -> Any:
    try:
        return copy.copy(obj)
    except Exception:
        return obj


def _fill_by_item(old: Any, new: Any, changes: Changes) -> Any:
    if new is old:
        return old
    try:
        for key, value in changes.items():
            before = old[key]
            new[key] = value
            if old[key] is value:  # the copy shares its memory
                old[key] = before
                return old
    except Exception:
        return old
    return new


def _filled_mapping(old: Any, _new: Any, changes: Changes) -> Any:
    try:
        return type(old)({**old, **changes})
    except Exception:
        return old


def _fields(obj: Any) -> list[tuple[str, Any]]:
    names = [field.name for field in dataclasses.fields(obj)]
    return [(name, getattr(obj, name)) for name in names if hasattr(obj, name)]


def _fill_fields(old: Any, new: Any, changes: Changes) -> Any:
    if new is not old:  # neither __init__ nor __post_init__ runs again
        for name, value in changes.items():
            object.__setattr__(new, name, value)
    return new


_DATACLASS = Kind(_fields, _copied_or_same, _fill_fields)

# None of these has tensors in it, though some are sequences.
_LEAVES = {int, float, bool, str, bytes, type(None), bytearray, array}
# Whatever else they are: a module may be a dataclass, or a mapping of its parts.
_LEAF_BASES = (torch.Tensor, torch.nn.Module)

# The first that fits; classes besides these are leaves, but dataclasses.
KINDS: list[tuple[type, Kind]] = [
    (tuple, Kind(lambda obj: enumerate(tuple.__iter__(obj)), id, _filled_tuple, mutable=False)),
    (list, Kind(lambda obj: enumerate(list.__iter__(obj)), _copied(list, list.extend), _fill_list)),
    (dict, Kind(lambda obj: obj.items(), _copied(dict, dict.update), _fill_dict)),
    (MutableMapping, Kind(lambda obj: list(obj.items()), _copied_or_same, _fill_by_item)),
    (Mapping, Kind(lambda obj: list(obj.items()), id, _filled_mapping, mutable=False)),
    (MutableSequence, Kind(enumerate, _copied_or_same, _fill_by_item)),
]
