"""Running programs lazily, with and without fusion, and comparing what comes of it."""

from collections.abc import Iterable

import torch

import lazyeng
from lazyeng import _C, lazy, wrap
from tests.programs.fusion_programs import DEEPEST, FLOATS, Dag, Made

MODES = ("async", "deferred")


def evaluate(mode, depth, seed, *kind):
    """The program's results, all of them as plain tensors."""
    with lazy(mode):
        return lazyeng.unwrap(Dag(seed, wrap, *kind).run(depth))


def fused(function, *args):
    with lazy("deferred"):
        return lazyeng.unwrap(function(*map(wrap, args)))


def without_fusion(function, *args):
    _C.set_fusion(False)
    try:
        return function(*args)
    finally:
        _C.set_fusion(True)


def same_bits(a, b):
    """Also the signs of zeros; any NaN is as good as any other."""
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if a.is_floating_point():
        signs_a, signs_b = (torch.signbit(x) & ~x.isnan() for x in (a, b))
        assert torch.equal(signs_a, signs_b)


def close(got: torch.Tensor, made: Made) -> None:
    """A float64 made of float32 has the tolerance of float32."""
    assert got.dtype == made.value.dtype
    dtype = made.coarsest if got.is_floating_point() else None
    torch.testing.assert_close(got.to(dtype), made.value.to(dtype), equal_nan=True)


def compare_random_programs(
    seeds: Iterable[int],
    exact: bool,
    floats: tuple[torch.dtype, ...] = FLOATS,
    rows: bool = False,
    folds: bool = False,
    bits: bool = True,
    more: bool = False,
) -> None:
    """Fused, unfused and eager runs, up to 30 steps deep, half of them in each mode. Unfused ones
    have eager's bits, fused ones too or are within the tolerance."""
    kind = exact, floats, rows, folds, more
    deepest = dict.fromkeys(MODES, 0)
    for i, seed in enumerate(seeds):
        mode, depth = MODES[i % 2], DEEPEST - i // 2 * 7 % DEEPEST
        eager = Dag(seed, lambda x: x, *kind)
        eager.run(depth)
        deepest[mode] = max(deepest[mode], eager.depth)
        unfused = without_fusion(evaluate, mode, depth, seed, *kind)
        with_fusion = evaluate(mode, depth, seed, *kind)
        for made, a, b in zip(eager.pool, unfused, with_fusion, strict=True):
            try:
                same_bits(a, made.value)
                same_bits(b, made.value) if bits else close(b, made)
            except AssertionError as error:
                where = f"seed {seed}, {mode}, depth {made.depth} of {depth}"
                raise AssertionError(f"{where}: {error}") from None
    assert deepest == dict.fromkeys(MODES, DEEPEST)
