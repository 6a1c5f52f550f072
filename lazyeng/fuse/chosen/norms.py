"""layer_norm and rms_norm, forward and backward (layer_norm.py, rms_norm.py)."""

from __future__ import annotations

import math

import torch

from lazyeng.fuse.chosen.calls import Calls
from lazyeng.fuse.chosen.launches import (
    LOOP_BLOCK,
    Launches,
    Operand,
    block_of,
    cdiv,
    compute_type,
    fit,
    triton_type,
)

GROUP_BLOCK = 32  # rows that a program of a sum over rows reads at a time
MOST_GROUPS = 64
COLUMNS = 128


def layer_norm(calls: Calls) -> Launches | None:
    (call,), at = calls.calls, calls.tensors
    x = at[call["input"]]
    weight, bias = (_of(calls, call[name]) for name in ("weight", "bias"))
    if not fit(x, weight, bias, *(at[r] for r in call.results if r is not None)):
        return None
    n_cols = math.prod(call["normalized_shape"])
    block = block_of(n_cols, LOOP_BLOCK)
    made = Launches(calls)
    made.add(
        "layer_norm", "layer_norm_kernel", (x.numel // n_cols,),
        *(made.tensor(call[name]) for name in ("input", "weight", "bias")),
        *(made.tensor(r) for r in call.results), n_cols, made.argument(call, "eps"),
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
        COMPUTE=triton_type(compute_type(x)), BLOCK_SIZE=block, elements=block,
    )  # fmt: skip
    return made


def layer_norm_backward(calls: Calls) -> Launches | None:
    (call,) = calls.calls
    names = ("grad_out", "input", "mean", "rstd", "weight")
    dy, x, mean, rstd = (calls.tensors[call[name]] for name in names[:4])
    weight = _of(calls, call["weight"])
    results = [_of(calls, r) for r in call.results]
    if not fit(dy, x, mean, rstd, weight, *results):
        return None
    n_cols = math.prod(call["normalized_shape"])
    made = Launches(calls)
    dx, dweight, dbias = call.results
    at = {name: made.tensor(call[name]) for name in names}
    compute = compute_type(x, dy)
    if dx is not None:
        block = block_of(n_cols, LOOP_BLOCK)
        made.add(
            "layer_norm", "layer_norm_dx_kernel", (x.numel // n_cols,), at["grad_out"], at["input"],
            at["weight"], at["mean"], at["rstd"], made.tensor(dx), n_cols,
            HAS_WEIGHT=weight is not None, COMPUTE=triton_type(compute), BLOCK_SIZE=block,
            elements=block,
        )  # fmt: skip
    if dweight is not None or dbias is not None:
        read = (at["grad_out"], at["input"], at["mean"], at["rstd"])
        _sums_over_rows(made, "layer_norm", read, (x.numel // n_cols, n_cols), compute,
                        (dweight, dbias))  # fmt: skip
    return made if made.kernels else None


def rms_norm(calls: Calls) -> Launches | None:
    (call,), at = calls.calls, calls.tensors
    x, weight = at[call["input"]], _of(calls, call["weight"])
    if not fit(x, weight, *(at[r] for r in call.results if r is not None)):
        return None
    n_cols, compute = math.prod(call["normalized_shape"]), compute_type(x)
    block = block_of(n_cols, LOOP_BLOCK)
    made = Launches(calls)
    # Torch's default is the step of the type that it computes in, not of x.
    step = Operand("number", "fp64", number=torch.finfo(compute).eps)
    made.add(
        "rms_norm", "rms_norm_kernel", (x.numel // n_cols,),
        *(made.tensor(call[name]) for name in ("input", "weight")),
        *(made.tensor(r) for r in call.results), n_cols,
        step if call["eps"] is None else made.argument(call, "eps"),
        HAS_WEIGHT=weight is not None, COMPUTE=triton_type(compute), BLOCK_SIZE=block,
        elements=block,
    )  # fmt: skip
    return made


def rms_norm_backward(calls: Calls) -> Launches | None:
    (call,) = calls.calls
    dy, x, rstd = (calls.tensors[call[name]] for name in ("grad_out", "input", "rstd"))
    weight = _of(calls, call["weight"])
    if not fit(dy, x, rstd, weight, *(_of(calls, r) for r in call.results)):
        return None
    n_cols, compute = math.prod(call["normalized_shape"]), compute_type(x, dy)
    made = Launches(calls)
    dx, dweight = call.results
    at = {name: made.tensor(call[name]) for name in ("grad_out", "input", "rstd", "weight")}
    if dx is not None:
        block = block_of(n_cols, LOOP_BLOCK)
        made.add(
            "rms_norm", "rms_norm_dx_kernel", (x.numel // n_cols,), at["grad_out"], at["input"],
            at["weight"], at["rstd"], made.tensor(dx), n_cols, HAS_WEIGHT=weight is not None,
            COMPUTE=triton_type(compute), BLOCK_SIZE=block, elements=block,
        )  # fmt: skip
    if dweight is not None:
        read = (at["grad_out"], at["input"], at["rstd"])
        _sums_over_rows(made, "rms_norm", read, (x.numel // n_cols, n_cols), compute, (dweight,))
    return made if made.kernels else None


def _of(calls: Calls, place: int | None):
    return None if place is None else calls.tensors[place]


def _sums_over_rows(made: Launches, norm: str, read: tuple[Operand | None, ...],
                    shape: tuple[int, int], compute: torch.dtype,
                    results: tuple[int | None, ...]) -> None:  # fmt: skip
    """A kernel sums groups of rows, as many whatever the GPU; then the groups are added up."""
    n_rows, n_cols = shape
    blocks = cdiv(n_rows, GROUP_BLOCK)
    rows_each = cdiv(blocks, MOST_GROUPS) * GROUP_BLOCK
    groups = cdiv(n_rows, rows_each)
    block = block_of(n_cols, COLUMNS)
    partials = [made.partial(compute, groups * n_cols) for _ in results]
    made.add(norm, f"{norm}_partials_kernel", (cdiv(n_cols, block), groups), *read,
             *partials, n_rows, n_cols, rows_each, COMPUTE=triton_type(compute),
             BLOCK_ROWS=GROUP_BLOCK, BLOCK_COLS=block, elements=GROUP_BLOCK * block)  # fmt: skip
    for partial, result in zip(partials, results, strict=True):
        if result is not None:
            made.add("_columns", "column_sums_kernel", (cdiv(n_cols, block),), partial,
                     made.tensor(result), groups, n_cols, GROUPS=block_of(groups),
                     BLOCK_COLS=block, elements=MOST_GROUPS * block)  # fmt: skip
