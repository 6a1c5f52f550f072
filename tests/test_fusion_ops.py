"""Every op of the table (csrc/fuse/op_table.cpp) against eager: all dtypes, layouts, values with a
meaning of their own, numbers as tensors, in place, with out=; and the errors that values raise."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lazyeng
from lazyeng import _C, lazy, wrap
from tests.support.outcomes import Raised, outcome

from .support.fusion_runs import same_bits

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Tensor = torch.Tensor
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTS, torch.bool)
COUNT = 700  # of elements: more than some vectors, no multiple of them
COLUMNS = 35

NUMBERS = (2, 0.3, -1, 0.5, -0.7, 3)  # some of them not to be had in narrow dtypes
# What may stand for an argument, where any number, or what the op has by default, would not do.
CHOICES: dict[str, tuple[Any, ...]] = {
    "approximate": ("none", "tanh"),
    "rounding_mode": (None, "floor", "trunc"),
    "reduction": (0, 1, 2),
    "beta": (0.5, 1.0, 2.0),
    "delta": (0.5, 1.0, 2.0),
    "lambd": (0.5, 0.0, 1.5),
    "is_result": (False, True),
    "self_is_result": (False,),
    "eps": (None, 0.25),
    "nan": (None, 2.0),
    "posinf": (None, 7.0),
    "neginf": (None, -7.0),
    "min_val": (-1, 0),
    "max_val": (1, 3),
    "threshold": (0.5, 20, -1),
    "negative_slope": (0.125, -0.5),
    "scale": (1.0, 2.0),
    "input_scale": (1.0, 0.5),
    "exponent": (2, 3, 0.5, 1.5, -1, 0, 1, 4),
}
MASKS = {"condition", "mask"}
INTEGRAL_DIVISIONS = ("floor_divide", "remainder", "fmod", "div")
# A value that the new dtype does not have is not defined (docs/api.md), nor are sums that have it.
SMALL_VALUES = ("_to_copy", "copy", "fill", "full_like")


def ops(reducing: bool = False) -> dict[str, torch._ops.OpOverload]:
    found = {}
    for name, reduces in _C.fused_ops().items():
        base, _, overload = name.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if reduces == reducing and packet and (overload or "default") in packet.overloads():
            found[name.removeprefix("aten::")] = getattr(packet, overload or "default")
    return found


OPS = ops()
NOT_IN_PLACE = sorted(name for name, op in OPS.items() if not op._schema.is_mutable)


# With `on` only of ordinary numbers: about others torch's own loops (for whole vectors, for what is
# left over, for memory with gaps) disagree, or torch's CPU kernel is another one for some layouts.
DISPUTED = {
    "gelu", "floor_divide", "div", "fmod", "remainder", "hardshrink_backward",
    "softshrink_backward", "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward",
    "elu_backward",
}  # fmt: skip
# Rounded several times in eager, once in a program: more than the last places of float16.
ROUNDED_OFTEN = {"sigmoid_backward", "mse_loss_backward"}


def special(dtype: torch.dtype, small: bool) -> list[Any]:
    if dtype == torch.bool:
        return [False, True]
    if not dtype.is_floating_point:
        few = torch.iinfo(dtype)
        numbers = [0, 1, 2, 3, 5, 7, 31, 64, 100, few.max]
        return numbers if few.min == 0 else [*numbers, -1, -2, -3, -7, -100, few.min + small]
    few = torch.finfo(dtype)
    inf = float("inf")
    numbers = [0.0, -0.0, 1, -1, 0.5, -0.5, 3, -3, 2.5, 20.5, 0.25, 1.5, 100]
    if small:
        return numbers
    return [
        *numbers,
        inf,
        -inf,
        float("nan"),
        few.tiny,
        few.tiny / 4,
        -few.tiny / 8,
        few.max,
        few.min,
    ]


@functools.cache
def pool(dtype: torch.dtype, place: int, small: bool = False) -> Tensor:
    """Special values in all combinations with those of the other places, then any."""
    numbers = special(dtype, small)
    made = torch.tensor([numbers[i % len(numbers)] for i in range(len(numbers) ** 2)], dtype=dtype)
    if place == 1:
        made = torch.tensor([n for n in numbers for _ in numbers], dtype=dtype)
    if place == 2:
        made = made.flip(0)
    generator = torch.Generator().manual_seed(place + 1)
    if dtype.is_floating_point:
        rest = torch.randn(COUNT, generator=generator, dtype=torch.float64) * 3
    else:
        rest = torch.randint(0, 2 if dtype == torch.bool else 100, (COUNT,), generator=generator)
    return torch.cat([made, rest.to(dtype)])[:COUNT]


def laid_out(x: Tensor, layout: str, place: int) -> Tensor:
    """[20, 35] in memory as the layout says, or less that broadcasts to it."""
    x = x.view(-1, COLUMNS)
    if layout == "transposed":
        return x.t().contiguous().t()
    if layout == "gaps":
        return torch.stack([x, x], 2)[:, :, 0]
    if layout == "broadcast" and place > 0:
        return x[:, :1] if place == 1 else x[3]
    if layout == "one" and place > 0:
        return x[2, 5].clone()
    return x.clone()


LAYOUTS = ("dense", "transposed", "gaps", "broadcast", "one")


class Calls:
    """Calls of one op in one dtype: everything that CHOICES allows, in each layout."""

    def __init__(self, name: str, dtype: torch.dtype, ordinary: bool = False) -> None:
        self.op = OPS[name]
        self.ordinary = ordinary
        self.name = name
        self.base = name.partition(".")[0].rstrip("_")
        self.dtype = dtype
        self.schema = self.op._schema.arguments
        self.in_place = self.op._schema.is_mutable
        self.choice = zlib.crc32(f"{name}{dtype}".encode())
        self.tensors: dict[tuple[int, str], Tensor] = {}

    def _number(self, name: str, i: int) -> Any:
        choices = CHOICES.get(name, NUMBERS if self.dtype.is_floating_point else (2, 3, 1))
        value = choices[(self.choice + i) % len(choices)]
        if value is not None and not self.dtype.is_floating_point and name != "reduction":
            return value if isinstance(value, (str, bool)) else int(value)
        return value

    def _tensor(self, argument, place: int, layout: str) -> Tensor:
        if argument.name in MASKS:
            return laid_out(pool(torch.bool, place), layout, place)
        small = self.base in SMALL_VALUES or self.base in INTEGRAL_DIVISIONS
        small &= not self.dtype.is_floating_point
        x = pool(self.dtype, place, small or self.ordinary)
        if place > 0 and self.base in INTEGRAL_DIVISIONS and not self.dtype.is_floating_point:
            x = torch.where(x == 0, 3, x).to(self.dtype)
        return laid_out(x, layout, place)

    def arguments(self, layout: str, i: int) -> tuple[list[Any], dict[str, Any]]:
        given, named, place = [], {}, 0
        for argument in self.schema:
            kind = str(argument.type)
            if "Tensor" in kind:
                if (place, layout) not in self.tensors:
                    self.tensors[place, layout] = self._tensor(argument, place, layout)
                value = self.tensors[place, layout]
                place += 1
            elif kind in ("number", "Optional[number]", "float", "Optional[float]"):
                value = self._number(argument.name, i)
                value = float(value) if "float" in kind and value is not None else value
            elif argument.name in CHOICES:
                value = self._number(argument.name, i)
            else:
                continue
            (named if argument.kwarg_only else {}).update({argument.name: value})
            if not argument.kwarg_only:
                given.append(value)
        return given, named

    def describe(self, case: tuple[str, int]) -> str:
        given, named = self.arguments(*case)
        shown = [list(x.shape) if torch.is_tensor(x) else x for x in given]
        return f"{self.name} {self.dtype} {case} {shown} {named}"

    def cases(self) -> Iterator[tuple[str, int]]:
        """Without those that equal one before: few ops have numbers, or tensors that broadcast."""
        if "loss" in self.name and not self.dtype.is_floating_point:
            return  # (eager ends the process: it divides integers by a bound of 0)
        tensors = sum("Tensor" in str(argument.type) for argument in self.schema)
        met = set()
        for layout, i in itertools.product(LAYOUTS if tensors > 1 else LAYOUTS[:3], range(6)):
            given, named = self.arguments(layout, i)
            numbers = [x for x in (*given, *named.values()) if not torch.is_tensor(x)]
            if (key := f"{layout} {numbers}") not in met:
                met.add(key)
                yield layout, i

    def run(self, case: tuple[str, int], given: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """The results, made by an op in front and read by one behind that it may be fused with."""
        arguments, named = self.arguments(*case)
        arguments = [given(x) if torch.is_tensor(x) else x for x in arguments]
        if self.in_place:
            arguments[0] = arguments[0].clone()
        made = self.op(*arguments, **named)
        made = made if isinstance(made, (tuple, list)) else [made]
        return [x.clone() for x in made if x.numel()]


def lazily(calls: Calls, case: tuple[str, int]) -> list[Tensor] | Raised:
    with lazy("deferred"):
        return outcome(lambda: lazyeng.unwrap(calls.run(case, wrap)))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, equal_nan=True)


def compare(calls: Calls, same: Callable[[Tensor, Tensor], None]) -> int:
    """Returns how many cases did not raise."""
    worked = 0
    for case in calls.cases():
        expected = outcome(lambda case=case: calls.run(case, lambda x: x))
        if case[1] == 0:
            lazily(calls, case)  # the first call of some ops runs at once
        got = lazily(calls, case)
        if isinstance(expected, Raised) or isinstance(got, Raised):
            assert got == expected, calls.describe(case)
            continue
        worked += 1
        for ours, theirs in zip(got, expected, strict=True):
            try:
                same(ours, theirs)
            except AssertionError as error:
                raise AssertionError(f"{calls.describe(case)}: {error}") from None
    return worked


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(OPS))
def test_by_default_each_op_has_the_bits_of_eager(name, dtype):
    _C.set_inexact_fusion(False)
    compare(Calls(name, dtype), same_bits)


@pytest.mark.usefixtures("inexact")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_with_other_bits_allowed_each_op_is_close_to_eager(name, dtype):
    calls = Calls(name, dtype, ordinary=True)
    if calls.base in ROUNDED_OFTEN and dtype in FLOATS[2:]:
        return
    compare(calls, close)
    if dtype in FLOATS[:2] and calls.base not in DISPUTED:
        compare(FiniteAndNot(name, dtype), close)


class FiniteAndNot(Calls):
    """Ordinary numbers, infinities and NaN; none at the ends of the dtype's range."""

    def _tensor(self, argument, place: int, layout: str) -> Tensor:
        if argument.name in MASKS:
            return super()._tensor(argument, place, layout)
        x = pool(self.dtype, place)
        few = torch.finfo(self.dtype)
        x = torch.where((x.abs() > few.max / 2) & x.isfinite(), 1.0, x)
        return laid_out(torch.where(x.abs() < few.tiny * 2, 0.0, x), layout, place)


