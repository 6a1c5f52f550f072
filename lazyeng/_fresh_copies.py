"""Containers made anew, so that what one reader of a failure changes is not seen by the next.

Not copy.deepcopy, which would copy a user's objects too: tensors, connections, locks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def copier(other: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], Any]:
    """A function that copies what is built of plain containers; all else is what `other` makes of
    it, by default itself.

    It copies what it meets twice once, so values that share a container still share one.
    """
    copy = _Copies(other)

    def copied(value: Any) -> Any:
        try:
            return copy.of(value)
        except RecursionError:  # nested too deep
            copy.done.clear()
            return value

    return copied


class _Copies:
    def __init__(self, other: Callable[[Any], Any]) -> None:
        self.other = other
        # By id; with the container itself, as an address may be used again.
        self.done: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        copy = _COPIERS.get(type(value))
        if copy is None:  # (a subclass has a constructor of its own)
            return self.other(value)
        return self.done[id(value)][1] if id(value) in self.done else copy(self, value)

    def of_list(self, value: list[Any]) -> list[Any]:
        copy: list[Any] = []
        self.done[id(value)] = value, copy  # before its items: it may contain itself
        copy.extend(self.of(item) for item in value)
        return copy

    def of_dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        copy: dict[Any, Any] = {}
        self.done[id(value)] = value, copy
        copy.update((key, self.of(item)) for key, item in value.items())
        return copy

    def of_tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([self.of(item) for item in value])

    def of_flat(self, value: Any) -> Any:
        copy = value.copy()
        self.done[id(value)] = value, copy
        return copy


_COPIERS: dict[type, Callable[[_Copies, Any], Any]] = {
    list: _Copies.of_list,
    dict: _Copies.of_dict,
    tuple: _Copies.of_tuple,
    set: _Copies.of_flat,
    bytearray: _Copies.of_flat,
}
