"""DataLoader: torch's, with a thread that runs ahead of the training loop."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.utils.data

from lazyeng import errors
from lazyeng.data.channel import Channel, no_state
from lazyeng.data.passes import Life, Pass
from lazyeng.data.prefetching import checked_depth
from lazyeng.data.rewind import generators_of, parts_of, rewind, snapshot_of
from lazyeng.data.shared import Kept, held_elsewhere
from lazyeng.data.transfer import convert_to
from lazyeng.data.workers import WorkerIterator
from lazyeng.sync_debug import allow_sync

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

T = TypeVar("T")


class DataLoader(torch.utils.data.DataLoader[T]):
    """`torch.utils.data.DataLoader`, whose batches are lazy and made ahead of their use.

    The batches are those of torch's DataLoader with the same arguments and the same generator, in
    the structure that `collate_fn` returned, with LazyTensors in the place of tensors. A thread
    asks torch's iterator for them; the workers, if any, are torch's. What a batch raised is raised
    at its position, with its own type, and is a LazyError too.

    `iter(loader)` gives an iterator that several threads may read. Its `close()`, the end of a
    `with` statement on it, and dropping it end its thread and its workers (but persistent ones);
    after that it gives no batch. `len()` of it is the number of batches of a whole pass (TypeError
    if the sampler does not know it).

    Args:
        dataset, *args, **kwargs: as for torch's DataLoader.
        device: where the tensors are to be, copied by recorded ops; None: where they are.
        prefetch: at most so many batches wait in this process, besides those that workers hold
            (torch's `prefetch_factor` for each of them); 0: no thread, each batch is asked for when
            the loop asks.

    Raises:
        TypeError: `prefetch` is not an int.
        ValueError: `prefetch` is negative; and what torch's DataLoader raises.
        RuntimeError, AssertionError, TypeError: as torch does, there is no such `device`.
    """

    device: torch.device | str | int | None
    prefetch: int

    if TYPE_CHECKING:

        def __init__(
            self,
            dataset: torch.utils.data.Dataset[T],
            batch_size: int | None = 1,
            shuffle: bool | None = None,
            sampler: torch.utils.data.Sampler[Any] | Iterable[Any] | None = None,
            batch_sampler: torch.utils.data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
            num_workers: int = 0,
            collate_fn: Callable[[Any], Any] | None = None,
            pin_memory: bool = False,
            drop_last: bool = False,
            timeout: float = 0,
            worker_init_fn: Callable[[int], None] | None = None,
            multiprocessing_context: BaseContext | str | None = None,
            generator: torch.Generator | None = None,
            *,
            prefetch_factor: int | None = None,
            persistent_workers: bool = False,
            pin_memory_device: str = "",
            in_order: bool = True,
            device: torch.device | str | int | None = None,
            prefetch: int = 2,
        ) -> None: ...

    else:

        def __init__(
            self,
            dataset: torch.utils.data.Dataset[T],
            *args: Any,
            device: torch.device | str | int | None = None,
            prefetch: int = 2,
            **kwargs: Any,
        ) -> None:
            self._prepare(device, prefetch)
            super().__init__(dataset, *args, **kwargs)

    def _prepare(self, device: torch.device | str | int | None, prefetch: int) -> None:
        # Not set as attributes: a subclass may have properties of these names.
        vars(self).update(device=device, prefetch=checked_depth("DataLoader: prefetch", prefetch))
        convert_to(device, prefetch)  # raises what is wrong with the device
        self._last: tuple[weakref.ref[Pass[Any]], Channel] | None = None
        self._kept: Kept | None = None  # what was made of a source that cannot start anew
        self._shared = object()  # the same for all passes that take from it

    @errors.boundary
    def __iter__(self) -> Pass[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        before = self._finish_last() if self.persistent_workers else None
        running = self._running_shared()
        if self._kept is not None and running is None:
            self._kept.look()
        # On this thread, as in torch: the draws of seeds and the start of workers happen here.
        with allow_sync("an epoch starts with a seed that is read at once"):
            source = super().__iter__()
        # The thread starts with the first `next`: samplers draw from then on.
        shared = _shared_parts(self, source)
        if shared:
            return running or self._shared_pass(source, shared)
        generators = generators_of((self.generator, self.sampler, self.batch_sampler))
        channel = self._channel(source, snapshot_of(generators))
        after = functools.partial(_end, generators, self._workers_of(source))
        new = self._pass(channel, after)
        if self.persistent_workers:
            self._last = weakref.ref(new), channel
            if before is not None:
                before.successor = new
        return new

    def _channel(self, source: Any, state: Callable[[], Any] = no_state) -> Channel:
        convert = convert_to(vars(self)["device"], self._depth())
        return Channel(source, convert, state, self._length())

    def _length(self) -> int | None:
        """Of a pass, if the sampler tells."""
        if isinstance(self.dataset, torch.utils.data.IterableDataset):
            return None
        try:
            return len(self._index_sampler)  # pyright: ignore[reportArgumentType] (its stubs: an Iterable)
        except Exception:  # a sampler need not know, and torch does not ask
            return None

    def _pass(self, channel: Channel, after: Callable[[Life], None], **more: object) -> Pass[Any]:
        return Pass(
            channel, self._depth(), sized=self._index_sampler, name="DataLoader", unit="batch",
            after=after, **more,
        )  # fmt: skip

    def _depth(self) -> int:
        return checked_depth("DataLoader: prefetch", vars(self)["prefetch"])  # (it may be set)

    def _running_shared(self) -> Pass[Any] | None:
        """The pass that takes what the one asked for would take."""
        if self._kept is None or self._last is None:
            return None
        last = self._last[0]()
        return last if last is not None and last.goes_on(self._kept.channel) else None

    def _shared_pass(self, source: Any, shared: Sequence[object]) -> Pass[Any]:
        """A pass over what is left of the dataset's or the sampler's only iterator."""
        if self._kept is None or not self._kept.goes_on(shared):
            self._kept = Kept(shared, self._channel(source))
        new = self._pass(self._kept.channel, self._kept.after(), shared=self._shared)
        self._last = weakref.ref(new), self._kept.channel
        return new

    def _finish_last(self) -> Pass[T] | None:
        """Ends the pass before: torch has one iterator for all, which starts anew if it can.

        Returns that pass, if somebody still has it, and has not closed it.
        """
        last = None
        if self._last is not None:
            last, channel = self._last[0](), self._last[1]
            if last is not None and last.closed:
                last = None
            elif last is not None:
                last.close()
            if channel.runner is not None:
                channel.runner.stop(patient=True)
        if isinstance(self._iterator, WorkerIterator) and self._iterator.has_dead_workers():
            self._iterator._shutdown_workers()
            self._iterator = None
        return last

    def _workers_of(self, source: Any) -> Sequence[Any]:
        """The processes that end with the pass."""
        return () if self.persistent_workers else tuple(getattr(source, "_workers", ()))

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return WorkerIterator(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "_kept": None}


def _shared_parts(loader: DataLoader[Any], source: Any) -> list[object]:
    """Iterators that this pass goes on with and the next one will, so that none may lose items.

    Only without workers: what those are sent ahead is lost after a `break` in torch too.
    """
    if loader.num_workers > 0:
        return []
    fetcher = source._dataset_fetcher
    if hasattr(fetcher, "dataset_iter"):
        return [fetcher.dataset_iter] if held_elsewhere(fetcher, "dataset_iter") else []
    samplers = parts_of((loader.sampler, loader.batch_sampler))
    return [part for part in samplers if isinstance(part, Iterator)]


def _end(generators: Sequence[torch.Generator], workers: Sequence[Any], life: Life) -> None:
    """After a pass: nothing of it stays, but for persistent workers."""
    if life.hangs:  # the thread waits for a worker that hangs; torch's iterator has it report that
        for worker in workers:
            worker.terminate()
    else:
        rewind(generators, life)
    life.channel.drop()


def _with_torch_arguments(own: inspect.Signature) -> inspect.Signature:
    """The signature of `DataLoader.__init__`: torch's parameters, and those that only it has."""
    torchs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    added = [p for p in own.parameters.values() if p.kind is p.KEYWORD_ONLY]
    return own.replace(parameters=sorted([*torchs.values(), *added], key=lambda p: p.kind))


# For editors and help(); calls go by the function itself.
DataLoader.__init__.__signature__ = _with_torch_arguments(inspect.signature(DataLoader.__init__))