@pytest.mark.usefixtures("inexact")
@pytest.mark.parametrize("name", sorted(OPS))
def test_each_op_joins_groups(name, groups):
    """In some dtype at least: not even bool has a copy that does not."""
    for dtype in DTYPES:
        calls = Calls(name, dtype, ordinary=True)
        for case in calls.cases():
            if not isinstance(lazily(calls, case), Raised) and groups():
                return
    raise AssertionError("no group")


def out_forms() -> dict[str, torch._ops.OpOverload]:
    """Those that write a tensor that is given, by the name of the op that makes one."""
    found = {}
    for name in NOT_IN_PLACE:
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base)
        out = f"{overload}_out" if f"{overload}_out" in packet.overloads() else "out"
        if out in packet.overloads() and len(OPS[name]._schema.returns) == 1:
            found[name] = getattr(packet, out)
    return found


OUT_FORMS = out_forms()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32), ids=str)
@pytest.mark.parametrize("name", OUT_FORMS)
def test_out_forms_have_the_bits_of_eager(name, dtype):
    """They join no group; what is written goes on into one."""
    _C.set_inexact_fusion(False)
    calls = Calls(name, dtype)
    if not [*calls.cases()]:
        return
    made = outcome(lambda: calls.run(("dense", 1), lambda x: x))
    if isinstance(made, Raised) or made[0].shape != (20, COLUMNS):
        return
    # (Not in the block: a copy of a NaN in two bytes may lose its sign.)
    tensors, named = calls.arguments("dense", 1)
    zeros = torch.zeros_like(made[0])
    written = [argument.name for argument in OUT_FORMS[name]._schema.arguments if argument.is_out]

    def run(given: Callable[[Tensor], Tensor]) -> list[Tensor]:
        arguments = [given(x) if torch.is_tensor(x) else x for x in tensors]
        out = given(zeros.clone())
        OUT_FORMS[name](*arguments, **named, **{written[0]: out})
        return [out.clone()]

    eager = outcome(lambda: run(lambda x: x))
    with lazy("deferred"):
        got = outcome(lambda: lazyeng.unwrap(run(wrap)))
    if isinstance(eager, Raised) or isinstance(got, Raised):
        assert got == eager
    else:
        same_bits(got[0], eager[0])


