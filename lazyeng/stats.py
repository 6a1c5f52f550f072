"""engine_stats(): what the engine has done, in numbers."""

from __future__ import annotations

from lazyeng import _C

# Gauges tell the state now and are not reset; the rest counts since the last reset.
_GAUGES = frozenset(
    {
        "pending_ops", "pending_bytes", "pool_bytes", "peak_bytes", "graph_bytes",
        "stack_table_entries",
    }
)  # fmt: skip
_KEYS = (
    "recorded", "executed", "groups", "hand_written", "replayed", "launches",
    "graph_launches", "on_one_core", "in_parts", "crowded", "plans", "syncs", "fallbacks",
    "pending_ops", "pending_bytes", "pool_bytes", "peak_bytes", "graph_bytes",
    "stack_table_entries",
)  # fmt: skip
_base: dict[str, int] = {}


def engine_stats() -> dict[str, int]:
    """Counters since the last `reset_stats`, and gauges of this moment, of the whole process. Never
    waits.

    Returns:
        ``recorded``, ``executed``: ops recorded and run; ``groups``: fused groups run;
        ``hand_written``: ops that ran as kernels of the table in docs/triton.md, on GPUs;
        ``replayed``: ops whose groups were known from an earlier step of a loop;
        ``launches``: kernels started, one for each group, each graph, and each op that ran alone;
        ``graph_launches``: CUDA graphs launched;
        ``on_one_core``: ops run on one core although their kernels may take all;
        ``in_parts``: large ops run on threads that had nothing else to do, one that waits included;
        ``crowded``: how often other programs were found to keep the cores busy, so that threads of
        large kernels sleep between kernels for a while, in place of spinning;
        ``plans``: calls unlike all before (in op, shapes, options), which take longer to record;
        ``syncs``: how often the program waited; ``fallbacks``: ops run at the call because they
        cannot be recorded;
        ``pending_ops``, ``pending_bytes``: recorded and not complete, and the bytes of their
        results and of large plain inputs, which count for ``LAZYENG_MAX_PENDING_BYTES``;
        ``pool_bytes``: kept for reuse by the buffer pool; ``peak_bytes``: the most that was ever in
        use of its buffers; ``graph_bytes``: results and copied inputs that live with
        CUDA graphs; ``stack_table_entries``: distinct creation stacks kept.
    """
    now = _now()
    return {key: now[key] - (0 if key in _GAUGES else _base.get(key, 0)) for key in _KEYS}


def reset_stats() -> None:
    """Starts the counters of `engine_stats` at zero again; gauges stay."""
    _base.update(_now())


def _now() -> dict[str, int]:
    counters: dict[str, int] = dict.fromkeys(_KEYS, 0)
    counters.update(_C.stats())
    return counters
