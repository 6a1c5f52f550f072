"""Runner: the thread that makes a channel's items ahead of their use.

It refers to the channel and never to the iterator that the user holds: once that one is gone, its
finalizer stops the thread. The thread starts an item only if fewer than `depth` wait, so at most
`depth` finished items wait at any time.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from lazyeng import _C
from lazyeng.data.channel import Channel

# How long closing waits for the item that is being made. After that the thread is left alone: it
# ends, and lets go of the source, once the source returns.
GRACE = 2.0

# Whose autocast state torch keeps for each thread and lazyeng computes on.
AUTOCAST_DEVICES = ("cpu", "cuda")

_names = itertools.count(1)
_running: weakref.WeakSet[Runner] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the code of a source may see of the thread that iterates over it."""

    context: contextvars.Context
    grad: bool
    inference: bool
    device: torch.device
    autocasts: tuple[tuple[str, torch.dtype], ...]  # those that are on
    autocast_cache: bool

    @staticmethod
    def of_this_thread() -> Surroundings:
        return Surroundings(
            contextvars.copy_context(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_device(),
            tuple(
                (kind, torch.get_autocast_dtype(kind))
                for kind in AUTOCAST_DEVICES
                if torch.is_autocast_enabled(kind)
            ),
            torch.is_autocast_cache_enabled(),
        )

    def call(self, function: Callable[[], None]) -> None:
        """Calls the function in a new thread as it would run in the old one."""
        if self.device.type != "cpu":
            torch.set_default_device(self.device)
        torch.set_autocast_cache_enabled(self.autocast_cache)
        with contextlib.ExitStack() as modes:
            modes.enter_context(_autocast_on(self.autocasts))
            modes.enter_context(torch.inference_mode(self.inference))
            modes.enter_context(torch.set_grad_enabled(self.grad))
            self.context.run(function)


@contextlib.contextmanager
def _autocast_on(autocasts: Sequence[tuple[str, torch.dtype]]) -> Iterator[None]:
    """The state as it is: torch.autocast warns of a kind of device that is not there."""
    if not autocasts:
        yield
        return
    before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
              for kind, _ in autocasts]  # fmt: skip
    torch.autocast_increment_nesting()  # the cache lasts until the outermost one ends
    try:
        _set_autocast((kind, True, dtype) for kind, dtype in autocasts)
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        _set_autocast(before)


def _set_autocast(states: Iterable[tuple[str, bool, torch.dtype]]) -> None:
    for kind, enabled, dtype in states:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    _C.follow_autocast()


def _filling(channel: Channel, surroundings: Surroundings, run: Callable[[], None]) -> None:
    """What the thread does. Whatever it meets: no reader waits for a thread that is gone."""
    try:
        surroundings.call(run)
    except BaseException as error:  # what the source raises is in the channel, at its position
        channel.break_off(error)


class Runner:
    """A thread that fills a channel, once it is started.

    Args:
        channel: what to fill.
        depth: how many finished items may wait; at least 1.
        previous: the runner before it on the same channel; it finishes its item first.
    """

    def __init__(self, channel: Channel, depth: int, previous: Runner | None = None) -> None:
        self._stopped = False
        self._wake = threading.Lock()  # free: look again whether there is something to do
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=_filling,
            args=(
                channel,
                Surroundings.of_this_thread(),
                lambda: self._run(channel, depth, previous),
            ),
            name=f"lazyeng-load-{next(_names)}",
            daemon=True,  # a source that hangs must not keep the program from ending
        )

    def start(self) -> None:
        """Begins. If a signal's handler raises meanwhile, the thread may have begun or not."""
        _at_exit_stop_all()
        _running.add(self)
        self._thread.start()

    def _run(self, channel: Channel, depth: int, previous: Runner | None) -> None:
        if previous is not None:
            previous._join()
        while not (self._stopped or channel.ended):
            if channel.wants(depth):
                channel.make()
            else:
                self._wake.acquire()

    def wake(self) -> None:
        """Tells the thread that an item was taken or asked for. Safe in finalizers and signals.

        A lock as a binary semaphore: unlike those of threading.Event, its one step cannot be
        interrupted half-way by a finalizer that takes the same step on the same thread.
        """
        try:
            self._wake.release()
        except RuntimeError:  # it is free: the thread looks again anyway
            return

    def tell_to_stop(self) -> None:
        """Ends the thread after the item that it makes now; does not wait for that."""
        self._stopped = True
        self.wake()

    def stop(self, *, patient: bool = False) -> bool:
        """Ends the thread; whether it ended in time.

        Args:
            patient: wait as long as it takes, and not GRACE seconds at most.
        """
        if self._process != os.getpid():
            return True  # the thread did not come along into this forked child
        self.tell_to_stop()
        if self._thread is not threading.current_thread():
            self._join(None if patient else GRACE)
        return not self._thread.is_alive()

    def _join(self, timeout: float | None = None) -> None:
        if self._thread.ident is not None:  # (else it has been told to stop before it began)
            self._thread.join(timeout)


_exit_hook = threading.Lock()  # taken once the hook is installed


def _at_exit_stop_all() -> None:
    """Installs the exit hook: a thread that comes back from torch's C++ while the interpreter is
    being torn down aborts the process.

    With the first runner and not at import: what is registered later is called earlier, and here
    that is before the engine stops and before torch refuses to end its workers.
    """
    if _exit_hook.acquire(blocking=False):
        atexit.register(_stop_all)


def _stop_all() -> None:
    runners = list(_running)
    for runner in runners:
        runner.tell_to_stop()
    for runner in runners:
        runner.stop()
