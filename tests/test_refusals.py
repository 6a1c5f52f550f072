"""What eager refuses at the call is refused at the call, in `deferred` too: also by the first call
of its kind, of large tensors and after empty ones; and what depends on settings follows them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from tests.support.outcomes import Raised, outcome
from tests.support.processes import printed_by

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


def error_of(call: Callable[[], object]) -> Raised | None:
    made = outcome(call)
    return made if isinstance(made, Raised) else None


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


@pytest.mark.parametrize("mode", ["async", "deferred"])
def test_mixed_dtypes(mode):
    """Integers, too, are refused beside floats, but for an index; though the first call of a kind
    is of large tensors, with which no kernel is tried, and after which small ones are like it."""
    code = f"""if True:
        import torch, lazyeng
        import torch.nn.functional as F
        from tests.support.outcomes import Raised, outcome

        calls = [
            torch.mm, torch.bmm, torch.mv, torch.cdist, torch.outer, torch.gather,
            F.linear, F.binary_cross_entropy, F.mse_loss, F.cross_entropy, F.conv1d, F.layer_norm,
            lambda a, b: a @ b, lambda a, b: torch.einsum("ij,jk", a, b),
            lambda a, b: torch.addmm(b, a, a), lambda a, b: torch.addmm(a, a, b),
            lambda a, b: a.clone().index_add_(0, torch.arange(len(a)), b),
            lambda a, b: a.index_select(0, b.flatten()[:2]), lambda a, b: a.scatter(0, b, 1.0),
            lambda a, b: F.embedding(b, a), lambda a, b: F.layer_norm(a, a.shape[-1:], b[..., 0]),
            lambda a, b: F.batch_norm(a, b[0], b[0].abs()), lambda a, b: F.prelu(a, b[0, 0]),
            lambda a, b: torch.lerp(a, b, 0.5), lambda a, b: torch.cat([a, b]),
        ]
        dtypes = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8]
        refused = 0
        for call in calls:
            for one in dtypes:
                for other in dtypes:
                    for n in (160, 3):
                        for rank in (2, 3):
                            a, b = (torch.zeros([n] * 2 if rank == 2 else [2, n, n], dtype=d)
                                    for d in (one, other))
                            expected = outcome(lambda: call(a, b))
                            with lazyeng.lazy("{mode}"):
                                got = outcome(lambda: call(a, b))
                            if isinstance(expected, Raised):
                                assert got == expected, (one, other, n, got, expected)
                                refused += 1
                            else:
                                assert torch.equal(lazyeng.unwrap(got), expected)
        print(refused)
    """
    assert int(printed_by(code)) > 500


LARGE = torch.rand(400_000).view(1000, 400)  # (no trial on so many elements)
MIXED: dict[str, Callable[[], torch.Tensor]] = {
    "layer_norm": lambda: F.layer_norm(LARGE, (400,), LARGE[0].double()),
    "searchsorted": lambda: torch.searchsorted(LARGE, LARGE, sorter=LARGE),
    "bmm": lambda: torch.bmm(LARGE.view(10, 100, 400), LARGE.view(10, 400, 100).char()),
    "bmm after an empty one": lambda: torch.bmm(torch.ones(9, 5, 9), torch.ones(9, 9, 5).int()),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(LARGE, LARGE, weight=LARGE.double()),
    "huber_loss": lambda: F.huber_loss(LARGE, LARGE.double()),
}


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("name", MIXED)
def test_large_tensors_of_mixed_dtypes(name, mode):
    """Refused at the call, or of the dtype that the call says."""
    with lazyeng.lazy(mode):
        torch.bmm(torch.ones(0, 3, 2), torch.ones(0, 2, 3).int())
    try:
        expected = MIXED[name]()
    except RuntimeError as error:
        with lazyeng.lazy(mode), pytest.raises(type(error), match=re.escape(str(error))):
            MIXED[name]()
        return
    with lazyeng.lazy(mode):
        found = MIXED[name]()
        assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


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


# What a dtype can hold, and what it cannot, after a call that it can.
NUMBERS: dict[str, Callable[[torch.Tensor, float], object]] = {
    "fill_": lambda x, number: x.fill_(number),
    "full_like": lambda x, number: torch.full_like(torch.ones(3), number, dtype=x.dtype),
    "masked_fill": lambda x, number: x.masked_fill(x == 2, number),
    "masked_fill_": lambda x, number: x.masked_fill_(x == 2, number),
    "clamp": lambda x, number: x.clamp(number, number),
    "clamp_min": lambda x, number: x.clamp_min(number),
    "alpha": lambda x, number: x.sub(x, alpha=number),
    "addmv": lambda x, number: x[:10].addmv(x[:100].view(10, 10), x[:10], alpha=number),
    "hardtanh": lambda x, number: torch.nn.functional.hardtanh(x, -abs(number), abs(number)),
    "pad": lambda x, number: torch.nn.functional.pad(x, (1, 1), value=number),
    "each": lambda x, number: torch._foreach_clamp_min([x, x], number),
    "draw": lambda x, number: x.uniform_(0, number) if x.is_floating_point() else x.random_(number),
    "spread": lambda x, number: x.normal_(0, 1 if number == 3 else -1),
}


@pytest.mark.parametrize("mode", ["async", "deferred", "sync"])
@pytest.mark.parametrize("length", [100, 30_000])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [(torch.float16, 1e9), (torch.bfloat16, 1e39), (torch.float32, 1e39), (torch.int8, 300)],
    ids=["float16", "bfloat16", "float32", "int8"],
)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_do_not_fit(name, dtype, number, length, mode):
    function = NUMBERS[name]
    x = torch.ones(length, dtype=dtype)
    for value in (3, number, 3, number):
        expected = error_of(lambda value=value: function(x.clone(), value))
        y = lazyeng.wrap(x.clone())
        with lazyeng.lazy(mode):
            assert error_of(lambda y=y, value=value: function(y, value)) == expected
        lazyeng.synchronize()


@pytest.mark.parametrize("mode", ["async", "deferred", "sync"])
@pytest.mark.parametrize("side", [8, 32])  # (a kernel is not tried with as many elements as 32)
@pytest.mark.parametrize("dims", [2, 3])
def test_too_few_samples(dims, side, mode):
    """Of fractional pooling: its meta function, torch's own in C++, does not count them."""
    pool = getattr(torch.nn.functional, f"fractional_max_pool{dims}d")
    samples = torch.rand(2, 16, dims)

    def pooled(batch: int) -> torch.Tensor:
        x = torch.arange(float(batch * 16 * side**dims)).view(batch, 16, *[side] * dims)
        return pool(x, 2, 3, _random_samples=samples)

    for batch in (1, 2, 3, 2, 3):
        expected = outcome(lambda batch=batch: pooled(batch))
        assert isinstance(expected, Raised) == (batch == 3)
        with lazyeng.lazy(mode):
            got = outcome(lambda batch=batch: pooled(batch))
        assert got == expected if batch == 3 else torch.equal(lazyeng.unwrap(got), expected)


