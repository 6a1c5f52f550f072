"""Convolutions and what goes over windows of images, forward and backward, of drawn shapes."""

import functools

import torch
import torch.nn.functional as F


def images(draw):
    n, c, k = (draw.choice((1, 2, 3, 4, 8, 16)) for _ in range(3))
    size, kernel = draw.choice((7, 8, 12, 16)), draw.choice((1, 2, 3))
    x, up = torch.randn(n, c, size, size), draw.choice((2, 3))
    groups = draw.choice([g for g in (1, 2, 4) if c % g == 0 and k % g == 0])
    weight, bias = torch.randn(k, c // groups, kernel, kernel), torch.randn(k)
    other = torch.randn(c, k, kernel, kernel)

    def with_gradients(f, *tensors):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        result = f(*leaves)
        grads = torch.autograd.grad(result.square().sum(), leaves)
        return torch.cat([part.detach().reshape(-1) for part in (result, *grads)])

    for name, f, *tensors in (
        ("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=groups), x, weight, bias),
        ("strides", lambda x, w: F.conv2d(x, w, stride=2, groups=groups), x, weight),
        ("transposed", lambda x, w: F.conv_transpose2d(x, w, stride=2), x, other),
        ("conv1d", lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0], groups=groups), x, weight),
        ("channels last", lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
         x, torch.randn(k, c, kernel, kernel)),
        ("max_pool2d", lambda x: F.max_pool2d(x, 2), x),
        ("overlapping", lambda x: F.max_pool2d(x, 3, stride=2, padding=1), x),
        ("avg_pool2d", lambda x: F.avg_pool2d(x, 2), x),
        ("adaptive", lambda x: F.adaptive_avg_pool2d(x, 3), x),
        ("nearest", lambda x: F.interpolate(x, scale_factor=up), x),
        ("bilinear", lambda x: F.interpolate(x, scale_factor=up, mode="bilinear"), x),
        ("reflect", lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), x),
        ("unfold", lambda x: F.unfold(x, 3), x),
        ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), x),
    ):  # fmt: skip
        yield name, functools.partial(with_gradients, f, *tensors)
