"""Torch's iterator over worker processes, with every failure at the position of its batch.

Torch's class does the work: it sends indices out and puts the answers in order. What differs here:
a sampler that raises, a worker that is killed, and a batch that cannot be sent each take the place
of one batch, and batches that are finished do not depend on their worker staying alive.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import torch
from torch.utils.data import _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from lazyeng.data.worker import Lost, Packed, WorkerCollate, WorkerFailure, WorkerInit


def _check_interval() -> float:
    """Seconds after which somebody who waits for workers looks whether they are alive."""
    return _utils.MP_STATUS_CHECK_INTERVAL


# Set before workers are ended at exit, which would wake threads that then call into torch.
_exiting = threading.Event()
atexit.register(_exiting.set)


class _Start:
    """Threads start their workers one after the other: filelock, which torch brings, refuses a fork
    while another thread forks."""

    lock = threading.Lock()

    @classmethod
    def renew(cls) -> None:
        cls.lock = threading.Lock()  # (the thread that had it may not be in the child)


os.register_at_fork(after_in_child=_Start.renew)


class _ForWorkers:
    """A loader as its workers are to see it; a view, as several threads may iterate over one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.worker_init_fn = WorkerInit(loader.worker_init_fn)
        self.collate_fn = WorkerCollate(loader.collate_fn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Gone:
    """In the place of an answer: a worker has ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Unreadable:
    """In the place of an answer: it could not be read, and none after it will be."""

    error: BaseException


class _NoIndexError(Exception):
    """The sampler raised its cause."""


class WorkerIterator(_MultiProcessingDataLoaderIter):
    """The iterator that a DataLoader with workers reads; the base class has the documentation."""

    def __init__(self, loader: Any) -> None:
        self._some_gone = False
        with _Start.lock:
            super().__init__(_ForWorkers(loader))  # pyright: ignore[reportArgumentType]
        self._leave_deaths_to_the_reader()
        if not self._pin_memory:  # or else torch has such a thread
            self._data_queue: Any = queue.SimpleQueue()
            _start_receiving(self._worker_result_queue, self._workers, self._data_queue.put)

    def _leave_deaths_to_the_reader(self) -> None:
        """Torch has a signal handler raise it in whatever line the main thread executes then.

        Without that, the thread that waits for the batch finds out at its next look.
        """
        if self._worker_pids_set:
            torch._C._remove_worker_pids(id(self))
            self._worker_pids_set = False

    # ---- a sampler that raises

    def _next_index(self) -> Any:
        try:
            return Packed(super()._next_index())  # here, as it could not be sent later either
        except StopIteration:
            raise
        except Exception as error:
            raise _NoIndexError from error

    def _try_put_index(self) -> None:
        try:
            super()._try_put_index()
        except _NoIndexError as failed:
            # As torch keeps an answer that came before its turn: (worker, answer).
            self._task_info[self._send_idx] = (
                0,
                WorkerFailure.of(failed.__cause__, "in the sampler"),
            )
            self._workers_num_tasks[0] += 1
            self._send_idx += 1

    # ---- a worker that is killed

    def _try_get_data(self, timeout: float | None = None) -> Any:
        until = time.monotonic() + (_check_interval() if timeout is None else timeout)
        while True:
            if self._some_gone and self._data_queue.empty():
                self._look_for_the_dead()
            try:
                answer = self._data_queue.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                self._look_for_the_dead()
                return False, None
            if isinstance(answer, _Unreadable):
                raise self._given_up(answer.error)
            if not isinstance(answer, _Gone):
                return True, answer
            self._some_gone = True

    def _given_up(self, error: BaseException) -> BaseException:
        """Ends the workers, as nobody reads them. The death of one may have been the cause."""
        dead = [i for i, w in enumerate(self._workers) if self._is_dead(i, w)]
        failed = self._death(dead) if dead else error
        for index, worker in enumerate(self._workers):
            if self._workers_status[index]:
                worker.terminate()
                worker.join(timeout=1)
                self._mark_worker_as_unavailable(index)
        return failed

    def _look_for_the_dead(self) -> None:
        dead = [i for i, w in enumerate(self._workers) if self._is_dead(i, w)]
        if dead and not self._awaits_another(dead):
            raise self._death(dead)

    def _is_dead(self, index: int, worker: Any) -> bool:
        return self._workers_status[index] and _has_ended(worker)

    def _awaits_another(self, dead: Sequence[int]) -> bool:
        """Whether the next batch is owed by a worker that lives, and able to send it."""
        task = self._task_info.get(self._rcvd_idx)
        if not self._in_order or task is None or task[0] in dead:
            return False
        # A worker killed while it wrote holds this lock for ever, and no other can send.
        lock: Any = getattr(self._worker_result_queue, "_wlock")  # noqa: B009 (not in the stubs)
        free = lock.acquire(timeout=_check_interval())
        if free:
            lock.release()
        return free

    def _death(self, dead: Sequence[int]) -> RuntimeError:
        for index in dead:
            self._mark_worker_as_unavailable(index)
        pids = ", ".join(str(self._workers[index].pid) for index in dead)
        return RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly")

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        if isinstance(data, Lost):
            worker = self._workers[worker_idx]
            # (Its sockets close before it is gone: on a busy machine long before.)
            worker.join(timeout=5)
            if self._is_dead(worker_idx, worker):
                data = WorkerFailure.of(self._death([worker_idx]), data.where)
        return super()._process_data(data, worker_idx)

    def has_dead_workers(self) -> bool:
        """Whether it can no longer be used for another epoch."""
        return any(_has_ended(worker) for worker in self._workers)


def _has_ended(worker: Any) -> bool:
    """Also if another thread, or whatever else reaps children, has collected its status.

    `is_alive()` is true then, for a moment or for ever, and the sentinel is closed. (It stays open
    while a process lives that the worker has forked: not everything here can be left to it.)
    """
    return not worker.is_alive() or bool(connection.wait([worker.sentinel], timeout=0))


def _start_receiving(results: Any, workers: Sequence[Any], put: Callable[[Any], object]) -> None:
    """Reads the answers of workers as they come, in a thread that ends after the last worker.

    Tensors are on their way as file descriptors, which the worker hands out when they are read: a
    worker that dies takes with it what was not. There are at most prefetch_factor * num_workers.
    """
    threading.Thread(
        target=_receive, args=(results, workers, put), name="lazyeng-receive", daemon=True
    ).start()


def _receive(results: Any, workers: Sequence[Any], put: Callable[[Any], object]) -> None:
    try:
        _pass_on(results, workers, put)
    except BaseException as error:  # cut off by the death of a worker; no memory; ...
        put(_Unreadable(error))  # or else a reader waits for ever


def _pass_on(results: Any, workers: Sequence[Any], put: Callable[[Any], object]) -> None:
    alive = {worker.sentinel: worker for worker in workers}
    while alive and not _exiting.is_set():
        ready = connection.wait([results._reader, *alive])
        if results._reader not in ready:
            for sentinel in ready:
                alive.pop(sentinel).join(timeout=1)  # this closes a moment before it is gone
            put(_Gone())
            continue
        put(results.get())
