"""Views at ever new places: x[i], x[i:j]. Rows of a buffer, slices of a data set."""

import itertools
import random
from functools import partial

import pytest
import torch

import lazyeng
from tests.support.outcomes import metadata, outcome

HUGE = [2**61, -(2**61)]


def seen(function, x):
    return outcome(lambda: metadata(function(x)))


def bases():
    x = torch.arange(360.0)
    return [
        x.view(6, 5, 12),
        x.view(6, 5, 12).transpose(0, 2)[3:, 1:],
        x[:6].view(6, 1).expand(6, 4),
        x[7:7],
        x.view(360)[5],
        x.as_strided((3, 4, 2), (1, 7, 0), 11),
        x.view(0, 3) if x.numel() == 0 else torch.empty(0, 3),
        torch.complex(x, x).conj(),
    ]


def programs(rng):
    """Random arguments of select and slice, some of them out of range."""

    def number():
        return rng.choice([None, rng.randrange(-8, 9), rng.randrange(-8, 9), rng.choice(HUGE)])

    for _ in range(400):
        dim, index = rng.randrange(-4, 4), rng.randrange(-13, 13)
        start, end, step = number(), number(), rng.choice([1, 1, 2, 3, 7, 0, -1, 2**62])
        yield f"select({dim}, {index})", lambda x, d=dim, i=index: x.select(d, i)
        yield (
            f"slice({dim}, {start}, {end}, {step})",
            lambda x, a=(dim, start, end, step): torch.ops.aten.slice.Tensor(x, *a),
        )
        yield f"[{start}:{end}:{step}]", lambda x, s=slice(start, end, step): x[s]
        yield f"[..., {index}]", lambda x, i=index: x[..., i]


@pytest.mark.parametrize("grad", [False, True])
def test_select_and_slice(lazy_mode, grad):
    for base in bases():
        x = base.detach().requires_grad_(grad)
        y = lazyeng.wrap(base.detach()).requires_grad_(grad)
        for name, program in programs(random.Random(5)):
            expected = seen(program, x)
            with lazyeng.lazy(lazy_mode):
                got = seen(program, y)
            assert got == expected, (name, metadata(base))


def test_writes_that_overlap(lazy_mode):
    """Apart, touching, overlapping in part or altogether: eager's results and eager's errors."""

    def program(x, write, i, j):
        try:
            write(x[i : i + 4], x[j : j + 4])
        except RuntimeError as error:
            return str(error)
        return x.clone()

    writes = [
        lambda a, b: a.add_(b),
        lambda a, b: a.copy_(b),
        lambda a, b: torch.mul(b, 2, out=a),
        lambda a, b: a.view(2, 2).add_(b.view(2, 2).t()),
    ]
    for write, i, j in itertools.product(writes, range(9), range(9)):
        expected = program(torch.arange(16.0), write, i, j)
        with lazyeng.lazy(lazy_mode):
            got = program(torch.arange(16.0), write, i, j)
        assert isinstance(got, str) == isinstance(expected, str), (i, j, got)
        if isinstance(expected, str):
            assert got == expected
        else:
            assert torch.equal(lazyeng.unwrap(got), expected), (i, j)


