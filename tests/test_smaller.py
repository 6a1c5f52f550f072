"""What an op makes of large tensors is told by its kernel on smaller ones
(csrc/record/metadata/smaller.h): the looks are those of eager, and torch's Python meta functions
are not imported."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lazyeng
from tests.support.processes import printed_by

PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "mse_loss": lambda x: F.mse_loss(x, x, reduction="none"),
    "mean of mse_loss": lambda x: F.mse_loss(x, x + 1),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.0),
    "masked_fill by a row": lambda x: x.masked_fill(x[0] > 0.5, 0.0),
    "dropout": lambda x: F.dropout(x, 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3),
    "div_": lambda x: x.clone().div_(3),
    "std": lambda x: (torch.std(x), *torch.var_mean(x, 0, keepdim=True)),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True),
    "roll and flip": lambda x: x.roll(3, 0).flip(1),
    "sort": lambda x: x.sort(0),
    "topk": lambda x: x.topk(x.shape[1], 1),
    "kthvalue": lambda x: x.kthvalue(2, 0, keepdim=True),
    "cummax": lambda x: x.cummax(1),
    "stack": lambda x: torch.stack([x, x, x], 1),
    "mv": lambda x: torch.mv(x, x[0]),
    "matmul of batches": lambda x: torch.matmul(x.view(1, *x.shape), x.mT),
    "cdist": lambda x: torch.cdist(x, x[:300]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "trace": lambda x: x.trace(),
    "histc": lambda x: x.histc(100),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([1, 2]), 3.0),
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.int16),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
    "bce": lambda x: F.binary_cross_entropy(x, x, reduction="sum"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 2, reduction="none"),
    "multi_margin": lambda x: F.multi_margin_loss(x, torch.zeros(len(x), dtype=torch.long)),
    "rsub": lambda x: torch.rsub(x, 3),
    "embedding": lambda x: F.embedding(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]), x),
    # Sizes that are computed from those of the arguments:
    "conv1d": lambda x: F.conv1d(x.unsqueeze(1), x[:3, :7].unsqueeze(1), padding=2, stride=2),
    "max_pool1d": lambda x: F.max_pool1d(x, 3, 2, 1),
    "pad": lambda x: F.pad(x, (1, 2, 3, 4)),
    "unfold": lambda x: F.unfold(x.view(1, 1, *x.shape), (3, x.shape[1] - 2), stride=2),
    "cat": lambda x: torch.cat([x, x[:5]]),
    "kron": lambda x: torch.kron(x, torch.ones(1, 2)),
    "interpolate": lambda x: F.interpolate(x.unsqueeze(0), scale_factor=2),
    "interpolate to a size": lambda x: F.interpolate(x.unsqueeze(0), x.shape[1] * 2),
    "repeat": lambda x: x.repeat(2, 1),
    "diag_embed": lambda x: torch.diag_embed(x[:40]),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "tensordot": lambda x: torch.tensordot(x, x, ([0], [0])),
    "fft": lambda x: torch.fft.rfft(x),
    "stft": lambda x: torch.stft(x, 64, return_complex=True, window=torch.ones(64)),
}
SHAPES = [(400, 128), (131, 260), (1000, 65), (129, 129)]


def tensors(result: object) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_large_results_look_as_in_eager(name: str, dtype: torch.dtype):
    """In each mode, more than once: in `async` runs decide at first whom to believe."""
    program = PROGRAMS[name]
    for mode, shape in itertools.product(("deferred", "async"), SHAPES):
        plain = torch.rand(shape).mul(9).to(dtype) if dtype == torch.int64 else torch.rand(shape)
        plain = plain.to(dtype)
        error = None
        torch.manual_seed(0)
        try:
            expected = tensors(program(plain))
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as e:
            error = e
        torch.manual_seed(0)
        with lazyeng.lazy(mode):
            if error is not None:
                with pytest.raises(type(error)):
                    program(lazyeng.wrap(plain))
                    lazyeng.synchronize()
                continue
            found = tensors(program(lazyeng.wrap(plain)))
            looks = [(t.shape, t.stride(), t.dtype) for t in found]
        assert looks == [(t.shape, t.stride(), t.dtype) for t in expected]
        for got, wanted in zip(found, expected, strict=True):
            assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


IMPORTS = """
import os, sys, torch, lazyeng
import torch.nn.functional as F
def step(n):
    x = torch.randn(n, 300)
    y = F.dropout(F.mse_loss(x.masked_fill(x > 0, 0.0), x, reduction="none")).sum()
    z = x.roll(1, 0).flip(1).sort(0)[0].std() + torch.randn_like(x).mean() + torch.mv(x, x[0]).sum()
    return y + z + x.logsumexp(-1).mean() + torch.stack([x, x]).sum() + F.group_norm(x, 2).sum()
with lazyeng.lazy(os.environ["MODE"]):
    for n in range(100, 140, 3):
        step(n).item()
