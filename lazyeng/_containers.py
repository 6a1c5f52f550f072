"""Containers made anew, so that what one reader of a failure changes is not seen by the next.

Not copy.deepcopy, which would copy a user's objects too: tensors, connections, locks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def copier() -> Callable[[Any], Any]:
    """A function that copies what is built of plain containers, and gives all else as it is.

    It copies what it meets twice once, so values that share a container still share one.
    """
    # By id; with the container itself, as an address may be used again.
    done: dict[int, tuple[Any, Any]] = {}

    def copied(value: Any) -> Any:
        try:
            return _copied(value, done)
        except RecursionError:  # nested too deep
            done.clear()
            return value

    return copied


def _copied(value: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    kind = type(value)
    if kind not in _COPIERS:  # a subclass has a constructor of its own
        return value
    if id(value) in done:
        return done[id(value)][1]
    return _COPIERS[kind](value, done)


def _copied_list(value: list[Any], done: dict[int, tuple[Any, Any]]) -> list[Any]:
    copy: list[Any] = []
    done[id(value)] = value, copy  # before its items: it may contain itself
    copy.extend(_copied(item, done) for item in value)
    return copy


def _copied_dict(value: dict[Any, Any], done: dict[int, tuple[Any, Any]]) -> dict[Any, Any]:
    copy: dict[Any, Any] = {}
    done[id(value)] = value, copy
    copy.update((key, _copied(item, done)) for key, item in value.items())
    return copy


def _copied_tuple(value: tuple[Any, ...], done: dict[int, tuple[Any, Any]]) -> tuple[Any, ...]:
    return tuple([_copied(item, done) for item in value])


def _copied_flat(value: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    copy = value.copy()
    done[id(value)] = value, copy
    return copy


_COPIERS: dict[type, Callable[[Any, Any], Any]] = {
    list: _copied_list,
    dict: _copied_dict,
    tuple: _copied_tuple,
    set: _copied_flat,
    bytearray: _copied_flat,
}
