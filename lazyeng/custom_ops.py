"""Custom ops: each is recorded as one op from its first call on.

The dispatcher's registration listener (csrc/record/library.cpp) hears of an op when it is defined,
before it has kernels; here lazyeng is told when kernels have come.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.library

from lazyeng import _C


def install() -> None:
    """Puts the telling functions in place of torch's own. Once per process, at import."""
    torch.library.Library.impl = _then_adopt(torch.library.Library.impl)
    torch.ops.load_library = _then_adopt(torch.ops.load_library)


def _then_adopt(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _C.adopt_new_ops()
        return result

    return register
