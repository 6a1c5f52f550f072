"""`ctx.mark_dirty(...)` of an autograd.Function inside lazy().

Autograd moves the version counters of such inputs once more when `forward` has returned. The writes
themselves were recorded: a pending op that reads the tensor must not take this for interference.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from lazyeng import _C


def install() -> None:
    """Puts the telling method in place of torch's. Once per process, at import."""
    original = FunctionCtx.mark_dirty

    @functools.wraps(original)
    def mark_dirty(self: Any, *args: Any) -> None:
        self._lazyeng_bumps = [_C.expect_bump(a) for a in args if isinstance(a, torch.Tensor)]
        original(self, *args)

    FunctionCtx.mark_dirty = mark_dirty
