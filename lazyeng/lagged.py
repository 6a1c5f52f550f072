"""Lagged: read a metric some steps late, without stalling the engine."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic

from lazyeng._arguments import as_int

if TYPE_CHECKING:  # with a default, as `Lagged()` does not tell what will be pushed
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class Lagged(Generic[T]):
    """``previous = lagged.push(loss)`` gives the value pushed `by` steps ago, None at first.

    By then the engine has usually computed it, so that reading it does not wait.

    Args:
        by: by how many steps to lag; with 0, `push` returns each value at once.

    Raises:
        TypeError: `by` is not an int.
        ValueError: `by` is negative.
    """

    def __init__(self, by: int = 1) -> None:
        by = as_int("Lagged: by must be an int", by)
        if by < 0:
            raise ValueError(f"Lagged: by must not be negative, got {by}")
        self.by = by
        self._values: deque[T] = deque()

    def push(self, value: T) -> T | None:
        """Takes the newest value, a tensor or anything else; returns the one pushed `by` steps ago.

        None for the first `by` values. Never waits, and leaves the value as it is.
        """
        self._values.append(value)
        return self._values.popleft() if len(self._values) > self.by else None

    def flush(self) -> list[T]:
        """The values not returned yet, oldest first; forgets them."""
        rest = list(self._values)
        self._values.clear()
        return rest
