"""Loading that runs ahead: DataLoader and prefetch. docs/data.md is the guide.

`channel` holds what is made and not taken yet, `runner` is the thread that makes it, `passes` the
iterator that takes it; `prefetch` and `loader` put them together for a source of their kind.
"""

from lazyeng.data.loader import DataLoader
from lazyeng.data.prefetching import prefetch

__all__ = ["DataLoader", "prefetch"]
