"""Sources that several passes share: an iterator that goes on where it was in each pass.

What was made ahead of such a source and not taken belongs to the next pass; anything else starts
anew, and what was made ahead is of no use.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace

from lazyeng.data.channel import Channel
from lazyeng.data.passes import Life


def held_elsewhere(holder: object, name: str) -> bool:
    """Whether somebody refers to the iterator `holder.name` besides the holder.

    A source that returns the same iterator each time has to refer to it; one that was made for its
    caller alone has no other reference. Where it does have one (a loader that knows its iterator),
    items are kept until the next `iter()` returns another: nothing is lost but memory.
    """
    alone = SimpleNamespace(made=iter(()))
    return sys.getrefcount(getattr(holder, name)) > sys.getrefcount(alone.made)


class Kept:
    """The channel of a shared source, from one pass to the next.

    Args:
        source: the objects that are the source; the same ones give the same items.
        channel: reads it.
    """

    def __init__(self, source: Sequence[object], channel: Channel) -> None:
        self._source = tuple(source)
        self._before = self._attributes()
        self.channel = channel

    def look(self) -> None:
        """Remembers what the source is like; before its `iter()`, and while no pass runs."""
        self._before = self._attributes()

    def goes_on(self, source: Sequence[object]) -> bool:
        """Whether a pass over `source` starts with what waits here.

        Not once the end was taken: nothing waits, and the source is asked anew, as it may have
        grown. Nor if its `iter()` set attributes of it: many a source that is its own iterator
        starts anew that way.
        """
        if self.channel.finished or not _same(source, self._source):
            return False
        return all(map(_same, self._before, self._attributes()))

    def _attributes(self) -> list[list[object]]:
        every = [getattr(part, "__dict__", {}) for part in self._source]
        return [[*attributes.keys(), *attributes.values()] for attributes in every]

    def after(self) -> Callable[[Life], None]:
        """What to do when a pass over it ends: nothing, as long as this is kept."""
        return functools.partial(_drop_unless, weakref.ref(self))


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _drop_unless(kept: weakref.ref[Kept], life: Life) -> None:
    if kept() is None:
        life.channel.drop()
