"""What runs in the workers of a DataLoader: results and failures that survive the way back.

torch rebuilds a worker's exception as ``type(error)(text)``: that loses the arguments, the message
as it was, and classes whose constructor wants something else. Here it travels as plain data.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from lazyeng._record import portable, put_together
from lazyeng.wrapping import unwrap


class WorkerFailure(ExceptionWrapper):
    """An exception on its way out of a worker; torch makes one in its `except` clause."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        exc_info = exc_info or sys.exc_info()
        super().__init__(exc_info, where)
        self.exc_type = RuntimeError  # of no use here, and pickled with it: may be a local class
        self.record = portable(exc_info[1])

    def reraise(self) -> NoReturn:
        """Raises the original in the process that reads; its traceback is that of the worker."""
        error = put_together(self.record)
        error.add_note(f"raised {self.where}")
        raise error


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerInit:
    """The `worker_init_fn` that workers get: prepares the worker, then calls the user's."""

    user: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        # In the worker's process only. torch's loop looks the class up by this name.
        torch_worker.ExceptionWrapper = WorkerFailure  # pyright: ignore[reportPrivateImportUsage]
        if self.user is not None:
            self.user(worker_id)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerCollate:
    """The `collate_fn` that workers get: the user's; lazy results are waited for.

    Sending a batch waits too, but in a thread of multiprocessing: what fails there is printed and
    lost, and the reader waits for ever.
    """

    user: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Any:
        return unwrap(self.user(samples))
