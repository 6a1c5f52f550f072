"""Results have eager's strides in every memory format, from the first call on."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazyeng
from lazyeng import lazy
from tests.support.threads import threads_of_torch

FORMATS = {
    None: 4,
    torch.preserve_format: 4,
    torch.contiguous_format: 4,
    torch.channels_last: 4,
    torch.channels_last_3d: 5,
}
CALLS = {
    "contiguous": lambda x, f: x.contiguous(memory_format=f or torch.contiguous_format),
    "clone": lambda x, f: x.clone(memory_format=f),
    "to": lambda x, f: x.to(memory_format=f or torch.preserve_format),
    "to dtype": lambda x, f: x.to(torch.float64, memory_format=f or torch.preserve_format),
    "to, copy": lambda x, f: x.to(
        torch.float32, copy=True, memory_format=f or torch.preserve_format
    ),
    "double": lambda x, f: x.double(memory_format=f or torch.preserve_format),
    "bool": lambda x, f: x.bool(memory_format=f or torch.preserve_format),
    "empty_like": lambda x, f: torch.empty_like(x, memory_format=f),
    "zeros_like": lambda x, f: torch.zeros_like(x, memory_format=f),
    "full_like": lambda x, f: torch.full_like(x, 2, memory_format=f),
    "rand_like": lambda x, f: torch.rand_like(x, memory_format=f),
    "randint_like": lambda x, f: torch.randint_like(x, 5, memory_format=f),
}
sizes = itertools.count(3)


def lying(how, rank):
    """New sizes for each call: what is known of earlier ones tells nothing."""
    shape = (2, 4, *(next(sizes) % 7 + 3 for _ in range(rank - 2)))
    x = torch.rand(*shape)
    match how:
        case "contiguous":
            return x
        case "channels last":
            last = torch.channels_last if rank == 4 else torch.channels_last_3d
            return x.contiguous(memory_format=last)
        case "transposed":
            return x.transpose(1, 2)
        case "sliced":
            return x[..., 1:]
        case "expanded":
            return x[:, :1].expand(shape)
        case "one channel":
            return x[:, :1]


LAYOUTS = ["contiguous", "channels last", "transposed", "sliced", "expanded", "one channel"]


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_results_lie_as_in_eager(name, how, wrapped):
    call = CALLS[name]
    for memory_format, rank in FORMATS.items():
        if name == "contiguous" and memory_format is torch.preserve_format:
            continue  # an error in eager
        for source in ("an argument", "a result"):
            x = lying(how, rank)
            expected = call(x if source == "an argument" else x + 1, memory_format)
            with lazy("async"):
                y = lazyeng.wrap(x) if wrapped else x
                y = y if source == "an argument" else y + 1
                found = [call(y, memory_format) for _ in range(3)]
            for result in found:
                assert result.stride() == expected.stride(), (memory_format, source)
                real = lazyeng.unwrap(result)
                assert real.stride() == expected.stride(), (memory_format, source)
                if "empty" not in name and "rand" not in name:
                    assert torch.equal(real, expected)


@pytest.mark.parametrize("function", [
    lambda x, w: F.conv2d(x, w), lambda x, w: F.conv2d(x, w, padding=1).relu(),
    lambda x, w: F.max_pool2d(x, 2), lambda x, w: F.avg_pool2d(x, 2),
    lambda x, w: F.interpolate(x, scale_factor=2), lambda x, w: x * 2 + x.mean(),
    lambda x, w: F.adaptive_avg_pool2d(x, 2), lambda x, w: torch.cat([x, x], 1),
    lambda x, w: F.batch_norm(x, None, None, training=True), lambda x, w: F.pixel_shuffle(x, 2),
    lambda x, w: x.softmax(1), lambda x, w: x.sum(1, keepdim=True) + x,
])  # fmt: skip
@pytest.mark.parametrize("outputs", [1, 3])
def test_channels_last_stays_so(function, outputs):
    """Forward and backward, of an image that the block itself lays out so."""
    image = torch.rand(2, 4, *(next(sizes) % 7 + 5 for _ in range(2)))
    weight = torch.rand(outputs, 4, 3, 3)

    def program():
        x = image.detach().requires_grad_()
        w = weight.detach().requires_grad_()
        y = function(x.contiguous(memory_format=torch.channels_last), w)
        grads = torch.autograd.grad(y.square().sum(), [x, w], allow_unused=True)
        return [y.detach(), *(g for g in grads if g is not None)]

    expected = program()
    with lazy("async"):
        found = [program() for _ in range(3)]
    for results in found:
        for result, eager in zip(results, expected, strict=True):
            assert result.stride() == eager.stride()
            assert torch.equal(lazyeng.unwrap(result), eager)


def test_modules_in_channels_last():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3))
    x = torch.rand(2, 3, 11, 13)

    def step(lay_out):
        last = lay_out(model)
        y = last(x.to(memory_format=torch.channels_last))
        y.sum().backward()
        return [y.detach(), *(p.grad.detach().clone() for p in model.parameters())]

    expected = step(lambda m: m.to(memory_format=torch.channels_last))
    model.zero_grad()
    model = model.to(memory_format=torch.contiguous_format)
    with lazy("async"):
        found = step(lambda m: m.to(memory_format=torch.channels_last))
    for result, eager in zip(found, expected, strict=True):
        assert result.stride() == eager.stride()
        torch.testing.assert_close(lazyeng.unwrap(result), eager, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("rank", [4, 5])
def test_pads_keep_channels_last(mode, rank):
    """Whatever torch's meta functions say."""
    for how in ("contiguous", "channels last", "contiguous", "channels last"):
        x = lying(how, rank)
        expected = F.pad(x, (1, 2) * (rank - 2), mode=mode)
        with lazy("async"):
            found = F.pad(x, (1, 2) * (rank - 2), mode=mode)
        assert found.stride() == lazyeng.unwrap(found).stride() == expected.stride(), how
        assert torch.equal(lazyeng.unwrap(found), expected)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("weights", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("volumes", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("window", [1, 2])
def test_first_convolution_of_volumes(window, volumes, weights, transposed):
    """Of each shape the first: torch's choice of a kernel, and so of a layout, goes by cores."""
    convolve = torch.nn.functional.conv_transpose3d if transposed else torch.nn.functional.conv3d
    with threads_of_torch(2):
        for channels in (3, 4):
            x = torch.randn(2, channels, 5, 6, 4).to(memory_format=volumes)
            w = torch.randn(channels, channels, *[window] * 3).to(memory_format=weights)
            expected = convolve(x, w)
            for _ in range(2):
                mine = convolve(lazyeng.wrap(x), lazyeng.wrap(w))
                assert mine.stride() == expected.stride()
                plain = lazyeng.unwrap(mine)
                assert plain.stride() == expected.stride()
                assert torch.equal(plain, expected)


@pytest.mark.parametrize("name", ["ReflectionPad3d", "ReplicationPad3d", "ConstantPad3d"])
def test_gradients_of_paddings(name, mode):
    pad = getattr(nn, name)(1, *([0.5] if name.startswith("Constant") else []))

    def strides():
        shape = (2, 3, 4, next(sizes))
        x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()
        y = pad(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        order = [sorted(range(4), key=t.stride().__getitem__) for t in (y, gradient)]
        return order

    expected = strides()
    with lazy(mode):
        assert [strides() for _ in range(3)] == [expected] * 3
