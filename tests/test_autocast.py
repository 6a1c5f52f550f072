"""Under autocast: ops whose own kernels call ops that are cast, as in eager, bit by bit; and the
same calls with another dtype, and without, afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import lazyeng
from tests.support.outcomes import outcome

Program = Callable[[torch.Tensor], object]


def gradients(function: Program) -> Program:
    def program(x: torch.Tensor) -> object:
        x = x.detach().requires_grad_()
        y = function(x)
        with torch.autocast("cpu", enabled=False):
            y.float().sum().backward()
        return y, x.grad

    return program


# By dtype of x, [4, 4, 4]: what casts half has no rule for is that of bfloat16, and raises.
PROGRAMS: dict[str, tuple[torch.dtype, Program]] = {
    "affine_grid": (torch.float32, lambda x: F.affine_grid(x[:2, :2, :3], (2, 3, 5, 5), False)),
    "affine_grid, 3d": (torch.float32, lambda x: F.affine_grid(x[:, :3], (4, 3, 2, 2, 2), False)),
    "pinv": (torch.float32, torch.linalg.pinv),
    "pinv, hermitian": (torch.float32, lambda x: torch.linalg.pinv(x @ x.mT, hermitian=True)),
    "bilinear": (torch.float32, lambda x: F.bilinear(x[0], x[1], x)),
    "bilinear, trained": (torch.float32, gradients(lambda x: F.bilinear(x[0], x[1], x))),
    "det": (torch.float32, torch.linalg.det),
    "slogdet": (torch.float32, torch.linalg.slogdet),
    "matrix_exp": (torch.float32, torch.linalg.matrix_exp),
    "addr_": (torch.float32, lambda x: x[0].clone().addr_(x[1, 0], x[1, 1])),
    "repeat": (torch.float16, lambda x: x.repeat(2, 1, 1)),
    "roll": (torch.float16, lambda x: x.roll(1, 0)),
    "roll, float32": (torch.float32, gradients(lambda x: x.roll(2))),
    "masked_scatter": (torch.float32, gradients(lambda x: x[0].masked_scatter(x[1] > 0, x[2]))),
    "chunk_cat": (torch.float16, lambda x: torch._chunk_cat([x, x], 0, 2)),
    "isin": (torch.float16, lambda x: torch.isin(x[0], x[1])),
    "isin, of many": (torch.float32, lambda x: torch.isin(x[0], x.repeat(9, 9, 9))),
    "groups": (torch.float32, gradients(lambda x: F.conv1d(x, x[:, :2], groups=2))),
    "soft margin": (torch.float32, gradients(lambda x: F.soft_margin_loss(x, x.sign()))),
}


def made(program: Program, x: torch.Tensor) -> list[object]:
    return tree_leaves(outcome(lambda: program(x)))


@pytest.mark.parametrize("mode", ["async", "deferred", "sync"])
@pytest.mark.parametrize(
    ("name", "large"),
    [(name, False) for name in PROGRAMS]
    + [(name, True) for name in PROGRAMS if name.startswith(("repeat", "roll", "chunk", "soft"))],
)
def test_what_kernels_call_is_cast(name, large, mode):
    dtype, program = PROGRAMS[name]
    x = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(3)).to(dtype)
    if large:
        x = x.repeat(100, 10, 10)  # more than kernels are tried with
    for cast in (torch.bfloat16, None, torch.float16, torch.bfloat16):
        for _ in range(3):  # by a first run, by its plan, and at once
            with torch.autocast("cpu", cast, enabled=cast is not None):
                expected = made(program, x)
                with lazyeng.lazy(mode):
                    got = made(program, lazyeng.wrap(x))
                    got = lazyeng.unwrap(
                        [t.detach() if isinstance(t, torch.Tensor) else t for t in got]
                    )
            assert len(got) == len(expected)
            for a, b in zip(expected, got, strict=True):
                if not isinstance(a, torch.Tensor):
                    assert a == b
                    continue
                assert a.dtype == b.dtype
                assert torch.equal(a.nan_to_num(), b.nan_to_num())


@torch.library.custom_op("lazyeng_autocast::product", mutates_args=())
def custom_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


@custom_product.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def test_a_custom_op_whose_kernel_is_cast(mode):
    """Its fake kernel is not: autocast leaves tensors without memory alone."""
    x = torch.ones(8, 8)

    def program() -> tuple[torch.dtype, float]:
        before = custom_product(x, x).dtype
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = custom_product(x, x)
        assert custom_product(x, x).dtype == before == torch.float32
        return result.dtype, result.sum().item()

    expected = program()
    with lazyeng.lazy(mode):
        for _ in range(3):
            assert program() == expected


def check(program: Program, mode: str) -> None:
    """Of a lazy tensor, outside of blocks and in one."""
    x = torch.rand(3, 3) / 3
    expected = tree_leaves(program(x))
    got = tree_leaves(program(lazyeng.wrap(x)))
    with lazyeng.lazy(mode):
        got_in_block = tree_leaves(program(x * 1))
    for made in (got, got_in_block):
        assert all(map(torch.equal, lazyeng.unwrap(made), expected))


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda q: f(q).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(f(x))),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "vmap": lambda f, x: torch.vmap(f)(torch.stack([x, x * 2])),
    "grad of grad": lambda f, x: torch.func.grad(
        lambda q: torch.func.grad(lambda r: f(r).sum())(q).sum()
    )(x),
    "vmap of grad": lambda f, x: torch.vmap(torch.func.grad(lambda q: f(q).sum()))(
        torch.stack([x, x * 2])
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("call", [
    lambda q: F.linear(q, q, q[0]),
    lambda q: q @ q,
    lambda q: torch.einsum("ij,kj->ik", q, q),
    lambda q: torch.tensordot(q, q, 1),
    lambda q: torch.linalg.multi_dot([q, q, q]),
    lambda q: (q.softmax(-1) @ q).exp(),
    lambda q: torch.cat([q @ q, q]).sum(0).log_softmax(-1),
])  # fmt: skip
def test_within_transforms(call, transform, dtype, mode):
    """What torch.func wraps around a lazy tensor is cast as what it wraps around a plain one."""

    def program(x: torch.Tensor) -> object:
        def casting(q):
            with torch.autocast("cpu", dtype):
                return call(q).float()

        return TRANSFORMS[transform](casting, x)

    check(program, mode)


def test_that_ends_within_a_transform(mode):
    def program(x: torch.Tensor) -> object:
        def calls(q):
            with torch.autocast("cpu", torch.bfloat16):
                first = q @ q
                with torch.autocast("cpu", enabled=False):
                    second = q @ q
            return first.float() + second + q @ q

        return torch.func.grad(lambda q: calls(q).sum())(x)

    check(program, mode)
