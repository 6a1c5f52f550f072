"""prefetch: any iterable, made ahead of its use by a thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Generic, TypeVar

import torch

from lazyeng import errors
from lazyeng._arguments import as_int
from lazyeng.data.channel import Channel
from lazyeng.data.passes import Life, Pass
from lazyeng.data.shared import Kept, held_elsewhere
from lazyeng.data.transfer import convert_to

T = TypeVar("T")


def checked_depth(name: str, depth: object) -> int:
    """`depth`, if it is one.

    Raises:
        TypeError: it is not an int.
        ValueError: it is negative.
    """
    depth = as_int(f"{name} must be an int", depth)
    if depth < 0:
        raise ValueError(f"{name} must not be negative, got {depth}")
    return depth


class prefetch(Generic[T]):  # noqa: N801 (used like a function, as enumerate is)
    """Makes the items of an iterable ahead of their use, in a thread; their tensors become lazy.

    Each `iter()` starts a new pass, with a thread of its own, if the source can start anew. A
    one-shot source (an iterator, or what gives out the same one each time) goes on where it was,
    with the items that were made and not taken. Passes can be closed as those of `DataLoader`.

    `next()` takes from a pass of this object's own, and starts it at the first call. The end of a
    `with` statement calls `close()`. `len()` is that of the source (TypeError if it has none).

    Args:
        iterable: any. Its code runs in the thread, one item at a time, with the grad mode,
            autocast, default device and context variables of the thread that called `iter()`.
        depth: at most so many finished items wait at any time; the next one is started when one of
            them is taken. 0: no thread, `next()` makes each item itself.
        device: where the tensors are to be, copied by recorded ops; None: where they are.

    Raises:
        TypeError: `iterable` is not iterable, or `depth` not an int.
        ValueError: `depth` is negative.
        RuntimeError, AssertionError, TypeError: as torch does, there is no such `device`.
    """

    def __init__(
        self, iterable: Iterable[T], depth: int = 2, device: torch.device | str | int | None = None
    ) -> None:
        if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
            raise TypeError(f"prefetch: expected an iterable, got {type(iterable).__name__}")
        self._source = iterable
        self._depth = checked_depth("prefetch: depth", depth)
        self._device = device
        convert_to(device, self._depth)  # raises what is wrong with the device
        self._passes: weakref.WeakSet[Pass[T]] = weakref.WeakSet()
        self._own: Pass[T] | None = None
        self._kept: Kept | None = None  # what was made of a source that cannot start anew
        # Held while a pass starts, so that several threads start one. Reentrant: the source's own
        # __iter__ runs in it.
        self._starting = threading.RLock()

    @errors.boundary
    def __iter__(self) -> Pass[T]:
        with self._starting:
            return self._next_pass()

    def _next_pass(self) -> Pass[T]:
        if self._kept is not None:
            for running in list(self._passes):
                if running.goes_on(self._kept.channel):
                    return running
            self._kept.look()
        found = SimpleNamespace(source=iter(self._source))
        if isinstance(found.source, Pass) and found.source.shared is not None:
            identity = found.source.shared  # there may be another pass each time, over one source
        elif held_elsewhere(found, "source"):
            identity = found.source
        else:
            return self._started(self._channel(found.source), _drop)
        if self._kept is None or not self._kept.goes_on([identity]):
            self._kept = Kept([identity], self._channel(found.source))
        return self._started(self._kept.channel, self._kept.after(), shared=self._starting)

    def _channel(self, source: Iterator[T]) -> Channel:
        return Channel(source, convert_to(self._device, self._depth))

    def _started(
        self, channel: Channel, after: Callable[[Life], None], *, shared: object = None
    ) -> Pass[T]:
        new: Pass[T] = Pass(
            channel, self._depth, sized=self._source, name="prefetch", unit="item", after=after,
            shared=shared,
        )  # fmt: skip
        self._passes.add(new)
        new.life.run_ahead()
        return new

    @errors.boundary
    def __next__(self) -> T:
        with self._starting:
            if self._own is None or self._own.closed:
                self._own = iter(self)
            own = self._own
        return next(own)

    def __len__(self) -> int:
        """How many items a pass has.

        Raises:
            TypeError: the source has no length.
        """
        return len(self._source)  # pyright: ignore[reportArgumentType]

    def __bool__(self) -> bool:
        return True  # also without a length

    def close(self) -> None:
        """Ends all passes and lets go of the source; from now on there are no items."""
        for running in list(self._passes):
            running.close()
        if self._kept is not None:
            self._kept.channel.drop()
        self._source = ()
        self._own = self._kept = None

    def __enter__(self) -> prefetch[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _drop(life: Life) -> None:
    life.channel.drop()
