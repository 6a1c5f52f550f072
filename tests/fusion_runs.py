"""Running programs lazily, with and without fusion, and comparing what comes of it."""

import torch

import lazyeng
from lazyeng import _C, lazy, wrap

from .fusion_programs import FLOATS, Dag


def evaluate(seed, steps, exact, floats=FLOATS, rows=False):
    """The program's results, all of them as plain tensors."""
    with lazy("deferred"):
        return lazyeng.unwrap(Dag(seed, exact, wrap, floats, rows).run(steps))


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