BY_VALUE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_select": lambda x, i: x.index_select(0, i),
    "take": lambda x, i: x.take(i),
    "gather": lambda x, i: x.gather(0, i),
    "index": lambda x, i: x[i],
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x.view(-1, 1)),
}


@pytest.mark.parametrize("name", BY_VALUE)
@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("n", [50, 20_011])
def test_an_index_out_of_range_is_no_refusal(name, mode, n):
    """Also if nothing but a run of the first call, of large tensors, tells what it returns."""
    function = BY_VALUE[name]
    x, i = torch.rand(n), torch.full((n,), n + 1)
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(x, i)
    with lazyeng.lazy(mode):
        failed = function(x, i)
        shape = function(x, i.clamp(max=n - 1)).shape
    assert failed.shape == shape
    with pytest.raises(expected.type) as caught:
        failed.tolist()
    assert isinstance(caught.value, lazyeng.LazyError) and str(caught.value) == str(expected.value)


BAD_VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multinomial": lambda x: torch.multinomial(x - 5, 3),
    "bernoulli": lambda x: torch.bernoulli(x + 3),
    "normal": lambda x: torch.normal(x, x - 5),
    "poisson": lambda x: torch.poisson(x - 5),
    "binary_cross_entropy": lambda x: torch.nn.functional.binary_cross_entropy(x + 3, x),
    "histc": lambda x: torch.histc(x * float("nan")),
}


