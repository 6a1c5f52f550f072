"""DataLoader: torch's, with a thread that runs ahead of the training loop."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.utils.data

from lazyeng import errors
from lazyeng.data.channel import Channel
from lazyeng.data.passes import Life, Pass
from lazyeng.data.prefetch import checked_depth
from lazyeng.data.rewind import generators_of, rewind, snapshot_of
from lazyeng.data.transfer import convert_to
from lazyeng.data.workers import WorkerIterator
from lazyeng.sync_debug import allow_sync

T = TypeVar("T")


class DataLoader(torch.utils.data.DataLoader[T]):
    """`torch.utils.data.DataLoader`, whose batches are lazy and made ahead of their use.

    The batches are those of torch's DataLoader with the same arguments and the same generator, in
    the structure that `collate_fn` returned, with LazyTensors in the place of tensors. A thread
    asks torch's iterator for them; the workers, if any, are torch's. What a batch raised is raised
    at its position, with its own type, and is a LazyError too.

    Args:
        dataset, *args, **kwargs: as for torch's DataLoader.
        device: where the tensors are to be, copied by recorded ops; None: where they are.
        prefetch: at most so many batches wait, besides those that workers hold; 0: no thread, each
            batch is asked for when the loop asks.

    Raises:
        TypeError: `prefetch` is not an int.
        ValueError: `prefetch` is negative; and what torch's DataLoader raises.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T],
        *args: Any,
        device: torch.device | str | int | None = None,
        prefetch: int = 2,
        **kwargs: Any,
    ) -> None:
        self.device = device
        self.prefetch = checked_depth("DataLoader: prefetch", prefetch)
        convert_to(device, prefetch)  # raises what is wrong with the device
        self._last: tuple[weakref.ref[Pass[T]], Channel] | None = None
        super().__init__(dataset, *args, **kwargs)

    @errors.boundary
    def __iter__(self) -> Pass[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.persistent_workers:
            self._finish_last()
        # On this thread, as in torch: the draws of seeds and the start of workers happen here.
        with allow_sync("an epoch starts with a seed that is read at once"):
            source = super().__iter__()
        generators = generators_of((self.generator, self.sampler, self.batch_sampler))
        channel = Channel(source, convert_to(self.device, self.prefetch), snapshot_of(generators))
        # The thread starts with the first `next`: samplers draw from then on.
        new: Pass[T] = Pass(
            channel, self.prefetch, sized=self._index_sampler, name="DataLoader", unit="batch",
            after=functools.partial(_end, generators, self._workers_of(source)),
        )  # fmt: skip
        if self.persistent_workers:
            self._last = weakref.ref(new), channel
        return new

    def _finish_last(self) -> None:
        """Ends the pass before: torch has one iterator for all, which starts anew if it can."""
        if self._last is not None:
            last, channel = self._last[0](), self._last[1]
            if last is not None:
                last.close()
            if channel.runner is not None:
                channel.runner.stop(patient=True)
        if isinstance(self._iterator, WorkerIterator) and self._iterator.has_dead_workers():
            self._iterator._shutdown_workers()
            self._iterator = None

    def _workers_of(self, source: Any) -> Sequence[Any]:
        """The processes that end with the pass."""
        return () if self.persistent_workers else tuple(getattr(source, "_workers", ()))

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return WorkerIterator(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def _end(generators: Sequence[torch.Generator], workers: Sequence[Any], life: Life) -> None:
    """After a pass: nothing of it stays, but for persistent workers."""
    if life.hangs:  # the thread waits for a worker that hangs; torch's iterator has it report that
        for worker in workers:
            worker.terminate()
    else:
        rewind(generators, life)
    life.channel.drop()
