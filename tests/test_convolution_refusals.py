"""What kernels of convolutions refuse of large tensors is refused at the call, in eager's words
(csrc/record/metadata/convolution_arguments.h)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, ones

import lazyeng

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES = {1: (100,), 2: (10, 10), 3: (6, 6, 6)}


def convolution(dims: int, weight: tuple[int, ...] = (8, 4), bias: Tensor | None = None,
                more: tuple[int, ...] = (), images: int = 300,
                **kwargs: int) -> Tensor:  # fmt: skip
    x = ones(images, 4, *SIZES[dims], *more)
    result: Tensor = CONVOLVE[dims](x, ones(*weight, *(3,) * dims), bias, **kwargs)
    return result


def transposed(dims: int, weight: tuple[int, ...] = (4, 8), bias: Tensor | None = None,
               images: int = 300, **kwargs: int) -> Tensor:  # fmt: skip
    x = ones(images, 4, *SIZES[dims])
    result: Tensor = TRANSPOSED[dims](x, ones(*weight, *(3,) * dims), bias, **kwargs)
    return result


REFUSED: dict[str, Callable[[int], Tensor]] = {
    "bias": lambda d: convolution(d, bias=ones(7)),
    "bias of two dims": lambda d: convolution(d, bias=ones(8, 1)),
    "channels": lambda d: convolution(d, (8, 5)),
    "padding": lambda d: convolution(d, padding=-1),
    "dilation": lambda d: convolution(d, dilation=0),
    "stride": lambda d: convolution(d, stride=0),
    "groups": lambda d: convolution(d, groups=3),
    "rows in groups": lambda d: convolution(d, (7, 2), groups=2),
    "rank": lambda d: convolution(d, more=(2,)),
    "transposed, bias": lambda d: transposed(d, bias=ones(7)),
    "transposed, channels": lambda d: transposed(d, (5, 8)),
    "transposed, padding": lambda d: transposed(d, padding=-1),
    "transposed, dilation": lambda d: transposed(d, dilation=0),
    "transposed, stride": lambda d: transposed(d, stride=0),
    "transposed, groups": lambda d: transposed(d, groups=3),
    "transposed, output padding": lambda d: transposed(d, output_padding=1),
    "transposed, output padding below 0": lambda d: transposed(d, stride=2, output_padding=-1),
}
TAKEN: dict[str, Callable[[int], Tensor]] = {
    "padding": lambda d: convolution(d, bias=ones(8), padding=2, stride=2),
    "groups": lambda d: convolution(d, (8, 2), bias=ones(8), groups=2),
    "transposed": lambda d: transposed(d, bias=ones(8), stride=2, output_padding=1),
    "transposed, groups": lambda d: transposed(d, (4, 3), bias=ones(6), groups=2),
}


@pytest.fixture(params=["async", "deferred"])
def mode(request: pytest.FixtureRequest) -> str:
    """In a program that has had convolutions of each kind: what is known of them is believed."""
    with lazyeng.lazy(request.param):
        for images in range(200, 207):
            for dims in (1, 2, 3):
                convolution(dims, bias=ones(8), images=images)
                transposed(dims, bias=ones(8), images=images)
            lazyeng.synchronize()
    return str(request.param)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_what_kernels_refuse_is_refused_at_the_call(dims: int, mode: str):
    for program in REFUSED.values():
        with pytest.raises(RuntimeError) as eager:
            program(dims)
        with lazyeng.lazy(mode), pytest.raises(RuntimeError) as lazy:
            program(dims)
        assert str(lazy.value) == str(eager.value)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_others_are_recorded(dims: int, mode: str):
    for program in TAKEN.values():
        expected = program(dims)
        with lazyeng.lazy(mode):
            if mode == "deferred":
                before = lazyeng.engine_stats()["fallbacks"]
                program(dims)
                assert lazyeng.engine_stats()["fallbacks"] == before
            found = program(dims)
            assert (found.shape, found.stride()) == (expected.shape, expected.stride())
        assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(3, 3), (2, 100, 100)])
def test_an_svd_by_a_driver_of_gpus(shape: tuple[int, ...], mode: str):
    with lazyeng.lazy(mode), pytest.raises(RuntimeError, match="only supported on CUDA inputs"):
        torch.linalg.svd(torch.rand(shape), driver="gesvd")
