"""torch.save to a path: what failed is raised before the file is opened, which empties it.

In eager an operator's error comes before the save, and so the file of the step before stays whole.
What is recorded may also read the very file that is replaced (`torch.load(..., mmap=True)`).

torch.export.save writes lazy weights as it does plain ones, by their memory: each pickled by itself
would share it no more with others.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.serialization

from lazyeng import _C, errors
from lazyeng.torch_patches._patching import as_builtin_of, is_lazy, when_imported


def install() -> None:
    """Puts the waiting function in place of torch's. Once per process, at import."""
    torch.save = torch.serialization.save = as_builtin_of(torch.save, _waiting(torch.save))
    when_imported("torch.export.pt2_archive._package", _change_archives)


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


def _change_archives(package: Any) -> None:
    for name in ("_is_tensor_subclass", "_should_use_pickle"):
        if original := getattr(package, name, None):
            setattr(package, name, _but_for_lazy(original))


def _but_for_lazy(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(original)
    def is_to_be_pickled(value: Any) -> bool:
        return not is_lazy(value) and original(value)

    return is_to_be_pickled


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass
