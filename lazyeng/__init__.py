"""lazyeng: PyTorch's eager API over a lazy, threaded dependency engine."""

__version__ = "0.1.0"  # also in pyproject.toml


def _autoload() -> None:
    """Entry point of torch's backend autoloading: importing this module is all there is to do.

    Defined first: the check below imports torch, which finds this module half imported and calls
    it.
    """


from lazyeng import _check_torch  # noqa: E402

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
