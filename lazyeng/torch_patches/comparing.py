"""`torch.testing.assert_close` of a lazy and a plain tensor: as of two plain ones.

torch asks for the classes. It compares two tensors if that of one is derived from that of the
other, and LazyTensor and torch.nn.Parameter both are torch.Tensor's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.testing._comparison import TensorLikePair

from lazyeng import _C


def install() -> None:
    """Puts a method that makes such pairs plain in place of torch's. Once, at import."""
    original = getattr(TensorLikePair, "_process_inputs", None)
    if original is None:  # private to torch: a version without it compares as it likes
        return

    @functools.wraps(original)
    def process_inputs(
        self: TensorLikePair, actual: Any, expected: Any, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if _is_plain(expected):
            actual = _plain(actual)
        elif _is_plain(actual):
            expected = _plain(expected)
        return original(self, actual, expected, *args, **kwargs)

    setattr(TensorLikePair, "_process_inputs", process_inputs)  # noqa: B010


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not _C.is_lazy(value)


def _plain(value: Any) -> Any:
    lazy = isinstance(value, torch.Tensor) and _C.is_lazy(value)
    return _C.values(value) if lazy else value
