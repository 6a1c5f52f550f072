"""Sums over the groups that a kernel has left, one for each column: the second stage of a sum over
rows, in a fixed order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import _launch

BLOCK_COLS = 128


@triton.jit
def column_sums_kernel(partials_ptr, y_ptr, n_groups, n_cols, GROUPS: tl.constexpr,
                       BLOCK_COLS: tl.constexpr):  # fmt: skip
    """[n_groups, n_cols] -> [n_cols]; GROUPS, at least n_groups, are added up as a tree."""
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    groups = tl.arange(0, GROUPS)
    mask = (groups < n_groups)[:, None] & (cols < n_cols)[None, :]
    partials = tl.load(
        partials_ptr + groups[:, None] * n_cols + cols[None, :], mask=mask, other=0.0
    )
    tl.store(y_ptr + cols, tl.sum(partials, axis=0), mask=cols < n_cols)


def column_sums(partials: torch.Tensor) -> torch.Tensor:
    """[groups, n] -> [n], of the same dtype; no groups: zeros."""
    groups, n_cols = partials.shape
    if not partials.numel():
        return partials.new_zeros(n_cols)
    y = partials.new_empty(n_cols)
    block = _launch.block_of(n_cols, BLOCK_COLS)
    _launch.launch(
        column_sums_kernel, (triton.cdiv(n_cols, block),), partials, y, groups, n_cols,
        GROUPS=_launch.block_of(groups), BLOCK_COLS=block,
        elements=_launch.block_of(groups) * block,
    )  # fmt: skip
    return y