# --- errors that values raise

DIVISIONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "floor_divide": torch.floor_divide,
    "//": lambda x, y: x // y,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "in place": lambda x, y: x.clone().floor_divide_(y),
}


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_division_by_zero_fails_its_own_op(name, dtype, mode):
    divide = DIVISIONS[name]
    x = torch.arange(100).to(dtype)
    zeros = torch.ones(100, dtype=dtype)
    zeros[37] = 0
    for divisor in (zeros, 0, torch.zeros((), dtype=dtype), zeros[30:40].repeat(10)):
        with pytest.raises(RuntimeError) as eager:
            divide(x, divisor)
        with lazy(mode):
            y = wrap(divisor) if torch.is_tensor(divisor) else divisor
            before = wrap(x) + 1
            beside = before * 3
            with pytest.raises(RuntimeError) as caught:
                lazyeng.unwrap(divide(before - 1, y) + 2)
            assert str(caught.value) == str(eager.value)
            same_bits(lazyeng.unwrap(beside), (x + 1) * 3)
    quotient = divide(x, x.clamp(min=1)) + 2
    with lazy(mode):
        same_bits(lazyeng.unwrap(divide(wrap(x) * 1, wrap(x).clamp(min=1)) + 2), quotient)


def test_divisions_by_numbers_and_tensors_join_groups(groups):
    x, y = torch.arange(1000), torch.arange(1000) % 7 + 1

    def program(x, y):
        return (x * 2 // 3 + x % y).fmod(5), torch.div(x + y, y, rounding_mode="trunc")

    got: tuple[Tensor, ...] = ()
    for _ in range(2):
        groups()
        with lazy("deferred"):
            got = lazyeng.unwrap(program(wrap(x), wrap(y)))
    for ours, theirs in zip(got, program(x, y), strict=True):
        same_bits(ours, theirs)
    assert groups() == 1


# --- what torch's loops disagree on

DOUBTFUL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp": lambda x, y: x.clamp(y, y + 1),
    "clamp_min": lambda x, y: x.clamp_min(y),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "remainder of a number": lambda x, y: x % 0.3,
    "hardtanh_backward": lambda x, y: torch.ops.aten.hardtanh_backward(x, y, 0, 6),
    "hardshrink_backward": lambda x, y: torch.ops.aten.hardshrink_backward(x, y, 0.5),
}


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_loops_disagree_on_is_left_to_torch(name, dtype, groups):
    """Ordinary numbers are fused by default; with the others in them the bits are eager's, too."""
    _C.set_inexact_fusion(False)
    function = DOUBTFUL[name]
    x, y = (torch.randn(1000, dtype=torch.float64).to(dtype) for _ in range(2))

    def check(x, y):
        with lazy("deferred"):
            got = lazyeng.unwrap(function(wrap(x) * 1, wrap(y) * 1) + 0.5)
        same_bits(got, function(x, y) + 0.5)

    check(x, y)
    groups()
    check(x + 1, y)
    assert groups() == 1
    for value in (0.0, -0.0, float("nan"), float("inf"), -float("inf"), torch.finfo(dtype).max):
        for at in (3, 999):
            a, b = x.clone(), y.clone()
            a[at], b[at] = -0.0, value
            check(a, b)
            check(b, a)


# --- cosh and sinh, where the exponential is infinite and they are not


@pytest.mark.usefixtures("inexact")
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("name", ("cosh", "sinh"))
def test_what_is_infinite_in_whole_vectors_alone(name, dtype, groups):
    """There torch's loops disagree, so the op is left to torch, whichever loop it takes."""
    function = getattr(torch, name)
    bound = 709.78 if dtype == torch.float64 else 88.72
    few = torch.linspace(bound - 1.5, bound + 1.5, 1003, dtype=torch.float64).to(dtype)
    x = torch.cat([few, -few, torch.tensor([float("inf"), float("-inf"), float("nan")]).to(dtype)])

    def check(x):
        for _ in range(2):
            with lazy("deferred"):
                got = lazyeng.unwrap(function(wrap(x) * 1) * 1)
            torch.testing.assert_close(got, function(x * 1) * 1, equal_nan=True)

    ordinary = torch.linspace(-3, 3, 100).to(dtype)
    check(ordinary)
    assert groups() >= 1
    for part in (x, x[:960], *x.split(7)[:280:20], torch.stack([x, x], 1)[:, 0]):
        check(part)
    check(few[few > bound][:3])
    check(ordinary * 4)


# --- The sign of a NaN that was cast to a narrow dtype: torch's loops differ about it


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("count", (3, 700))
def test_the_sign_of_a_narrow_nan_is_that_in_memory(count, dtype):
    x = torch.tensor([float("nan"), -float("nan"), float("inf")]).repeat(count // 3)
    with lazy("deferred"):
        narrow = wrap(x).to(dtype)
        signs, copied = narrow.signbit(), torch.ones_like(narrow).copysign(narrow)
    in_memory = lazyeng.unwrap(narrow).view(torch.int16) < 0
    assert torch.equal(lazyeng.unwrap(signs), in_memory)
    assert torch.equal(lazyeng.unwrap(copied) < 0, in_memory)


GAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns": lambda x: x[:, :2], "every other": lambda x: x[::2, ::3],
    "transposed": lambda x: x.t(),
    "columns, transposed": lambda x: x[:, 1:3].t(), "dense": lambda x: x, "row": lambda x: x[1],
    "expanded": lambda x: x[:, :1].expand(6, 4), "offset": lambda x: x[2:, 1:],
}  # fmt: skip


@pytest.mark.parametrize("view", GAPS)
@pytest.mark.parametrize("call", [
    torch.ops.aten.copy, lambda x, y: torch.ops.aten.copy(x, y) * 2,
    lambda x, y: torch.ops.aten.fill(x, 2.0) + y, lambda x, y: torch.ops.aten.zero(x) + y,
])  # fmt: skip
def test_fresh_results_that_keep_the_strides_of_a_view(call, view, mode):
    """As what torch.func.functionalize makes of `x[:, :2].copy_(y)`."""

    def program(x: Tensor) -> Tensor:
        into = GAPS[view](x * 1)
        return call(into, torch.full_like(into, 3.0) * 2)

    x = torch.arange(24.0).view(6, 4)
    expected = program(x)
    for _ in range(3):
        with lazy(mode):
            got = program(wrap(x))
        assert got.stride() == expected.stride()
        same_bits(lazyeng.unwrap(got), expected)


@pytest.mark.parametrize("divide", [
    lambda x, d: x // d, lambda x, d: x % d, torch.fmod,
    lambda x, d: torch.div(x, d, rounding_mode="trunc"),
])  # fmt: skip
def test_a_division_by_zero_that_nobody_reads_is_told_of(divide):
    """Also after the same program has divided by another number."""
    x = torch.arange(1000)

    def program(divisor: int) -> None:
        with lazy("deferred"):
            y = wrap(x) + 1
            dropped = divide(y, divisor)
            z = y * 2
            del dropped
        assert z.tolist() == ((x + 1) * 2).tolist()
        lazyeng.synchronize()

    for _ in range(3):
        program(3)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            program(0)
