"""A program run lazily has to find what it finds in eager, bit for bit."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.models.training import Program, eager, lazily


@functools.cache
def expected(program: Program) -> list[Any]:
    return tree_leaves(eager(program))


def check(program: Program, way: str) -> None:
    """Each op runs the kernel that eager runs, with as many threads: no tolerance."""
    found = tree_leaves(lazily(program, way))
    assert len(found) == len(expected(program))
    for i, (a, b) in enumerate(zip(found, expected(program), strict=True)):
        torch.testing.assert_close(
            a, b.detach() if isinstance(b, torch.Tensor) else b,
            rtol=0, atol=0, equal_nan=True, check_stride=True,
            msg=lambda text, i=i: f"result {i} of {way}: {text}",
        )  # fmt: skip
