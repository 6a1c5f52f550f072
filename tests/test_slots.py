"""Operators and methods that are recorded past torch's dispatcher equal those that are not.

Each expression is evaluated three times on lazy tensors: the first call goes through the dispatcher
and leaves a plan, the others are recorded directly where that is possible. All equal eager's result,
also in type, metadata and error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import lazyeng
from lazyeng import LazyTensor, wrap
from tests.support.outcomes import Raised, outcome

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
OPERATORS = (
    "x + y", "x - y", "x * y", "x / y", "x @ y", "x ** 2", "-x", "x == y", "x != y", "x < y", "x <= y",
    "x > y", "x >= y", "x + 2", "2 + x", "x - 1.5", "1 - x", "2 * x", "x * True", "x / 3", "3 / x",
    "2 ** x", "x ** 0.5", "x == 1", "x < 0.5", "1 < x", "x + 2**70", "x + None", "None + x", "x == None",
    "x < 'a'", "x @ 2", "pow(x, 2, 3)", "x + np.float64(2)", "np.float32(2) * x", "x + (1 + 2j)",
)  # fmt: skip
METHODS = (
    "x.relu()", "x.exp()", "x.sum()", "x.sum(0)", "x.sum(-1, True)", "x.sum((0, 1))", "x.sum(0, 1)",
    "x.mean()", "x.mean(1)", "x.amax(0)", "x.amax(0, 1)", "x.argmax(0)", "x.max()", "x.clamp(0, 1)",
    "x.clamp(min=0)", "x.clone()", "x.add(y)", "x.add(y, alpha=2)", "x.add(1)", "x.sub(y)", "x.mul(2)",
    "x.div(2, rounding_mode='floor')", "x.pow(2)", "x.pow(y)", "x.eq(1)", "x.lt(y)", "x.mm(y)",
    "x.maximum(y)", "x.relu(1)", "x.exp(out=1)", "x.sum('a')", "x.sum(dtype=torch.float64)",
    "x.square()", "x.square(2)", "x.softmax(-1)", "x.softmax(0)", "x.softmax(7)", "x.softmax(-1, True)",
    "x.softmax(0, torch.float64)", "x.softmax(dim=1)", "x.log_softmax(1)", "x.log_softmax(-1, torch.float64)",
)  # fmt: skip
KEYWORDS = (
    "x.sum(dim=0)", "x.sum(dim=(0, 1), keepdim=True)", "x.sum(0, keepdim=True)", "x.sum(axis=0)",
    "x.sum(0, dim=1)", "x.sum(keepdim=True)", "x.sum(dim=0, dtype=torch.float64)", "x.sum(dim=None)",
    "x.mean(dim=-1, keepdim=True)", "x.add(other=y)", "x.add(y, alpha=True)", "x.add(y, alpha='a')",
    "x.add(alpha=2)", "x.add(y, beta=2)", "x.add(y, alpha=2, out=x)", "x.add(y, other=y)", "x.clamp(max=1)",
    "x.clamp(min=0, max=None)", "x.clamp(0, min=1)", "x.clamp(min=y)", "x.addcmul(x, y, value=2)",
    "x.addcmul(2, x, y)", "x.addcdiv(x, y + 1, value=0.5)", "x.lerp(y, weight=0.5)", "x.pow(exponent=2)",
    "x.eq(other=1)", "x.transpose(dim0=0, dim1=1)", "x.unsqueeze(dim=0)", "x.argmax(dim=0, keepdim=True)",
    "x.amax(dim=(0,))", "x.cumsum(dim=0, dtype=torch.float64)", "x.all(dim=0)", "x.prod(dim=0)",
    "x.sum(**{'d' + 'im': 0})", "x.expand(size=(2, 2))", "x.permute(dims=(1, 0))", "x.select(dim=0, index=1)",
)  # fmt: skip
VIEWS = (
    "x.view(-1)", "x.view(4)", "x.view((2, 2))", "x.view([4])", "x.view(3)", "x.view(torch.int32)", "x.t()",
    "x.T", "x.mT", "x.transpose(0, 1)", "x.transpose(0, 5)", "x.unsqueeze(0)", "x.unsqueeze(-1)",
    "x.squeeze()", "x.squeeze(0)", "x.expand(3, 2, 2)", "x.permute(1, 0)", "x.permute((1, 0))",
    "x.select(0, 1)", "x.diagonal()", "x.reshape(4)", "x.reshape(-1)", "x.reshape((4, 1))", "x.reshape(3)",
    "x.t().reshape(4)", "x.flatten()", "x.flatten(0)", "x.view_as(y)", "x.narrow(0, 0, 1)",
    "x.narrow(0, 1, 5)", "x.narrow(0, -1, 1)", "x.detach()", "x[0]", "x[-1]", "x[5]", "x[True]", "x[0:1]",
    "x[1:]", "x[:]", "x[::2]", "x[::-1]", "x[:, 0]", "x[..., 0]", "x[..., None]", "x[None]", "x[0, 1]",
    "x['a']", "x[torch.tensor([1, 0])]", "x[:, 7]",
)  # fmt: skip
IN_PLACE = (
    "x += y", "x -= y", "x *= y", "x /= y", "x += 1", "x -= 0.5", "x *= 2", "x /= 4", "x += x", "x += None",
    "x.add_(y)", "x.mul_(2)", "x.copy_(y)", "x.zero_()", "x.fill_(3)", "x.relu_()", "x[0] += 1",
    "x.add_(y[0])", "x[0].add_(y)", "x.add_(y, alpha=2)", "x.sub_(other=y)", "x.addcmul_(y, y, value=2)",
    "x.addcdiv_(y, y + 1)", "x.lerp_(y, 0.5)", "x.lerp_(end=y, weight=y)", "x.clamp_(min=1)",
)  # fmt: skip


def operands(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, 5, (2, 2), generator=generator).to(dtype) for _ in range(2))
    return {"x": x, "y": y}


def result(code: str, values: dict[str, Any]) -> Any:
    """The result, or the changed x after a statement; or the exception."""
    scope = {"torch": torch, "np": np, **values}

    def run() -> Any:
        if any(sign in code for sign in (" += ", " -= ", " *= ", " /= ")):
            exec(code, scope)
            return scope["x"]
        return eval(code, scope)

    return outcome(run, Exception)


def check_equal(code: str, got: Any, expected: Any) -> None:
    if isinstance(expected, Raised):
        assert got == expected, code
        return
    if not isinstance(expected, torch.Tensor):
        assert got is expected or got == expected, code
        return
    assert type(got) is LazyTensor, f"{code}: {got!r}"
    assert got.dtype == expected.dtype and got.shape == expected.shape, code
    assert (
        got.stride() == expected.stride() and got.storage_offset() == expected.storage_offset()
    ), code
    assert got.requires_grad == expected.requires_grad and got.is_leaf == expected.is_leaf, code
    assert got._is_view() == expected._is_view(), code
    assert got.is_inference() == expected.is_inference(), code
    if not expected.is_inference():
        assert got._version == expected._version, code
    torch.testing.assert_close(lazyeng.unwrap(got).detach(), expected.detach(), equal_nan=True)


def check(code: str, make: Callable[[], dict[str, torch.Tensor]] = operands) -> None:
    for _ in range(3):
        expected = result(code, make())
        got = result(code, {name: wrap(value) for name, value in make().items()})
        check_equal(code, got, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_equal_eager(dtype: torch.dtype) -> None:
    for code in OPERATORS:
        check(code, lambda: operands(dtype))


@pytest.mark.parametrize("code", METHODS + KEYWORDS + VIEWS + IN_PLACE)
def test_methods_equal_eager(code: str) -> None:
    check(code)


def test_in_every_mode(mode: str) -> None:
    for code in OPERATORS + METHODS + KEYWORDS + VIEWS + IN_PLACE:
        for _ in range(3):
            expected = result(code, operands())
            lazy = {name: wrap(value) for name, value in operands().items()}
            with lazyeng.lazy(mode):
                got = result(code, lazy)
                if isinstance(got, torch.Tensor):
                    lazyeng.synchronize()
            check_equal(code, got, expected)


@pytest.mark.parametrize(
    "shapes", [((2, 2), (2,)), ((), (2, 2)), ((0, 2), (2,)), ((2, 1), (1, 3)), ((2,), (3,))]
)
def test_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for code in OPERATORS:
        check(code, lambda: {"x": torch.ones(shapes[0]), "y": torch.full(shapes[1], 2.0)})


def test_type_promotion() -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        for code in ("x + y", "x * y", "x < y", "x += y"):
            check(code, lambda: {"x": torch.ones(2, dtype=a), "y": torch.ones(2, dtype=b)})


@pytest.mark.parametrize("code", OPERATORS + METHODS + KEYWORDS + VIEWS + IN_PLACE)
def test_requires_grad(code: str) -> None:
    def leaves() -> dict[str, torch.Tensor]:
        return {name: value.requires_grad_() for name, value in operands().items()}

    check(code)  # leaves plans for direct recording
    for _ in range(2):
        lazy = {name: wrap(v.detach()).requires_grad_() for name, v in leaves().items()}
        check_equal(code, result(code, lazy), result(code, leaves()))
        with torch.no_grad():
            lazy = {name: wrap(v.detach()).requires_grad_() for name, v in leaves().items()}
            check_equal(code, result(code, lazy), result(code, leaves()))


def test_write_through_a_view_reaches_autograd() -> None:
    for _ in range(3):
        results = []
        for make in (torch.ones, lambda *size: wrap(torch.ones(*size))):
            w = make(2).requires_grad_()
            base = make(2, 2)
            view = base[0]
            assert view._base is base
            view.mul_(w)
            base.sum().backward()
            results.append((w.grad, base.grad_fn.name(), base._version))
        assert results[0][1:] == results[1][1:]
        torch.testing.assert_close(lazyeng.unwrap(results[1][0]), results[0][0])


def test_view_taken_without_grad_refuses_writes_with_grad() -> None:
    for make in (torch.ones, lambda *size: wrap(torch.ones(*size))):
        for _ in range(3):
            base = make(2, 2).requires_grad_()
            with torch.no_grad():
                view = base[0]
            with pytest.raises(RuntimeError, match="no_grad"):
                view.add_(1)


def test_detach_shares_the_version_counter() -> None:
    x = wrap(torch.ones(2)).requires_grad_()
    d = x.detach()
    assert not d.requires_grad and type(d) is LazyTensor
    d.add_(1)
    assert x._version == 1
    with torch.no_grad():
        x.add_(1)
    assert d._version == 2 and d.tolist() == [3.0, 3.0]


def test_saved_tensor_changed_in_place_is_noticed() -> None:
    x = wrap(torch.ones(2)).requires_grad_()
    y = x.exp()
    d = y.detach()
    for _ in range(2):
        d += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("code", OPERATORS + VIEWS)
def test_inference_mode(code: str) -> None:
    check(code)
    with torch.inference_mode():
        for _ in range(2):
            lazy = {name: wrap(value) for name, value in operands().items()}
            check_equal(code, result(code, lazy), result(code, operands()))


def test_inference_tensor_outside_inference_mode() -> None:
    with torch.inference_mode():
        x = wrap(torch.ones(2)) + 1
    check("x += y", lambda: {"x": torch.ones(2), "y": torch.ones(2)})
    with pytest.raises(RuntimeError, match="inference"):
        x += 1


def test_autocast() -> None:
    check("x @ y")
    a, b = (wrap(value) for value in operands().values())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ b).dtype == torch.bfloat16
        assert a.mm(b).dtype == torch.bfloat16
    assert (a @ b).dtype == torch.float32


def test_vmap() -> None:
    check("x + 1")
    check("x.sum()")
    x = wrap(torch.arange(6.0).reshape(2, 3))
    assert torch.vmap(lambda row: row.sum() + row[0])(x).tolist() == [3.0, 15.0]
    assert torch.func.grad(lambda v: (v * v).sum())(x).tolist() == (2 * x).tolist()


def test_forward_mode() -> None:
    import torch.autograd.forward_ad as fwad

    check("x * y")
    x, t = wrap(torch.ones(2, 2)), wrap(torch.full((2, 2), 3.0))
    with fwad.dual_level():
        dual = fwad.make_dual(x, t)
        out = fwad.unpack_dual((dual * dual)[0])
        assert out.tangent.tolist() == [6.0, 6.0]


def test_modes_see_every_call() -> None:
    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = wrap(torch.ones(2, 2))
    for mode in (Functions, Dispatches):
        for code in (
            "x + x",
            "2 - x",
            "x += 1",
            "x[0]",
            "x.relu()",
            "x.view(4)",
            "x.reshape(4)",
            "x.T",
        ):
            result(code, {"x": x})
            seen: list[str] = []
            with mode():
                result(code, {"x": x})
            assert seen, (mode, code)


def test_profiler_sees_it() -> None:
    x = wrap(torch.ones(2))
    x + x
    with torch.profiler.profile() as profile:
        x + x
    assert any(event.name == "aten::add" for event in profile.events())


def test_conjugate_and_negative_bits() -> None:
    make = lambda: {"x": torch.tensor([1 + 2j, 3j]), "y": torch.tensor([2j, 1 + 1j])}  # noqa: E731
    for code in (
        "x.conj() + y",
        "x.conj() * 2",
        "-x.conj()",
        "x.conj().imag + 1",
        "x.conj()[0]",
        "x.conj() == y",
    ):
        for _ in range(3):
            lazy = {name: wrap(value) for name, value in make().items()}
            got, expected = result(code, lazy), result(code, make())
            assert got.tolist() == expected.tolist(), code


class Loud(torch.Tensor):
    """Has reflected operators of its own."""

    def __add__(self, other: Any) -> Any:
        return "Loud.__add__"

    def __radd__(self, other: Any) -> Any:
        return "Loud.__radd__"


class Shout(LazyTensor):
    def __radd__(self, other: Any) -> Any:
        return "Shout.__radd__"

    def relu(self) -> Any:
        return "Shout.relu"


class Foreign:
    __array_priority__ = 1000

    def __radd__(self, other: Any) -> str:
        return "Foreign.__radd__"

    def __rmatmul__(self, other: Any) -> str:
        return "Foreign.__rmatmul__"

    def __eq__(self, other: Any) -> Any:
        return "Foreign.__eq__"


def test_other_classes_on_the_other_side() -> None:
    x = wrap(torch.ones(2))
    x + x
    loud = torch.ones(2).as_subclass(Loud)
    assert loud + x == "Loud.__add__"
    shout = wrap(torch.ones(2))
    shout.__class__ = Shout
    assert x + shout == "Shout.__radd__"
    assert shout.relu() == "Shout.relu"
    foreign = Foreign()
    with pytest.raises(TypeError):
        torch.ones(2) - foreign
    with pytest.raises(TypeError):
        x - foreign
    assert type(torch.ones(2) + x) is LazyTensor and type(x - torch.ones(2)) is LazyTensor
    assert (torch.full((2,), 5.0) - x).tolist() == [4.0, 4.0]
    parameter = torch.nn.Parameter(torch.full((2,), 5.0))
    assert (parameter - x).requires_grad and (x - parameter).tolist() == [-4.0, -4.0]
    with pytest.raises(TypeError):
        x + object()
    with pytest.raises(TypeError):
        x @ "a"


def test_foreign_reflected_operators_are_asked_as_in_eager() -> None:
    for code in ("x + y", "x @ y", "x == y", "x - y"):
        eager = result(code, {"x": torch.ones(2), "y": Foreign()})
        lazy = result(code, {"x": wrap(torch.ones(2)), "y": Foreign()})
        assert type(eager) is type(lazy), code
        assert str(eager).replace("Tensor", "") == str(lazy).replace("LazyTensor", "").replace(
            "Tensor", ""
        ), code


def test_replaced_operator_of_the_class_wins() -> None:
    class Own(LazyTensor):
        pass

    own = wrap(torch.ones(2))
    own.__class__ = Own
    assert (own + own).tolist() == [2.0, 2.0]
    Own.__add__ = lambda self, other: "replaced"  # type: ignore[method-assign]
    assert own + own == "replaced"


def test_in_place_bumps_versions_and_keeps_identity() -> None:
    x = wrap(torch.ones(2))
    same, before = x, x._version
    for i in range(4):
        x += 1
        assert x is same and x._version == before + i + 1
    assert x.add_(1) is same
    view = x[0:1]
    view *= 2
    assert view._version == x._version
    assert x.tolist() == [12.0, 6.0]


def test_numbers_keep_their_kind() -> None:
    x = wrap(torch.ones(2, dtype=torch.int64))
    for _ in range(3):
        assert (x + 1).dtype == torch.int64 and (x + 1.0).dtype == torch.float32
        assert (x + True).dtype == torch.int64 and (x * 0.0).tolist() == [0.0, 0.0]
        assert str((x * -0.0).tolist()) == "[-0.0, -0.0]"
        assert (x + 5).tolist() == [6, 6] and (x + 5.0).tolist() == [6.0, 6.0]


def test_default_dtype_is_asked() -> None:
    x = wrap(torch.ones(2, dtype=torch.int64))
    assert (x / 2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_docs_stay() -> None:
    assert LazyTensor.sum.__doc__ == torch.Tensor.sum.__doc__
    assert LazyTensor.view.__name__ == "view"
