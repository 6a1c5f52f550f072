"""What eager refuses at the call is refused at the call, in `deferred` too: also by the first call
of its kind, of large tensors and after empty ones; and what depends on settings follows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lazyeng

N = 1_250  # 20,000 elements and more are more than a kernel is tried with
# (Whether a kernel refuses is known by dtypes and ranks: no other test has tensors of such ranks.)
RANKS = {5: (2, 2, 2, 2), 6: (2, 2, 2, 2, 2)}

REFUSED: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], object]]] = {
    "or": (torch.float32, lambda x: x | 1),
    "and in place": (torch.float32, lambda x: x.bitwise_and_(x)),
    "shift": (torch.float64, lambda x: x << 1),
    "minus": (torch.bool, lambda x: -x),
    "difference": (torch.bool, lambda x: x - x),
    "sigmoid in place": (torch.int64, lambda x: x.sigmoid_()),
    "gcd": (torch.float32, lambda x: torch.gcd(x, x)),
    "lerp": (torch.int32, lambda x: torch.lerp(x, x, 0.5)),
    "polygamma": (torch.complex64, lambda x: torch.polygamma(1, x)),
    "hardsigmoid": (torch.complex64, torch.nn.functional.hardsigmoid),
    "nextafter": (torch.int16, lambda x: torch.nextafter(x, x)),
    "igamma": (torch.int64, lambda x: torch.igamma(x, x)),
}


def error_of(call: Callable[[], object]) -> tuple[type, str] | None:
    try:
        call()
    except (RuntimeError, TypeError) as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", REFUSED)
def test_at_the_call(name, rank):
    dtype, function = REFUSED[name]
    lengths = (N,) if rank == 5 else (0, 3, N)
    for length in lengths:
        x = torch.ones(*RANKS[rank], length, dtype=dtype)
        expected = error_of(lambda x=x: function(x))
        assert expected is not None or length == 0
        for _ in range(2):
            y = lazyeng.wrap(x.clone())
            with lazyeng.lazy("deferred"):
                assert error_of(lambda y=y: function(y)) == expected, length
            assert torch.equal(lazyeng.unwrap(y), x)


def test_the_default_dtype_is_that_of_the_call():
    def results(length: int) -> list[torch.Tensor]:
        x = lazyeng.wrap(torch.arange(16 * length).view(2, 2, 2, 2, length))
        return [x**0.5, x / 2, x.exp(), x * 1.5, x.sigmoid(), torch.atan2(x, x)]

    dtypes = (torch.float32, torch.float64, torch.float32)
    try:
        for length, dtype in enumerate(dtypes, 5):
            torch.set_default_dtype(dtype)
            with lazyeng.lazy("deferred"):
                got = results(length)
                assert {x.dtype for x in got} == {dtype}
                assert {x.dtype for x in lazyeng.unwrap(got)} == {dtype}
    finally:
        torch.set_default_dtype(torch.float32)
