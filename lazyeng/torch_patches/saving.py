"""torch.save to a path: what failed is raised before the file is opened, which empties it.

In eager an operator's error comes before the save, and so the file of the step before stays whole.
What is recorded may also read the very file that is replaced (`torch.load(..., mmap=True)`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.serialization

from lazyeng import _C, errors
from lazyeng.torch_patches._patching import as_builtin_of


def install() -> None:
    """Puts the waiting function in place of torch's. Once per process, at import."""
    torch.save = torch.serialization.save = as_builtin_of(torch.save, _waiting(torch.save))


def _waiting(original: Callable[..., None]) -> Callable[..., None]:
    @errors.boundary
    @functools.wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            _C.wait_for_all()
            if _C.any_failure():  # perhaps of something in `obj`
                original(obj, _Nowhere(), *args, **kwargs)
        original(obj, f, *args, **kwargs)

    return save


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass
