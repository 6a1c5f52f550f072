"""Numbers in groups: tensors of one element, Python's numbers, NaNs; what does not fit raises."""

import pytest
import torch

from lazyeng import _C
from tests.support.outcomes import outcome

from .support.fusion_runs import fused


@pytest.fixture(params=[False, True], ids=["auto", "on"], autouse=True)
def setting(request):
    _C.set_inexact_fusion(request.param)
    yield
    _C.set_inexact_fusion(False)


def bits(x):
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


def seen(run):
    """The bits of what it makes, or its error."""

    def look():
        made = run()
        return made.dtype, bits(made).tolist()

    return outcome(look)


VALUES = [torch.tensor(-1e9), torch.tensor(300), torch.tensor(2.5), torch.tensor(True),
          torch.tensor(float("inf")), torch.tensor(1e39, dtype=torch.float64)]  # fmt: skip
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.uint8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_fill_takes_item_of_its_value(dtype):
    """Which raises for a number that the dtype cannot hold; a copy would wrap around."""
    x = torch.ones(100).to(dtype)
    for value in VALUES:
        for name in ("masked_fill", "masked_fill_"):

            def fill(x, value, name=name):
                return getattr(x | x if x.dtype == torch.bool else x + x, name)(x > 0, value)

            for one in (x, x[:1]):
                assert seen(lambda o=one, v=value: fused(fill, o, v)) == seen(
                    lambda o=one, v=value: fill(o, v)
                ), f"{name} {value} {len(one)}"


@pytest.mark.parametrize("bound", [2**63 - 1, 2**63, 2**64 - 1])
def test_bounds_beyond_int64_are_bounds(bound):
    calls = [
        lambda x: (x * 1).clamp(0, bound), lambda x: (x * 1).clamp(max=bound),
        lambda x: (x * 1).clamp(bound, 3), lambda x: torch.clamp_max(x * 1, bound),
        lambda x: torch.nn.functional.hardtanh(x * 1, 0, bound),
    ]  # fmt: skip
    for dtype in (torch.float32, torch.float64, torch.float16):
        for call in calls:
            x = torch.linspace(-3, 3, 100, dtype=dtype) * (1e30 if dtype != torch.float16 else 1)
            assert seen(lambda c=call, x=x: fused(c, x)) == seen(lambda c=call, x=x: c(x))


NAN = float("nan")
NANS = [torch.tensor(-NAN), torch.tensor(NAN),
        torch.tensor(-1, dtype=torch.int32).view(torch.float32),
        torch.tensor([-NAN, 1]).to(torch.bfloat16)[0]]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("nan", NANS, ids=range(len(NANS)))
def test_nans_keep_their_sign(nan, dtype):
    """(Not those that are cast to bfloat16: torch's vectors give each a sign, its single elements
    none.)"""
    x = torch.full((100,), 2.0, dtype=dtype)
    for program in (
        lambda x, n: torch.copysign(x * 1, n),
        lambda x, n: torch.copysign(x * 1, n.item()),
        lambda x, n: torch.where(x > 0, n, x * 1).signbit(),
        lambda x, n: (x * 1).masked_fill(x > 0, n).signbit(),
        lambda x, n: torch.full_like(x, n.item()).mul_(1).signbit(),
    ):
        assert fused(program, x, nan).tolist() == program(x, nan).tolist()


def test_zeros_of_a_scaled_difference():
    """An integer 0 that is negated has no sign."""
    zeros = torch.full((128,), -0.0)
    for alpha in (0, 0.0, -0.0, 2, -(2**63)):
        for x in (zeros, torch.full((128,), 3.0)):

            def sub(x, alpha=alpha):
                return torch.sub(x * 1, x, alpha=alpha)

            for _ in range(3):
                assert torch.equal(bits(fused(sub, x)), bits(sub(x)))


def test_quotients_beyond_all_numbers():
    for a, b in ((1e38, 1e-30), (-1e38, 1e-30), (1e38, -1e-30), (float("inf"), 2.0), (0.0, 1e-40)):
        x = torch.full((64,), a)
        for _ in range(2):
            got, want = fused(lambda x, b=b: x.clone() // b, x), x.clone() // b
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("n", [3, 264, 40_000])
def test_any_byte_but_0_is_true(n):
    """A mask of 0 and 255, say, that is looked at as bool."""
    mask = torch.tensor([0, 255, 2]).to(torch.uint8).repeat(n // 3).view(torch.bool)
    x = torch.arange(float(len(mask)))
    for program in (
        lambda m, x: m.float() + 1, lambda m, x: 1 - m.int(), lambda m, x: m.float() ** 2,
        lambda m, x: m == m.logical_not().logical_not(), lambda m, x: (m.float() * 2).relu() + m,
        lambda m, x: (x * 2) * m, lambda m, x: torch.where(m, x + 1, x * 2),
        lambda m, x: m & (x > 1), lambda m, x: m ^ (x > 1), lambda m, x: ~m | (x > 1),
        lambda m, x: (x + 1).masked_fill(m, 3.0),
        lambda m, x: (m.float() + 1).sum(), lambda m, x: m.float().view(3, -1).sum(1),
        lambda m, x: x * m[1] + m[2], lambda m, x: torch.where(m[1], x * 2, x),
    ):  # fmt: skip
        assert torch.equal(fused(program, mask, x), program(mask, x))
