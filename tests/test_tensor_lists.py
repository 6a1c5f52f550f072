"""Ops over lists of tensors are recorded one by one; optimizers of few parameters use them."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import foreach_binary_op_db as BINARY
from torch.testing._internal.common_methods_invocations import foreach_other_op_db as OTHER
from torch.testing._internal.common_methods_invocations import foreach_pointwise_op_db as POINTWISE
from torch.testing._internal.common_methods_invocations import foreach_reduce_op_db as REDUCE
from torch.testing._internal.common_methods_invocations import foreach_unary_op_db as UNARY
from torch.testing._internal.common_optimizers import optim_db

import lazyeng
from lazyeng import _C, lazy, wrap
from tests.support.outcomes import Raised, outcome

LISTS = UNARY + BINARY + POINTWISE + REDUCE + OTHER
MODES = ("async", "deferred", "sync")
SIZES = ((5, 7), (33,), (64, 64), (1,), (), (300, 40))

Step = Callable[[], Any]

# Most of them are not to be had in narrow dtypes: torch rounds them first, or does not.
NUMBERS = (0.3, -0.0091234567, 2, 1e-3, -1.7, 0.999)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)


def changed(tensors: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same arguments, each tensor in them changed."""
    if isinstance(tensors, torch.Tensor):
        return change(tensors)
    if isinstance(tensors, (list, tuple)):
        return type(tensors)(changed(x, change) for x in tensors)
    return tensors


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)) and not isinstance(expected[:1], torch.Size):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            same(a, b)
    elif isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(lazyeng.unwrap(got), expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert got == expected


@pytest.mark.parametrize("info", LISTS, ids=lambda info: info.name)
def test_every_op_over_lists_equals_eager(info: Any) -> None:
    """Bit for bit, results and what is written, of wrapped lists and of plain ones in a block."""
    functions = [(info.method_variant, False), (info.inplace_variant, True)]
    for dtype in (torch.float32, torch.int64):
        if dtype not in info.dtypes:
            continue
        for i, sample in enumerate(info.sample_inputs("cpu", dtype, num_input_tensors=[3])):
            if i % 5:  # (there are thousands)
                continue
            for function, in_place in functions:
                if function is None:
                    continue
                expect, plain, lazily = (
                    changed((sample.input, *sample.args), torch.clone) for _ in range(3)
                )
                lazily = changed(lazily, wrap)
                expected = outcome(partial(function, *expect, **sample.kwargs))
                got = outcome(partial(function, *lazily, **sample.kwargs))
                same(got, expected)
                same(lazily[0], expect[0])
                same([x._version for x in lazily[0]], [x._version for x in expect[0]])
                with lazy():
                    got = outcome(partial(function, *plain, **sample.kwargs))
                same(got if not in_place else plain[0], expected if not in_place else expect[0])


def positive(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.rand(size, generator=generator) + 0.2 for size in ((7,), (3, 4), (33,), ())]
    return [(x if dtype.is_floating_point else x * 8 + 1).to(dtype) for x in made]


def with_numbers(dtype: torch.dtype, seed: int) -> list[tuple[Any, ...]]:
    """What may stand after the list."""
    b, c = positive(seed + 1, dtype), positive(seed + 2, dtype)
    number = NUMBERS[seed % len(NUMBERS)]
    each = [NUMBERS[(seed + i) % len(NUMBERS)] for i in range(len(b))]
    return [
        (number,), (each,), (torch.tensor(number),), (b, number), (b, each), (b, c, number),
        (b, c, each),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [n for n in dir(torch) if n.startswith("_foreach_")])
def test_numbers_of_all_digits_in_groups(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)

    def run(seed: int, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
        own = positive(seed, dtype)
        made = function(own, *changed(arguments, torch.clone))
        return [x + 1 for x in (own if made is None else made)]

    for seed in range(len(NUMBERS)):
        for arguments in with_numbers(dtype, seed):
            expected = outcome(partial(run, seed, arguments))
            if isinstance(expected, Raised):
                continue  # the op takes others
            for _ in range(2):
                with lazy("deferred"):
                    got = run(seed, arguments)
                same(got, expected)


def recorded(step: Step) -> int:
    before = lazyeng.engine_stats()["recorded"]
    step()
    return lazyeng.engine_stats()["recorded"] - before


def test_each_tensor_of_a_list_is_an_op() -> None:
    tensors = [wrap(torch.rand(n + 1)) for n in range(7)]
    assert recorded(lambda: torch._foreach_add_(tensors, 1.0)) == 7
    assert recorded(lambda: torch._foreach_addcmul_(tensors, tensors, tensors, [0.5] * 7)) == 7
    # Their loop would read the numbers.
    numbers = wrap(torch.arange(7.0))
    torch._foreach_addcmul_(tensors, tensors, tensors, numbers)
    assert recorded(lambda: torch._foreach_addcmul_(tensors, tensors, tensors, numbers)) == 1


def test_the_failure_of_one_tensor_is_not_that_of_the_list() -> None:
    good, bad = wrap(torch.ones(3)), wrap(torch.ones(3))[wrap(torch.tensor([7, 0, 1]))]
    torch._foreach_mul_([good, bad], 2.0)
    assert good.tolist() == [2.0] * 3
    with pytest.raises(IndexError):
        bad.tolist()


def make(
    cls: Any,
    dtype: torch.dtype,
    seen: list[bool] | None = None,
    lazily: bool = False,
    **kwargs: Any,
) -> tuple[list[torch.Tensor], Step]:
    torch.manual_seed(0)
    params = [torch.randn(size, dtype=dtype) for size in SIZES]
    params = [(wrap(p) if lazily else p).requires_grad_() for p in params]
    optimizer = cls(params, **kwargs)

    def step(i: int) -> None:
        generator = torch.Generator().manual_seed(i)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=dtype)
        optimizer.step()

    def steps() -> list[Any]:
        for i in range(3):
            step(i)
        return [[*params], *([optimizer.state[p][k] for k in optimizer.state[p]] for p in params)]

    return params, steps


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "info",
    [info for info in optim_db if info.optim_cls.__name__ in ("Adam", "AdamW", "Adamax", "Rprop")],
    ids=lambda info: info.optim_cls.__name__,
)
def test_optimizers_that_take_lists_have_the_bits_of_the_loop(info: Any, mode: str) -> None:
    """All configurations of PyTorch's optim_db: parameters and state after three steps."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        for config in info.optim_inputs_func(device="cpu"):
            if config.kwargs.get("capturable") or config.kwargs.get("differentiable"):
                continue
            expected = outcome(make(info.optim_cls, dtype, **config.kwargs)[1])
            steps = make(info.optim_cls, dtype, **config.kwargs)[1]
            with lazy(mode):
                got = outcome(steps)
            assert isinstance(got, list) == isinstance(expected, list), (config, got, expected)
            same(changed(got, torch.Tensor.detach), changed(expected, torch.Tensor.detach))


def lists_are_used(monkeypatch: pytest.MonkeyPatch, steps: Step) -> bool:
    used = []
    original = torch._foreach_addcdiv_
    monkeypatch.setattr(
        torch, "_foreach_addcdiv_", lambda *a, **k: used.append(1) or original(*a, **k)
    )
    steps()
    monkeypatch.undo()
    return bool(used)


def test_when_lists_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def adam(**kwargs: Any) -> Step:
        return make(torch.optim.Adam, torch.float32, **kwargs)[1]

    assert not lists_are_used(monkeypatch, adam())
    assert lists_are_used(monkeypatch, adam(lazily=True))
    with lazy():
        assert lists_are_used(monkeypatch, adam())
        assert not lists_are_used(monkeypatch, adam(foreach=False))
        assert not lists_are_used(monkeypatch, make(torch.optim.Adam, torch.complex64)[1])


@pytest.mark.parametrize("sizes", [[600] * 40, [5000, 30] * 20, [70000] * 9 + [3] * 30])
def test_many_parameters_are_handed_over_in_portions(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is done once, and state that an implementation makes is the optimizer's."""
    assert sum(sizes) < 16384 * len(sizes)

    def steps() -> list[Any]:
        torch.manual_seed(0)
        params = [torch.randn(n).requires_grad_() for n in sizes]
        optimizer = torch.optim.Adam(params, amsgrad=True, weight_decay=0.1, maximize=True)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape)
            optimizer.step()
        return [[p.detach(), *optimizer.state[p].values()] for p in params]

    expected = steps()
    used: list[int] = []
    original = torch._foreach_addcdiv_
    monkeypatch.setattr(
        torch, "_foreach_addcdiv_", lambda *a, **k: used.append(len(a[0])) or original(*a, **k)
    )
    with lazy():
        got = steps()
    same(got, expected)
    assert sum(used) == 3 * len(sizes) and len(used) > 3 and max(used) < len(sizes)


