"""What kernels refuse of large tensors for their sizes, and meta functions take, is refused at the
call, in eager's words (csrc/record/metadata/size_checks.h)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lazyeng

ROWS = 300
MASK = torch.zeros(ROWS, 100, dtype=torch.bool)
SOME = torch.arange(5)


def large(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(ROWS, 100, dtype=dtype)


def empty_indices() -> Tensor:
    return torch.zeros(0, dtype=torch.long) * 1


def gaps(*sizes: int) -> Tensor:
    """With a gap after each element."""
    return torch.ones(*sizes[:-1], 2 * sizes[-1])[..., ::2]


def convolved(stride: int = 2, padding: int = 2, dilation: int = 2, more: int = 2) -> Tensor:
    """With lists of so many numbers."""
    return torch.convolution(
        torch.ones(2, 4, 50, 51), torch.ones(6, 4, 3, 3), None, [1] * stride, [0] * padding,
        [1] * dilation, False, [0] * more, 1,
    )  # fmt: skip


def put(indices: tuple[object, ...], values: Tensor, **kwargs: bool) -> Tensor:
    result: Tensor = torch.ops.aten.index_put(large(), indices, values, **kwargs)
    return result


def assigned(index: object, values: object, x: Tensor | None = None) -> Tensor:
    x = large() if x is None else x
    x[index] = values  # type: ignore[index]
    return x


REFUSED: dict[str, Callable[[], object]] = {
    "mask, rows": lambda: assigned(MASK[:200], 1.0),
    "mask, columns": lambda: assigned(MASK[:, :99], 1.0),
    "mask of rows": lambda: assigned(MASK[:200, 0], 1.0),
    "mask of too many dims": lambda: assigned(MASK[..., None], 1.0),
    "mask of bytes": lambda: assigned(MASK[:200].byte(), torch.ones(3, 3)),
    "mask in the second place": lambda: assigned((slice(None), MASK[0, :50]), 1.0),
    "mask, values of two dims": lambda: assigned(MASK, torch.ones(3, 5)),
    "mask of rows, values": lambda: assigned(MASK[:, 0], torch.ones(3, 99)),
    "values": lambda: assigned(SOME, torch.ones(4, 100)),
    "values, columns": lambda: assigned(SOME, torch.ones(5, 99)),
    "values of a column": lambda: assigned((slice(None), SOME), torch.ones(ROWS, 4)),
    "values of too many dims": lambda: assigned(SOME, torch.ones(2, 5, 100)),
    "values, two indices": lambda: assigned((SOME, SOME), torch.ones(6)),
    "indices that do not fit each other": lambda: assigned((SOME, SOME[:4]), 1.0),
    "too many indices": lambda: assigned((SOME, SOME, SOME), 1.0),
    "index_put": lambda: put((SOME,), torch.ones(4, 100)),
    "index_put of nothing and a column": lambda: put((None, SOME), torch.ones(ROWS, 4)),
    "index_put, accumulated": lambda: put((SOME,), torch.ones(7, 100), accumulate=True),
    "index_put, indices apart": lambda: torch.ops.aten.index_put(
        torch.ones(20, 30, 40), (SOME, None, SOME), torch.ones(6, 30)
    ),
    "index_put, floats": lambda: large().index_put((SOME.float(),), torch.ones(100)),
    "index_put_": lambda: large().index_put_((SOME,), torch.ones(4, 100)),
    "_index_put_impl_": lambda: torch._index_put_impl_(large(), (SOME,), torch.ones(4, 100)),
    "_unsafe_index_put": lambda: torch.ops.aten._unsafe_index_put(
        large(), (SOME,), torch.ones(4, 100)
    ),
    "mask, values of another dtype": lambda: put((large() > 0,), torch.ones(3).double()),
    "masked_scatter_": lambda: large().masked_scatter_(MASK[:200], large()),
    "masked_scatter": lambda: large().masked_scatter(MASK[:200], large()),
    "masked_fill_": lambda: large().masked_fill_(MASK[:200], 1.0),
    "bernoulli_": lambda: large().bernoulli_(torch.ones(99)),
    "bernoulli_, a probability": lambda: large().bernoulli_(1.5),
    "bernoulli": lambda: torch.bernoulli(large(), 1.5),
    "embedding_renorm_": lambda: torch.embedding_renorm_(torch.ones(3, 100, 100), SOME, 1.0, 2.0),
    "put_": lambda: large().put_(SOME, torch.ones(4)),
    "put": lambda: large().put(SOME, torch.ones(4)),
    "select_scatter": lambda: large().select_scatter(torch.ones(99), 0, 3),
    "select_scatter, dim": lambda: large().select_scatter(torch.ones(100), 1, 3),
    "select_scatter, index": lambda: large().select_scatter(torch.ones(100), 0, ROWS),
    "slice_scatter": lambda: large().slice_scatter(torch.ones(9, 100), 0, 3, 11),
    "slice_scatter, step": lambda: large().slice_scatter(torch.ones(8, 100), 0, 0, 10, 0),
    "diagonal_scatter": lambda: large().diagonal_scatter(torch.ones(99)),
    "diagonal_scatter, dims": lambda: large().diagonal_scatter(torch.ones(100), 0, 1, 1),
    "as_strided_scatter": lambda: large().as_strided_scatter(torch.ones(9), (10,), (1,)),
    "index_select": lambda: large().index_select(0, SOME.view(5, 1)),
    "index_copy": lambda: large().index_copy(0, SOME, torch.ones(5, 99)),
    "index_copy_": lambda: large().index_copy_(0, SOME, torch.ones(4, 100)),
    "index_add": lambda: large().index_add(0, SOME, torch.ones(4, 100)),
    "index_add_": lambda: large().index_add_(1, SOME, torch.ones(ROWS, 4)),
    "index_reduce_": lambda: large().index_reduce_(0, SOME, torch.ones(4, 100), "prod"),
    "scatter_": lambda: large().scatter_(0, torch.zeros(301, 101, dtype=torch.long), large()),
    "scatter_add_": lambda: large().scatter_add_(1, torch.zeros(301, 9, dtype=torch.long), large()),
    "gather": lambda: large().gather(0, torch.zeros(3, 101, dtype=torch.long)),
    "take_along_dim": lambda: large().take_along_dim(torch.zeros(3, 99, dtype=torch.long), 0),
    "lu_factor without pivots": lambda: torch.linalg.lu_factor(torch.rand(200, 200), pivot=False),
    "ormqr": lambda: torch.ormqr(torch.rand(200, 100), torch.rand(100), torch.rand(300, 9)),
    "unfold": lambda: torch.nn.functional.unfold(torch.ones(1, 3, 100, 100), 3, padding=-1),
    "randint_like": lambda: torch.randint_like(large(), 5, 5),
    "native_dropout": lambda: torch.native_dropout(large(), 1.5, True),
    "embedding": lambda: torch.embedding(torch.ones(3, 100, 100), SOME),
    "grid_sampler": lambda: torch.grid_sampler(
        torch.ones(1, 3, 100, 100), torch.ones(2, 9, 9, 2), 0, 0, False
    ),
    "max_pool2d's backward": lambda: torch.ops.aten.max_pool2d_with_indices_backward(
        torch.ones(1, 3, 49, 50), torch.ones(1, 3, 100, 100), [2, 2], [2, 2], [0, 0], [1, 1],
        False, torch.zeros(1, 3, 50, 50, dtype=torch.long),
    ),
    "avg_pool2d's backward": lambda: torch.ops.aten.avg_pool2d_backward(
        torch.ones(1, 3, 49, 50), torch.ones(1, 3, 100, 100), [2, 2], [2, 2], [0, 0],
        False, True, None,
    ),
    "group_norm": lambda: torch.nn.functional.group_norm(
        torch.ones(30, 10, 100), 2, torch.ones(10, dtype=torch.float64)
    ),
    "cross of two dtypes": lambda: torch.linalg.cross(
        torch.ones(10_000, 3), torch.ones(10_000, 3, dtype=torch.int32)
    ),
    "kthvalue of bool": lambda: MASK.kthvalue(2),
    "sum of a dtype": lambda: large().sum(dtype=torch.uint16),
    "masked_scatter_, gaps": lambda: gaps(ROWS, 100).masked_scatter_(
        torch.zeros(301, 100, dtype=torch.bool), torch.ones(50_000)
    ),
    "masked_scatter_, gaps in the source": lambda: large().masked_scatter_(
        torch.zeros(301, 100, dtype=torch.bool), gaps(50)
    ),
    "masked_scatter_, many sizes": lambda: torch.ones(5, 6, 20, 50).masked_scatter_(
        torch.zeros(7, 6, 20, 50, dtype=torch.bool), torch.ones(8)
    ),
    "bernoulli_, gaps": lambda: gaps(ROWS, 100).bernoulli_(torch.rand(301, 100)),
    "bernoulli_, many sizes": lambda: torch.ones(5, 6, 20, 50).bernoulli_(torch.rand(5, 2, 21, 50)),
    "put_, gaps": lambda: gaps(ROWS, 100).put_(SOME, torch.ones(4)),
    "put_, another order": lambda: large().put_(torch.arange(6).view(2, 3).t(), torch.ones(4)),
    "embedding_renorm_, gaps": lambda: torch.embedding_renorm_(gaps(3, 100, 100), SOME, 1.0, 2.0),
    "copy_ of a part": lambda: (x := large())[1:].copy_(x[:-1]),
    "a part assigned": lambda: assigned(slice(1, None), (x := large())[:-1], x),
    "a part by index": lambda: assigned(SOME, (x := large())[3:8], x),
    "a part is the index": lambda: assigned((k := torch.ones(30_000, dtype=torch.long))[:5], 7, k),
    "itself by index": lambda: (x := large()).index_put_((torch.arange(ROWS),), x),
    "convolution, stride": lambda: convolved(stride=3),
    "convolution, padding": lambda: convolved(padding=3),
    "convolution, dilation": lambda: convolved(dilation=3),
    "convolution, output_padding": lambda: convolved(more=3),
    "conv_transpose3d of int32, groups": lambda: torch.nn.functional.conv_transpose3d(
        torch.ones(2, 4, 10, 20, 21, dtype=torch.int32),
        torch.ones(4, 2, 3, 3, 3, dtype=torch.int32),
        torch.ones(8, dtype=torch.int32),
        groups=4,
    ),
    "cross, expanded": lambda: torch.linalg.cross(
        torch.ones(1, 3, 101, dtype=torch.long).expand(100, 3, 101), torch.ones(100, 3, 101), dim=1
    ),
    "cross, the same kind": lambda: torch.linalg.cross(
        torch.ones(100, 3, 101, dtype=torch.long), torch.ones(100, 3, 101), dim=1
    ),
    "cross, many sizes": lambda: torch.linalg.cross(
        torch.ones(7, 8, 9, 10, 11, 3), torch.ones(7, 8, 9, 10, 11, 3, dtype=torch.int32)
    ),
    "kthvalue of bool, a large k": lambda: MASK.kthvalue(50, 1),
    "addmm of nothing, a number": lambda: torch.addmm(
        torch.ones(50, dtype=torch.int32), torch.ones(ROWS, 0, dtype=torch.int32),
        torch.ones(0, 50, dtype=torch.int32), beta=2.5,
    ),
    "randint_like of bytes": lambda: torch.randint_like(large(), 300, dtype=torch.uint8),
    "randint_like of a tensor of bytes": lambda: torch.randint_like(large(torch.uint8), 300),
    "randint_like, negative bytes": lambda: torch.randint_like(large(), -1, 9, dtype=torch.uint8),
    "cat into itself": lambda: torch.cat([x := torch.ones(0, 100), large()], out=x),
    "put_ of itself": lambda: (x := large()).put_(torch.zeros(ROWS, 100, dtype=torch.long), x),
    "put_ by itself": lambda: (k := large(torch.long)).put_(k, large(torch.long)),
    "take into itself": lambda: torch.take(
        x := large(), torch.zeros(ROWS, 100, dtype=torch.long), out=x
    ),
    "index_select into itself": lambda: torch.index_select(x := large(), 0, SOME, out=x),
    "index_fill_ by itself, empty": lambda: (k := empty_indices()).index_fill_(0, k, 3),
    "index_put_ of itself, empty": lambda: (k := empty_indices()).index_put_((k,), k),
    "scatter_ of itself, empty": lambda: (k := empty_indices()).scatter_(0, k, k),
    "gather into itself, empty": lambda: torch.gather(k := empty_indices(), 0, k, out=k),
    "rand_like, float8": lambda: torch.rand_like(large(), dtype=torch.float8_e4m3fn),
    "randn_like, float8": lambda: torch.randn_like(large(), dtype=torch.float8_e5m2),
    "norm of float8": lambda: torch.norm(large(torch.float8_e4m3fn)),
    "vector_norm of float8": lambda: torch.linalg.vector_norm(large(torch.float8_e5m2), 2, -1),
    "a number added to by its view": lambda: (x := torch.rand(1)).add_(x[0]),
    "a number replaced by its view": lambda: (x := torch.rand(1)).copy_(x[0::2]),
}  # fmt: skip
TAKEN: dict[str, Callable[[], Tensor]] = {
    "mask": lambda: assigned(large() > 2, 5.0),
    "mask of rows": lambda: assigned(large()[:, 0] > 0, torch.arange(100.0)),
    "mask of rows, a row": lambda: assigned(large()[:, 0] > 0, torch.ones(1, 100) * 3),
    "mask of columns": lambda: assigned((slice(None), large()[0] > 0), 3.0),
    "mask and index": lambda: assigned((large()[:, 0] > 0, torch.arange(ROWS) % 100), 3.0),
    "mask of bytes": lambda: assigned((large() > 0).byte(), torch.arange(ROWS * 100.0)),
    "values for a mask": lambda: assigned(large() > 0, torch.arange(ROWS * 100.0)),
    "rows": lambda: assigned(SOME, torch.arange(100.0)),
    "int32": lambda: assigned(SOME.int(), torch.ones(5, 1) * 2),
    "columns": lambda: assigned((slice(None), SOME), torch.arange(5.0).view(1, 5)),
    "two indices": lambda: assigned((SOME, SOME), torch.arange(5.0)),
    "indices of two dims": lambda: assigned((SOME.view(5, 1), SOME), torch.arange(5.0)),
    "indices apart": lambda: torch.ops.aten.index_put(
        torch.ones(20, 30, 40), (SOME, None, SOME), torch.arange(30.0).expand(5, 30)
    ),
    "indices side by side": lambda: torch.ops.aten.index_put(
        torch.ones(20, 30, 40), (None, SOME, SOME), torch.arange(20.0).view(20, 1).expand(20, 5)
    ),
    "a number": lambda: assigned((torch.tensor(3), SOME), 7.0),
    "nothing": lambda: assigned(SOME[:0], torch.ones(0, 100)),
    "masked_scatter_": lambda: large().masked_scatter_(
        large()[0] > 0, torch.arange(30_000.0)
    ),
    "bernoulli_": lambda: large().bernoulli_(torch.zeros(100)),
    "bernoulli_, a probability": lambda: large().bernoulli_(1.0),
    "put_": lambda: large().put_(SOME.view(1, 5), torch.arange(5.0)),
    "select_scatter": lambda: large().select_scatter(torch.zeros(ROWS), 1, -3),
    "slice_scatter": lambda: large().slice_scatter(torch.zeros(5, 100), 0, 3, 12, 2),
    "slice_scatter, all": lambda: large().slice_scatter(torch.zeros(ROWS, 7), 1, -7),
    "diagonal_scatter": lambda: large().diagonal_scatter(torch.zeros(99), 1),
    "as_strided_scatter": lambda: large().as_strided_scatter(torch.zeros(10), (10,), (101,)),
    "masked_scatter_, gaps": lambda: gaps(ROWS, 100).masked_scatter_(
        large()[0] > 0, torch.arange(30_000.0)
    ),
    "put_, gaps": lambda: gaps(ROWS, 100).put_(SOME.view(1, 5), torch.arange(5.0)),
    "bernoulli_, gaps": lambda: gaps(ROWS, 100).bernoulli_(torch.zeros(100)),
    "columns of itself": lambda: (x := large().cumsum(1))[:, 50:].copy_(x[:, :50]),
    "all of itself": lambda: (x := large().cumsum(1)).mul_(x),
    "all of itself copied": lambda: (x := large().cumsum(1)).copy_(x),
    "norm of float8, rows of one": lambda: torch.linalg.vector_norm(
        torch.ones(ROWS, 1).to(torch.float8_e5m2), 2, -1
    ).float(),
    "rows beside": lambda: assigned(slice(0, 9), (x := large().cumsum(0))[9:18], x),
    "randint_like of bytes": lambda: torch.randint_like(large(), 1, dtype=torch.uint8) * 255,
    "normal of two dtypes": lambda: torch.normal(large(), large(torch.float64) * 0),
    "normal, doubles first": lambda: torch.normal(large(torch.float64), large() * 0),
}  # fmt: skip


@pytest.fixture(params=["async", "deferred"])
def mode(request: pytest.FixtureRequest) -> str:
    """In a program that has had such calls: what is known of them is believed."""
    with lazyeng.lazy(request.param):
        for program in TAKEN.values():
            for _ in range(3):
                program()
        lazyeng.synchronize()
    return str(request.param)


@pytest.mark.parametrize("name", REFUSED)
def test_what_kernels_refuse_is_refused_at_the_call(name: str, mode: str):
    with pytest.raises((RuntimeError, IndexError, ValueError)) as eager:
        REFUSED[name]()
    for _ in range(2):
        with lazyeng.lazy(mode), pytest.raises(type(eager.value)) as lazy:
            REFUSED[name]()
        assert str(lazy.value) == str(eager.value)


@pytest.mark.parametrize("name", TAKEN)
def test_others_are_taken(name: str, mode: str):
    expected = TAKEN[name]()
    with lazyeng.lazy(mode):
        for _ in range(3):
            before = lazyeng.engine_stats()["fallbacks"]
            found = TAKEN[name]()
            # (torch reads an index that is a number.)
            assert name == "a number" or lazyeng.engine_stats()["fallbacks"] == before
            assert (found.dtype, found.shape, found.stride()) == (
                expected.dtype, expected.shape, expected.stride()
            )  # fmt: skip
            assert torch.equal(found, expected)


@pytest.mark.parametrize("mode", ["deferred", "async"])
@pytest.mark.parametrize("size", [6, 60])
def test_what_kernels_copy_is_no_view(mode: str, size: int):
    """Decompositions, which may have been asked, return the argument itself."""
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x: torch.channel_shuffle(x, 1),
        lambda x: torch.native_dropout(x, 0.5, False)[0],
        lambda x: torch.native_dropout(x, 0.0, True)[0],
    ]
    for call in calls:
        x = torch.rand(3, 4, size, size)[1:]
        before = x.clone()
        with lazyeng.lazy(mode):
            result = call(x)
            assert result.storage_offset() == 0
            result.mul_(3)
        assert torch.equal(x, before)
        assert torch.equal(result, before * 3)


def test_addmv_of_an_empty_matrix_returns_what_the_number_says():
    for beta in (0, 0, 1, 1, 0, 0.0, 2.5, True, False):
        with lazyeng.lazy():
            found = torch.addmv(torch.ones(1), torch.ones(ROWS, 0), torch.ones(0), beta=beta)
            assert torch.equal(found, torch.full((1,) if beta else (ROWS,), float(beta)))


@pytest.mark.parametrize("mode", ["deferred", "async"])
def test_lift_fresh_copy(mode: str):
    with lazyeng.lazy(mode):
        found = torch.ops.aten.lift_fresh_copy(x := torch.arange(3))
        x.zero_()
        assert found.tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["deferred", "async"])
@pytest.mark.parametrize("dtype", [torch.float4_e2m1fn_x2, torch.bits8], ids=str)
def test_dtypes_without_arithmetic_are_moved(dtype: torch.dtype, mode: str):
    moved: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.clone(),
        lambda x: x.flip(0),
        lambda x: torch.empty_like(x).copy_(x),
        lambda x: x.index_select(0, torch.tensor([0, 2])),
        lambda x: torch.cat([x, x]),
    ]
    compared = 0
    for call in moved:
        x = torch.arange(24, dtype=torch.uint8).view(6, 4).view(dtype)
        try:
            expected = call(x).view(torch.uint8)
        except RuntimeError:
            continue  # (torch has no kernel)
        compared += 1
        with lazyeng.lazy(mode):
            for _ in range(2):
                assert torch.equal(call(x).view(torch.uint8), expected)
    assert compared >= 2