LAYOUTS = {
    "dense": lambda x: x.view(4, 4),
    "with gaps": lambda x: x.view(4, 4)[:, ::2],
    "rows apart": lambda x: x.view(2, 8)[:, :5],
    "expanded": lambda x: x[:4].expand(3, 4),
    "transposed": lambda x: x.view(4, 4).t(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # (index_put_ of an expanded tensor)
@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_elements_through_another_object(mode, layout):
    """Whether kernels refuse them depends on gaps, and on whether it is one object."""
    rows = torch.tensor([0, 1])

    def index_put(x, y):
        x[rows] = y[:2]

    def program(write, other):
        x = LAYOUTS[layout](torch.arange(16.0))
        try:
            write(x, other(x))
            return lazyeng.unwrap(x.clone())
        except RuntimeError as error:
            return str(error)

    writes = [
        lambda x, y: x.index_put_((rows,), y[: 2 * len(y)]),
        lambda x, y: x.index_put_((torch.arange(len(x)),), y),
        index_put,
        lambda x, y: x.add_(y),
        lambda x, y: x.masked_fill_(x > 3, 0).copy_(y),
        lambda x, y: x.scatter_(0, torch.zeros(1, 1, dtype=torch.int64), y),
        lambda x, y: x.index_add_(0, torch.arange(len(x)), y),
        lambda x, y: x.index_copy_(0, torch.arange(len(x)), y),
        lambda x, y: torch.mul(y, 2, out=x),
    ]
    others = [lambda x: x, lambda x: x.detach(), lambda x: x.view(x.shape), lambda x: x[:]]
    for (w, write), (o, other) in itertools.product(enumerate(writes), enumerate(others)):
        for _ in range(2):
            expected = program(write, other)
            with lazyeng.lazy(mode):
                got = program(write, other)
            assert isinstance(got, str) == isinstance(expected, str), (w, o, got, expected)
            if isinstance(expected, str):
                assert got == expected
            else:
                assert torch.equal(got, expected), (w, o)


OTHER_ELEMENTS = [
    lambda x, start: x[start : start + 8].view(torch.int16),
    lambda x, start: x[start : start + 8].view(torch.float64),
    lambda x, start: torch.view_as_complex(x[start : start + 8].view(4, 2)),
    lambda x, start: torch.view_as_real(x.view(torch.complex64)[start:]),
    lambda x, start: x[start:].as_strided((2,), (1,)),
    lambda x, start: x[start:].as_strided((2,), (1,), 5),
    lambda x, start: x[start:].view(2, -1).diagonal(),
]


@pytest.mark.parametrize("program", OTHER_ELEMENTS)
def test_other_elements_over_the_same_storage(program):
    """An offset counts in elements: of another size for view(dtype), view_as_real and -complex."""
    x = torch.arange(32.0)
    y = lazyeng.wrap(x)
    for start in (4, 0, 2, 3, 1):
        expected = seen(partial(program, start=start), x)
        assert seen(partial(program, start=start), y) == expected, start


def test_new_places_are_known(lazy_mode):
    """Once a program has run, other places than those that it used are nothing new."""

    def program(x, i):
        x[i] = x[i + 1] + 1
        x[i : i + 4].mul_(2).add_(x[i + 4 : i + 8])
        torch.add(x[i], x[i + 2], out=x[i + 1])
        x.narrow(0, i, 3).t()[2] += x.view(-1)[i : i + 3]

    expected = torch.ones(60, 16)
    x = expected.clone()
    with lazyeng.lazy(lazy_mode):
        program(x, 0)
        program(x, 1)
        before = lazyeng.engine_stats()["plans"]
        for i in range(2, 50):
            program(x, i)
        assert lazyeng.engine_stats()["plans"] == before
    for i in range(50):
        program(expected, i)
    assert torch.equal(x, expected)


def test_scatters_lie_where_their_argument_does():
    memory = torch.arange(40.0)
    x, src = memory[3:27].view(4, 6), torch.zeros(4, 6)
    for scatter in (
        lambda x, src: torch.select_scatter(x, src[0], 0, 1),
        lambda x, src: torch.slice_scatter(x, src[:2], 0, 1, 3),
        lambda x, src: torch.diagonal_scatter(x, src[0, :4]),
    ):
        expected = scatter(x, src)
        for _ in range(2):
            with lazyeng.lazy():
                result = scatter(x, src)
                assert result.storage_offset() == expected.storage_offset() == 3
            got = lazyeng.unwrap(result)
            assert torch.equal(got, expected) and got.stride() == expected.stride()
            assert got.storage_offset() == 3
            assert got.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


@pytest.mark.parametrize("rank", range(1, 6))
def test_tangents_lie_where_their_tensors_do(rank, lazy_mode):
    """Forward-mode derivatives of views: what takes the place of a tangent is like the whole
    storage, at the first call, too."""

    def program(x):
        views = [x[i:j] for i, j in ((1, 3), (2, 4), (0, 2), (1, 5))]
        for view in views:
            grad = torch.ones_like(view)
            made = torch.ops.aten._new_zeros_with_same_feature_meta(grad, view)
            yield metadata(made), made.untyped_storage().nbytes()

    base = torch.rand([6] + [2] * (rank - 1))
    expected = list(program(base))
    with lazyeng.lazy(lazy_mode):
        assert list(program(lazyeng.wrap(base.clone()))) == expected