bad = [m for m in ("sympy", "torch.fx.experimental.symbolic_shapes") if m in sys.modules]
print(bad)
"""


@pytest.mark.parametrize("mode", ["async", "deferred", "sync"])
def test_programs_of_new_shapes_import_no_python_metas(mode: str):
    assert printed_by(IMPORTS, MODE=mode) == "[]\n"


# Kernels that trust sizes to fit each other, and results whose sizes are computed.
TRUSTING: dict[str, Callable[[], list[Tensor]]] = {
    "ctc_loss": lambda: ctc_gradients(lengths=[25] * 16),
    "ctc_loss of other lengths": lambda: ctc_gradients(lengths=[*range(10, 26)]),
    "sobol": lambda: [torch.quasirandom.SobolEngine(600, scramble=True, seed=1).draw(3)],
    "int8 products": lambda: [
        torch._weight_int8pack_mm(
            torch.ones(64, 512).bfloat16(), torch.ones(64, 512).char(), torch.ones(64).bfloat16()
        )
    ],
    "slices": lambda: [
        torch.slice_copy(LARGE[:rows], 0, *ends)
        for rows in (90, 80, 70, 60, 130)
        for ends in ((0, 100), (10, 100), (100,), (0, -20), (-20,), (0, None, 50))
    ],
    "splits": lambda: [*torch.split_copy(LARGE, 100)],
    "diagonals": lambda: [torch.diagonal_copy(LARGE, offset) for offset in (-10, 3, 100)],
    "windows": lambda: [torch.unfold_copy(torch.ones(20, 30, 90), 2, 1, 3)],
    "every third": lambda: [torch.slice_copy(torch.ones(20, 30, 90), 2, 0, None, 3)],
}
LARGE = torch.rand(130, 140)


def ctc_gradients(lengths: list[int]) -> list[Tensor]:
    torch.manual_seed(0)
    logits = torch.randn(50, 16, 40, requires_grad=True)
    targets = torch.randint(1, 40, (16, 25))
    loss = F.ctc_loss(logits.log_softmax(-1), targets, [50] * 16, lengths, zero_infinity=True)
    loss.backward()
    assert logits.grad is not None
    return [loss.detach(), logits.grad]


@pytest.mark.parametrize("mode", ["deferred", "async"])
@pytest.mark.parametrize("name", TRUSTING)
def test_kernels_that_trust_sizes_are_not_asked(name: str, mode: str):
    program = TRUSTING[name]
    expected = program()
    with lazyeng.lazy(mode):
        found = program()
        looks = [(t.shape, t.stride(), t.dtype) for t in found]
    assert looks == [(t.shape, t.stride(), t.dtype) for t in expected]
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got, wanted)


def test_a_refusal_of_other_sizes_is_none_of_the_call():
    """group_norm is given the product of two sizes, which those that they are exchanged for do not
    have. (In `async` each new number of images is a run: another kind of call.)"""
    with lazyeng.lazy("deferred"):
        for rows in range(300, 350, 10):
            F.group_norm(torch.rand(rows, 128), 2).sum().item()
        before = lazyeng.engine_stats()["fallbacks"]
        for images in range(16, 19):
            F.group_norm(torch.rand(images, 64, 50, 50), 2)
        assert lazyeng.engine_stats()["fallbacks"] == before


MASK = torch.ones(LARGE.shape, dtype=torch.uint8)
# What meta functions take, and kernels refuse.
REFUSED: dict[str, Callable[[], object]] = {
    "rsub": lambda: torch.rsub(LARGE.clone(), True),
    "bool minus": lambda: True - LARGE.clone(),
    "lists": lambda: torch._foreach_sub([LARGE.clone()], True),
    "mask": lambda: torch.masked_fill(LARGE, MASK, 2j),
    # Beyond a small size, and not beyond those that it is exchanged for.
    "kthvalue of 5": lambda: torch.ones(5, 6, 3000).kthvalue(7, dim=0),
    "kthvalue of 6": lambda: torch.ones(5, 6, 3000).kthvalue(8, dim=1),
}


@pytest.mark.parametrize("mode", ["deferred", "async"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernel_refuses_is_refused_at_the_call(name: str, mode: str):
    with pytest.raises(RuntimeError) as eager:
        REFUSED[name]()
    for _ in range(2):
        with lazyeng.lazy(mode), pytest.raises(RuntimeError) as lazy:
            REFUSED[name]()
        assert str(lazy.value) == str(eager.value)


@pytest.mark.parametrize("mode", ["deferred", "async"])
def test_a_range_that_equals_a_size_is_refused_at_the_call(mode: str):
    x = torch.zeros(300, 300, dtype=torch.uint8)
    with lazyeng.lazy(mode):
        with pytest.raises(RuntimeError, match="out of bounds for unsigned char"):
            x.random_(0, 300)
        assert x.sum() == 0