@pytest.mark.parametrize("name", BAD_VALUES)
@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("n", [50, 20_011, 70_001])
def test_bad_values_are_no_refusal(name, mode, n):
    """Nor if no call of that kind has succeeded yet: each of these sizes is a first one."""
    function, x = BAD_VALUES[name], torch.rand(n)
    with pytest.raises(RuntimeError) as expected:
        function(x)
    for _ in range(2):
        with lazyeng.lazy(mode):
            failed = function(x)
        with pytest.raises(RuntimeError) as caught:
            failed.tolist()
        assert isinstance(caught.value, lazyeng.LazyError)
        assert str(caught.value) == str(expected.value)


OF_FAILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add out": lambda x: torch.add(x, 1, out=lazyeng.wrap(torch.zeros_like(x))),
    "div out": lambda x: torch.div(x, 3, out=lazyeng.wrap(torch.zeros_like(x))),
    "cumsum out": lambda x: torch.cumsum(x, 0, out=lazyeng.wrap(torch.zeros_like(x))),
    "sort": lambda x: x.sort().values,
    "clone": lambda x: x.view(-1, 1).expand(-1, 2).t().clone(),
    "take": lambda x: x.take(torch.zeros_like(x).long()),
    "multinomial": lambda x: torch.multinomial(x, 3),
}


@pytest.mark.parametrize("name", OF_FAILED)
@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("n", [53, 20_113])
def test_a_first_call_with_what_has_failed(name, mode, n):
    """It cannot run, and so not tell what it would have returned."""
    with lazyeng.lazy(mode):
        bad = torch.ones(n)[torch.full((n,), n + 1)]
        of_bad = OF_FAILED[name](bad)
    with pytest.raises(IndexError, match="out of bounds") as caught:
        of_bad.tolist()
    assert isinstance(caught.value, lazyeng.LazyError)


def test_out_of_a_call_with_what_has_failed(lazy_mode):
    out = lazyeng.wrap(torch.zeros(59))
    version = out._version
    with lazyeng.lazy(lazy_mode):
        bad = torch.ones(59)[torch.full((59,), 60)]
        torch.sub(bad, 1, out=out)
    with pytest.raises(IndexError):
        out.tolist()
    assert out._version == version + 1
    out.copy_(torch.ones(59))
    assert out.tolist() == [1.0] * 59


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("n", [50, 20_011])
def test_a_dim_that_is_not_there_is_refused_at_the_call(mode, n):
    x, i = torch.rand(n), torch.zeros(n, dtype=torch.long)
    for function in (
        lambda: x.index_select(7, i), lambda: x.gather(7, i), lambda: i.softmax(7),
        lambda: i.cumsum(7), lambda: torch.stack([i, i], 7), lambda: i.argmax(7),
        lambda: torch.take_along_dim(x, i, 7), lambda: i.unique(dim=7),
        lambda: torch.cat([i, i], 7), lambda: i.flip(7), lambda: i.median(7),
        lambda: x.sort(7), lambda: x.sort(-2), lambda: torch.sort(i, dim=1, stable=True),
    ):  # fmt: skip
        with lazyeng.lazy(mode), pytest.raises(IndexError) as caught:
            function()
        assert not isinstance(caught.value, lazyeng.LazyError)
