"""What runs in the workers of a DataLoader: results and failures that survive the way back.

torch rebuilds a worker's exception as ``type(error)(text)``: that loses the arguments, the message
as it was, and classes whose constructor wants something else. Here it travels as plain data.
"""

from __future__ import annotations

import dataclasses
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from lazyeng._exception_data import portable, put_together
from lazyeng.wrapping import unwrap


class WorkerFailure(ExceptionWrapper):
    """An exception on its way out of a worker; torch makes one in its `except` clause."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        exc_info = exc_info or sys.exc_info()
        super().__init__(exc_info, where)
        self.exc_type = RuntimeError  # of no use here, and pickled with it: may be a local class
        self.record = portable(exc_info[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, ({**vars(self), "record": pickle.dumps(self.record)},)

    @classmethod
    def of(cls, error: BaseException | None, where: str) -> WorkerFailure:
        """The failure that `error` is, raised or not."""
        return cls((type(error), error, getattr(error, "__traceback__", None)), where)

    def reraise(self) -> NoReturn:
        """Raises the original in the process that reads; its traceback is that of the worker."""
        error = put_together(self.record)
        error.add_note(f"raised {self.where}")
        raise error


class Lost(WorkerFailure):
    """What arrived in place of a batch that could not be put together again."""


class Packed:
    """An object on its way to another process, pickled now: what fails, fails here.

    Multiprocessing pickles in a thread of its own; what fails there is printed and lost, and the
    reader waits for ever.
    """

    def __init__(self, value: Any) -> None:
        self._pickled = bytes(ForkingPickler.dumps(value))

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._pickled,)


class Batch:
    """A batch on its way out of a worker, pickled in multiprocessing's thread.

    If that fails, or putting it together again does, the failure arrives in its place: where it
    belongs is known only outside of the pickled part.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _put_together, (bytes(ForkingPickler.dumps(self._value)),)
        except Exception as error:
            info = torch_worker.get_worker_info()
            where = f"in DataLoader worker process {info.id if info else '?'}, sending a batch"
            return _same, (WorkerFailure.of(error, where),)


def _put_together(pickled: bytes) -> Any:
    try:
        return pickle.loads(pickled)
    except Exception as error:
        return Lost.of(error, "in the process that reads, receiving a batch")


def _arrived(state: dict[str, Any]) -> WorkerFailure:
    """A failure in the process that reads, or another in its place: what it holds may refuse."""
    try:
        record = pickle.loads(state["record"])
    except Exception as error:
        error.add_note(f"in place of what cannot be put together here:\n{state['exc_msg']}")
        return Lost.of(error, state["where"])
    failure = WorkerFailure.__new__(WorkerFailure)
    vars(failure).update(state, record=record)
    return failure


def _same(failure: WorkerFailure) -> WorkerFailure:
    return failure


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerInit:
    """The `worker_init_fn` that workers get: prepares the worker, then calls the user's."""

    user: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        # In the worker's process only. torch's loop looks the class up by this name.
        torch_worker.ExceptionWrapper = WorkerFailure  # pyright: ignore[reportPrivateImportUsage]
        # Ctrl-C in a terminal goes to all processes. The parent decides what it ends: the loop may
        # catch it and go on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.user is not None:
            self.user(worker_id)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerCollate:
    """The `collate_fn` that workers get: the user's; lazy results are waited for."""

    user: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Batch:
        return Batch(unwrap(self.user(samples)))
