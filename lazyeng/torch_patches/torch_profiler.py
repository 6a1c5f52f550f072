"""torch.profiler sees the engine's threads, and no trials (csrc/run/traces/torch_profiler.h).

A profile ends when what was recorded in it is complete, so that all of it is in there.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.autograd.profiler

from lazyeng import _C, sync_debug


def install() -> None:
    """Puts ours in place of the two functions by which torch's profilers begin and end."""
    module: Any = torch.autograd.profiler
    enable, disable = module._enable_profiler, module._disable_profiler

    @functools.wraps(enable)
    def begin(*args: Any, **kwargs: Any) -> Any:
        result = enable(*args, **kwargs)
        _C.let_threads_join_profile()
        return result

    @functools.wraps(disable)
    def end() -> Any:
        try:
            with sync_debug.allow_sync("torch's profile is complete when it ends"):
                _C.wait_for_all()
        finally:
            _C.keep_threads_out_of_profile()
            result = disable()
        return result

    module._enable_profiler, module._disable_profiler = begin, end
