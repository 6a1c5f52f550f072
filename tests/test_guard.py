"""The guard of plain memory that a recorded write is about to change
(csrc/run/plain/plain_storage.cpp).

A storage looked at directly raises until the write is complete; the engine lifts that meanwhile.
Shared memory, as what the engine knows of it lives no longer than what is recorded on it.
"""

import threading

import torch

import lazyeng
from lazyeng import _C

TENSORS = 200
#: As C++ asks: lazyeng's own waits.
data_ptr = torch.UntypedStorage.data_ptr.__wrapped__
MESSAGE = (
    "lazyeng: a recorded write to this tensor is not complete, so its memory cannot be read "
    "directly; call lazyeng.synchronize() or leave the lazyeng.lazy() block first"
)


def written_storages(rounds):
    """Storages with a write recorded just now, which an engine thread completes meanwhile."""
    for _ in range(rounds):
        tensors = [torch.zeros(4).share_memory_() for _ in range(TENSORS)]
        storages = [tensor.untyped_storage() for tensor in tensors]
        with lazyeng.lazy():
            for tensor, storage in zip(tensors, storages, strict=True):
                tensor.add_(1)
                yield storage
        assert all((tensor == 1).all() for tensor in tensors)


def test_message_while_the_guard_is_lifted():
    """It was freed by whoever lifted the guard: UnicodeDecodeError, or other text."""
    seen = set()
    for storage in written_storages(10):
        while True:
            try:
                data_ptr(storage)
                break
            except RuntimeError as error:
                seen.add(str(error))
    assert seen <= {MESSAGE}


def test_no_guard_where_the_engine_knows_nothing():
    """What a write left behind was gone, as seen from here, before it had lifted the guard."""
    stop = threading.Event()

    def keeps_waiting():
        while not stop.is_set():
            _C.wait_for_all()

    thread = threading.Thread(target=keeps_waiting)
    thread.start()
    try:
        for storage in written_storages(8):
            while _C.follow_storage(storage):
                pass
            data_ptr(storage)
    finally:
        stop.set()
        thread.join()
