"""Pass: the iterator that a user holds. It takes items from a channel and raises failures."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from lazyeng import _C, errors
from lazyeng._exception_data import put_together
from lazyeng.data.channel import Channel, Failure, Item, Nudge
from lazyeng.data.runner import Runner
from lazyeng.sync_debug import allow_sync

T = TypeVar("T")

# Failed ops count upwards, failed items downwards: no two failures have the same `root_id`.
_root_ids = itertools.count(-1, -1)


class Life:
    """What has to be done when a pass ends, apart from the pass: it may be gone by then.

    Attributes:
        taken: the state of the channel's source just after the item that was taken last.
        hangs: whether the thread did not end in time, when it was over.
    """

    def __init__(self, channel: Channel, depth: int, after: Callable[[Life], None]) -> None:
        self.channel = channel
        self.depth = depth
        self.taken = channel.state()
        self.hangs = False
        self._runner: Runner | None = None
        self._starting = threading.RLock()  # several threads may ask for the first item
        self._over = False
        self._after = after

    def run_ahead(self) -> None:
        """Starts the thread, if there is to be one and something for it to do."""
        if self._runner is not None or self.depth == 0 or self.channel.ended:
            return
        # The source reads plain tensors and draws outside of lazy(), where it cannot wait for them:
        # what the loop has recorded before comes first.
        with allow_sync("writes to plain tensors and draws recorded so far come before the source"):
            _C.wait_for_plain_writes()
        with self._starting:
            if self._runner is None and not self._over:
                self._start_runner()

    def _start_runner(self) -> None:
        runner = Runner(self.channel, self.depth, previous=self.channel.runner)
        try:
            self._runner = self.channel.runner = runner
            runner.start()
        except BaseException:  # an interrupt, at any point: the next one waits for it, if it runs
            self._runner = None
            runner.tell_to_stop()
            raise

    def wake(self) -> None:
        """Tells the thread to look again; without one, the taker itself is the maker."""
        if self._runner is not None:
            self._runner.wake()

    def end(self) -> None:
        """Ends the thread and what belongs to the pass. Called once."""
        if self.channel.foreign:
            return
        with self._starting:
            self._over = True
        if self._runner is not None:
            self.hangs = not self._runner.stop()
        self._after(self)
        self._after = _nothing  # a closed pass may live on; what it refers to need not


def _nothing(_life: Life) -> None: ...


class Pass(Generic[T]):
    """An iterator over a channel, with a thread that runs ahead. Closable; a context manager.

    Dropping the last reference to it is as good as closing it. Any thread may call `next`.

    Args:
        channel: where the items come from.
        depth: how many finished items may wait; 0: `next` makes each item itself.
        sized: has `__len__` if the pass is to have one; not what holds its resources.
        name: what failures call the source.
        unit: what failures call an item.
        after: called once the pass is over, closed or dropped and its thread was told to stop.
        shared: what it has in common with the passes that go on where it stops, if any do.
    """

    def __init__(
        self,
        channel: Channel,
        depth: int,
        *,
        sized: Any,
        name: str,
        unit: str,
        after: Callable[[Life], None],
        shared: object = None,
    ) -> None:
        self.shared = shared
        self._sized = sized
        self._name = name
        self._unit = unit
        self._stack = _C.capture_stack()
        self.closed = False
        self.successor: Pass[T] | None = None  # what `next` takes from once this one is closed
        self.life = Life(channel, depth, after)
        self._end = weakref.finalize(self, self.life.end)
        self._end.atexit = False  # runner.py has a hook of its own

    # ---- iterating

    def __iter__(self) -> Iterator[T]:
        return self

    @errors.boundary
    def __next__(self) -> T:
        """The next item; waits for it.

        Raises:
            StopIteration: there are no more, or the pass was closed.
            LazyError: the source raised in place of this item; with the type and message of that.
            RuntimeError: in a forked child, for an iterator of the parent.
        """
        if self.life.channel.foreign:
            raise RuntimeError(
                f"{self._name}: this iterator runs in the process that made it, and cannot go on "
                "in a forked child, expected a new iter() there"
            )
        while not self.closed:
            before, outcome = self.life.taken, None
            try:
                outcome = self._take()
                if isinstance(outcome, Item):
                    self.life.taken = outcome.state
                    return outcome.value
            except BaseException:  # an interrupt, at any point
                if outcome is not None:
                    self.life.taken = before
                    self.life.channel.take_back(outcome)
                raise
            if isinstance(outcome, Nudge):  # or for an earlier pass over the same one-shot source
                if self.closed:
                    self.life.channel.made.put(outcome)  # others may wait too
                continue
            self.life.taken = outcome.state
            if isinstance(outcome, Failure):
                errors.raise_all([self._error_of(outcome)])
            self._end()
            break
        if self.successor is not None:
            return next(self.successor)
        raise StopIteration

    def _take(self) -> Any:
        channel = self.life.channel
        if self.life.depth == 0:
            return channel.make_and_take()
        if channel.made_here:  # the source asks for what it has yet to give
            raise ValueError("generator already executing")  # as Python says of a generator
        self.life.run_ahead()
        return channel.take(self.life.wake)

    def _error_of(self, failure: Failure) -> BaseException:
        """A new exception for the reader, at the position of the item that could not be made."""
        where = f"{self._unit} {failure.position}"
        if failure.record.origin is not None:  # an op failed: it says itself where it came from
            error = put_together(failure.record)
            error.add_note(f"lazyeng: read by {self._name}({where})")
            return error
        return errors.build(
            failure.record, op=self._name, inputs=[where], stack=self._stack, path=[self._name],
            root_id=next(_root_ids),
        )  # fmt: skip

    def __len__(self) -> int:
        """How many items a whole pass over the source has.

        Raises:
            TypeError: the source has no length.
        """
        return len(self._sized)

    def __bool__(self) -> bool:
        return True  # also without a length

    def goes_on(self, channel: Channel) -> bool:
        """Whether it takes from this channel, and may find something there."""
        return not self.closed and self.life.channel is channel and not channel.finished

    # ---- closing

    def close(self) -> None:
        """Ends the pass: its thread stops, and `next` raises StopIteration from now on.

        Waits for the item that is being made, at most two seconds; if the source takes longer, the
        thread ends once the source returns.
        """
        if self.closed:
            return
        self.closed = True
        self._sized = ()
        if not self.life.channel.foreign:
            self.life.channel.made.put(Nudge())
            self._end()

    def __enter__(self) -> Pass[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