def test_a_parameter_that_is_there_twice_has_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> list[float]:
        p = torch.tensor([0.3, -2.0], requires_grad=True)
        with warnings.catch_warnings(action="ignore"):
            optimizer = torch.optim.AdamW([p, p], lr=0.3)
        p.grad = torch.tensor([0.7, 1.1])
        optimizer.step()
        return p.tolist()

    with lazy():
        assert not lists_are_used(monkeypatch, step)
        assert step() == lazyeng.lazy("sync")(step)()
    with lazy():
        got = step()
    assert got == step()


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax])
@pytest.mark.parametrize("names", [("beta1", "beta2"), ("beta1",)])
def test_betas_that_are_tensors(cls: Any, names: tuple[str, ...], mode: str) -> None:
    """torch has them one by one only, and refuses them to who asks for lists."""
    if cls is not torch.optim.Adamax and len(names) == 1:
        pytest.skip("torch refuses one tensor and one number")
    betas = (torch.tensor(0.9), torch.tensor(0.99) if len(names) == 2 else 0.99)

    def steps(**options: Any) -> list[list[float]]:
        params = [torch.nn.Parameter(torch.ones(5) * i) for i in range(3)]
        optimizer = cls(params, betas=betas, **options)
        for step in range(3):
            for p in params:
                p.grad = torch.ones(5) * step
            optimizer.step()
        return [p.tolist() for p in params]

    expected = steps()
    with lazy(mode):
        assert steps() == expected


