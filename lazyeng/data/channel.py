"""Channel: one pass over a source, item by item, and what was made and not taken yet.

No thread starts here. `make` is called by one thread at a time: a Runner's, or, if nothing runs
ahead, by the consumers', in turn. What it makes goes into `made`, a queue that any thread may read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from lazyeng import errors
from lazyeng._exception_data import ExceptionData, bare

if TYPE_CHECKING:
    from lazyeng.data.runner import Runner


@dataclass(frozen=True, slots=True)
class Item:
    """What the source gave, converted; `state` is what the channel's `state` returned then."""

    value: Any
    state: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """What the source raised in place of an item, as plain data: no frame stays alive."""

    record: ExceptionData
    position: int
    state: Any


@dataclass(frozen=True, slots=True)
class End:
    """There is nothing more. Its taker puts it back, so that each later taker finds it too."""

    state: Any


@dataclass(frozen=True, slots=True)
class Nudge:
    """Wakes threads that wait for an item, so that they see that the pass was closed."""


Outcome = Item | Failure | End


def _record_of(error: BaseException) -> ExceptionData:
    try:
        return errors.detach(error)
    except KeyboardInterrupt as interrupt:  # Ctrl-C, if this is the consumer's thread
        return bare(interrupt)
    except BaseException:  # user code that it ran raised; or there is no memory
        return bare(error)


def no_state() -> None:
    """For sources whose draws nobody can see."""


def _nobody() -> None:
    """There is no maker to be told."""


class Channel:
    """A source's items, in order, from the thread that makes them to those that take them.

    Args:
        source: the iterator; `make` alone advances it.
        convert: applied to each item by the thread that makes it.
        state: called after each item; what it returns goes with the item.
        length: after how many items the end is expected, if that is known.
    """

    def __init__(
        self,
        source: Iterator[Any],
        convert: Callable[[Any], Any],
        state: Callable[[], Any] = no_state,
        length: int | None = None,
    ) -> None:
        # A SimpleQueue, since its `put` may interrupt itself: finalizers run anywhere.
        self.made: SimpleQueue[Outcome | Nudge] = SimpleQueue()
        self._returned: list[Item | Failure] = []  # taken by who was interrupted; the next is last
        self.ended = False  # the source has; items may wait
        self.finished = False  # somebody took the end
        self.state = state
        self.last_state = state()  # after the last item made
        self.runner: Runner | None = None  # the last one that made items here
        self._source = source
        self._convert = convert
        self._length = length
        self._maker: int | None = None  # the thread that makes an item now
        self._position = 0  # of the item that is made next
        self._failed = False  # the last item
        self._asked = 0  # how many items takers asked for, the one they wait for included
        self._asking = threading.Lock()
        # Reentrant: a source that asks for its own next item gets its error, and not a deadlock.
        self._turn = threading.RLock()
        self._process = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether this is a forked child's copy: its thread stayed in the parent."""
        return self._process != os.getpid()

    @property
    def made_here(self) -> bool:
        """Whether this thread makes an item now: it runs the source's code."""
        return self._maker == threading.get_ident()

    # ---- the maker's side

    def wants(self, depth: int) -> bool:
        """Whether to make an item now, if at most `depth` finished ones are to wait.

        After a failure only on demand: a source that raised may not stand being asked again.
        The end, too: samplers draw once more there, and others may use their generator until then.
        """
        only_if_asked = self._failed or self._position == self._length
        return self.made.qsize() < depth and (not only_if_asked or self._asked > self._position)

    def make(self) -> None:
        """Puts the next item, the failure in its place, or the end into `made`."""
        self._maker = threading.get_ident()
        try:
            outcome = self._next()
        finally:
            self._maker = None
        self.last_state = outcome.state
        if isinstance(outcome, End):
            self.ended = True
            self._source = iter(())
        else:  # before it can be seen: its taker may ask for the next one at once
            self._failed = isinstance(outcome, Failure)
            self._position += 1
        self.made.put(outcome)

    def _next(self) -> Outcome:
        try:
            value = next(self._source)
        except StopIteration:
            return End(self.state())
        except BaseException as error:
            return self._failure(error)
        try:
            return Item(self._convert(value), self.state())
        except BaseException as error:
            return self._failure(error)

    def _failure(self, error: BaseException) -> Failure:
        return Failure(_record_of(error), self._position, self.state())

    def break_off(self, error: BaseException) -> None:
        """The maker cannot go on: puts what it met, which no item raised, and then the end."""
        if self.ended:
            return
        self.ended = True
        try:
            self.made.put(Failure(_record_of(error), self._position, self.last_state))
        finally:
            self.made.put(End(self.last_state))
            self._source = iter(())

    # ---- the taker's side

    def take(self, wake: Callable[[], None]) -> Outcome | Nudge:
        """Waits for the next outcome, without the GIL; Ctrl-C interrupts that.

        Args:
            wake: tells the maker that there is something new to look at.
        """
        self._ask(1)
        outcome = None
        try:
            wake()
            outcome = self._pop_returned() or self.made.get()
            if isinstance(outcome, End):
                self.made.put(outcome)
                outcome = self._pop_returned() or outcome  # (given back since)
            self.finished |= isinstance(outcome, End)
            wake()
        except BaseException:
            self.take_back(outcome)
            raise
        if not isinstance(outcome, Item | Failure):
            self._ask(-1)
        return outcome

    def _pop_returned(self) -> Item | Failure | None:
        try:
            return self._returned.pop()
        except IndexError:  # another taker may have been faster
            return None

    def take_back(self, outcome: Outcome | Nudge | None) -> None:
        """Who took it was interrupted: it is the next one again, and was not asked for."""
        self._ask(-1)
        if isinstance(outcome, Item | Failure):
            self._returned.append(outcome)
        elif outcome is not None:
            self.made.put(outcome)

    def make_and_take(self) -> Outcome | Nudge:
        """For takers that make what they take, one after the other; as `take`."""
        with self._turn:  # until it is taken: the maker of the end must not find an item of another
            if self.made.empty() and not self._returned:
                self.make()
            return self.take(_nobody)

    def _ask(self, items: int) -> None:
        with self._asking:
            self._asked += items

    def drop(self) -> None:
        """Forgets the source and items not taken. Threads that wait find the end."""
        self.ended = True
        self._source = iter(())
        self._returned.clear()
        try:
            while True:
                self.made.get_nowait()
        except Empty:
            self.made.put(End(None))
