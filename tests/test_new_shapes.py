"""Shapes that are never twice the same: after a few runs an op's meta function is believed, also
about transposed and sliced arguments, and nothing waits for it any more
(record/metadata/meta_trust.h)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lazyeng

LENGTHS = range(16, 48)
Program = Callable[[int], Tensor]


def embedding_of_a_slice() -> Program:
    weight, words = torch.randn(5000, 16), torch.randint(5000, (4, 64))
    return lambda n: F.embedding(words[:, :n], weight)


def attention() -> Program:
    """Of heads that are views into one tensor, as models make them; too large to be tried."""
    data = torch.randn(16, 64, 3, 4, 32)
    return lambda n: F.scaled_dot_product_attention(*data[:, :n].permute(2, 0, 3, 1, 4).unbind(0))


def stack_of_transposed() -> Program:
    data = torch.randn(64, 48, 32)
    return lambda n: torch.stack([data[:, :n].mT, data[:, :n].mT], 1)


def layer_norm_of_transposed() -> Program:
    data = torch.randn(64, 48, 128)
    return lambda n: F.layer_norm(data[:, :n].transpose(0, 1), (128,))


@pytest.mark.parametrize(
    "make", [embedding_of_a_slice, attention, stack_of_transposed, layer_norm_of_transposed]
)
def test_nothing_waits_for_a_known_kind(make: Callable[[], Program]):
    program = make()
    with lazyeng.lazy("async"):
        lazy = []
        for n in LENGTHS:
            before = lazyeng.engine_stats()["fallbacks"]
            lazy.append(program(n))
            ran_at_the_call = lazyeng.engine_stats()["fallbacks"] > before
        assert not ran_at_the_call, "the last of them"
    for n, result in zip(LENGTHS, lazy, strict=True):
        eager = program(n)
        assert torch.equal(result, eager)
        assert result.stride() == eager.stride()


@pytest.mark.parametrize("orders", [((0, 1, 2, 3), (1, 0, 2, 3)), ((0, 2, 1, 3), (3, 2, 1, 0))])
def test_another_order_of_strides_is_another_kind(orders: tuple[tuple[int, ...], ...]):
    """What was found about one says nothing about the other."""
    data, lengths = torch.randn(64, 48, 32, 16), range(30, 46)

    def program(n: int, order: tuple[int, ...]) -> Tensor:
        return torch.stack([data[:, :n].permute(order)] * 2)

    for order in orders:
        with lazyeng.lazy("async"):
            lazy = [program(n, order) for n in lengths]
        for n, result in zip(lengths, lazy, strict=True):
            assert result.stride() == program(n, order).stride()
            assert torch.equal(result, program(n, order))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128])
def test_another_number_is_no_other_kind(dtype: torch.dtype):
    def steps(x: torch.Tensor, first: int) -> torch.Tensor:
        for k in range(first, first + 5):
            x.sub_(x, alpha=0.01 * k).addcmul_(x, x, value=0.1 * k)
            if dtype.is_complex:
                x = x * (1 + 0.1j * k)
        return x

    x = torch.linspace(0, 1, 20, dtype=dtype)
    expected = steps(steps(x.clone(), 1), 6)
    with lazyeng.lazy("deferred"):
        result = steps(x.clone(), 1)
        before = lazyeng.engine_stats()
        result = steps(result, 6)
        after = lazyeng.engine_stats()
    assert (after["plans"], after["fallbacks"]) == (before["plans"], before["fallbacks"])
    assert torch.equal(lazyeng.unwrap(result), expected)


def test_of_many_rows_one_that_is_written_is_found(lazy_mode: str):
    """That arguments of a list overlap with the result is told for each layout anew."""
    memory = torch.zeros(64, 8)

    def outcome(first: int, count: int) -> object:
        rows = [memory[i] for i in range(first, first + count)]
        try:
            return torch.cat(rows, out=memory.view(-1)[320 : 320 + 8 * count]).clone()
        except RuntimeError as error:
            return str(error)

    def outcomes() -> list[object]:
        memory.copy_(torch.arange(512.0).view(64, 8))
        return [
            outcome(*case) for case in [(0, 20), (12, 20), (25, 20), (3, 20), (21, 20), (20, 20)]
        ]

    expected = outcomes()
    assert [isinstance(outcome, str) for outcome in expected] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    with lazyeng.lazy(lazy_mode):  # type: ignore[arg-type]
        found = outcomes()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
