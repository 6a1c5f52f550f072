"""lazyeng: PyTorch's eager API over a lazy, threaded dependency engine."""

__version__ = "0.1.0"

from lazyeng import _check_torch

_check_torch.check()

from lazyeng import config as _config  # noqa: E402
from lazyeng.data import DataLoader, prefetch  # noqa: E402
from lazyeng.errors import LazyError, UnseenFailureWarning  # noqa: E402
from lazyeng.lagged import Lagged  # noqa: E402
from lazyeng.mode import lazy, synchronize  # noqa: E402
from lazyeng.pending import graph  # noqa: E402
from lazyeng.profiler import profile  # noqa: E402
from lazyeng.setup_core import set_num_workers  # noqa: E402
from lazyeng.setup_core import start as _start  # noqa: E402
from lazyeng.stats import engine_stats, reset_stats  # noqa: E402
from lazyeng.sync_debug import (  # noqa: E402
    SyncError,
    SyncWarning,
    allow_sync,
    get_sync_debug_mode,
    set_sync_debug_mode,
)
from lazyeng.tensor import LazyTensor  # noqa: E402
from lazyeng.wrapping import unwrap, wrap  # noqa: E402

__all__ = [
    "DataLoader",
    "Lagged",
    "LazyError",
    "LazyTensor",
    "SyncError",
    "SyncWarning",
    "UnseenFailureWarning",
    "allow_sync",
    "engine_stats",
    "get_sync_debug_mode",
    "graph",
    "lazy",
    "prefetch",
    "profile",
    "reset_stats",
    "set_num_workers",
    "set_sync_debug_mode",
    "synchronize",
    "unwrap",
    "wrap",
]

_start(_config.read())


def __getattr__(name: str) -> object:
    """Modules that are loaded when somebody asks for them: tools, not for every program."""
    if name in ("explain", "report"):
        import importlib

        return importlib.import_module(f"lazyeng.{name}")
    raise AttributeError(f"module 'lazyeng' has no attribute {name!r}")