def test_many_large_parameters_are_groups_of_their_own() -> None:
    """What is independent goes over memory one after the other; what is small, in one group."""

    def groups(elements: int) -> list[int]:
        params = [torch.ones(elements) for _ in range(6)]
        with lazy("deferred"):
            for p in params:
                p.mul_(0.5).add_(1.0).sub_(0.25)
            graph = lazyeng.graph()
        sizes = collections.Counter(op.group for op in graph.ops)
        return sorted(sizes.values())

    assert groups(1 << 16) == [3] * 6
    assert groups(64) == [18]


def test_lists_that_lie_alike():
    """What an op over lists of an optimizer asks for (lazyeng/torch_patches/fused_adam.py)."""
    x, y = torch.rand(3, 4), torch.rand(5)
    alike = [x.clone(), wrap(y.clone())]
    assert _C.lie_alike([x, y], alike, alike)
    assert _C.lie_alike([], [])
    turned, gap = torch.rand(4, 3).t(), torch.rand(3, 8)[:, ::2]
    for other in (turned, x.double(), x[:2], x.to_sparse(), x.to("meta")):
        assert not _C.lie_alike([x, y], [other, y])
    assert not _C.lie_alike([gap], [gap])
    assert not _C.lie_alike([x, y.double()], [x, y.double()])
    for wrong in ([x], [x, y, y], (x, y), [x, 1]):
        with pytest.raises(TypeError, match="expected lists of tensors that are equally long"):
            _C.lie_alike([x, y], wrong)


@pytest.mark.parametrize("wrapped", [False, True])
def test_lists_of_many_tensors_some_of_which_share_memory(wrapped, mode):
    def program(made: Callable[[torch.Tensor], torch.Tensor]) -> list[list[float]]:
        base = made(torch.arange(60.0))
        tensors = [made(torch.ones(3)) for _ in range(20)] + [*base.split(3)] + [base[3:6]]
        others = [t.detach() for t in tensors[1:]] + [tensors[0]]
        torch._foreach_add_(tensors, others)
        torch._foreach_mul_(tensors, 2)
        torch._foreach_add_(tensors, tensors)
        return [lazyeng.unwrap(t).tolist() for t in (*tensors, base)]

    expected = program(lambda t: t)
    with lazy(mode):
        assert program(wrap if wrapped else lambda t: t) == expected
