"""Fusion: fused, unfused and eager runs give the same results; failures, views and memory."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import _C, lazy, wrap
from lazyeng.fuse.description import planned
from tests.support.processes import alone, printed_by

from .programs.fusion_programs import (
    DEEPEST,
    FLOATS,
    Dag,
    exact_functions,
    hard_values,
    tried_functions,
)
from .support.fusion_runs import compare_random_programs, fused, same_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.usefixtures("inexact"),
]

SEEDS = 150
EXACT = exact_functions() | tried_functions()


def test_random_programs_of_exact_ops(groups):
    _C.set_inexact_fusion(False)
    compare_random_programs(range(SEEDS), True)
    assert groups() > SEEDS


def test_what_may_round_otherwise_is_fused_at_any_size():
    """With LAZYENG_FUSION=on; the reader then runs one op and not three."""

    def program(x):
        return torch.softmax(x * 0.5 + 0.1, -1)

    x = torch.randn(2, 64)
    for _ in range(2):  # the first call of some ops runs at once
        lazyeng.reset_stats()
        torch.testing.assert_close(fused(program, x), program(x))
    assert lazyeng.engine_stats()["groups"] == 1


@pytest.mark.parametrize(("side", "expected"), [(32, 1), (512, 5)])
def test_totals_do_not_wait_for_many_large_terms(side, expected, groups):
    """Of ten products of 1 MiB two at a time are kept, of small ones all."""
    factors = [torch.rand(side, 8) for _ in range(10)]
    wide = torch.rand(8, side)

    def program():
        total = -(factors[0] @ wide)
        for factor in factors[1:]:
            total = total + factor @ wide
        return total

    before = program()
    with lazy("deferred"):
        result = program()
    assert torch.equal(result, before)
    assert groups() == expected


@pytest.mark.parametrize("numel", [1000, 1_000_000])
def test_what_is_written_in_place_stays_in_its_group(numel, groups):
    """Also where it has 1 MiB and more: a group's own writes do not come late to it."""
    x, y = torch.rand(numel), torch.rand(numel)
    expected = x.clone().add_(y * 2).mul_(0.5).abs_()
    with lazy("deferred"):
        x.add_(y * 2).mul_(0.5).abs_()
    assert torch.equal(x, expected)
    assert groups() == 1


@pytest.mark.parametrize("shapes", [3, 12, 30])
def test_lists_of_many_shapes_are_a_group_each(shapes, groups):
    """As an optimizer's parameters: each op goes over all before the next op does."""
    tensors = [torch.rand(size + 5) for size in range(shapes)]

    def program(tensors):
        for f in (torch.neg, torch.square, torch.abs, torch.neg):
            tensors = [f(x) for x in tensors]
        return tensors

    with lazy("deferred"):
        results = program(tensors)
    assert all(torch.equal(a, b) for a, b in zip(results, program(tensors), strict=True))
    assert groups() == shapes


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_exact_ops_give_the_bits_of_eager(name, dtype):
    """Of hard values; in whole vectors, in what is left over and one by one (memory with gaps)."""
    _C.set_inexact_fusion(False)
    tensors, function = EXACT[name]
    values = hard_values(dtype, tensors)
    with_gaps = [torch.stack([x, x], 1)[:, 0] for x in values]
    few = [[x[-n:] for x in hard_values(dtype, 2)[:tensors]] for n in (1, 3, 7, 16, 29, 61)]
    for xs in (values, with_gaps, *few):
        same_bits(fused(lambda *args: torch.clone(function(*args)), *xs), function(*xs))


@pytest.mark.parametrize("floats", [FLOATS[:2], FLOATS[2:]])
def test_random_programs_of_functions(floats, groups):
    compare_random_programs(range(SEEDS // 2), False, floats, bits=False)
    assert groups() > SEEDS


def test_random_programs_of_functions_by_default(groups):
    """Whatever the program: what joins a group by default gives eager's bits."""
    _C.set_inexact_fusion(False)
    compare_random_programs(range(SEEDS // 2), False)
    assert groups() > SEEDS


def test_random_programs_of_all_ops(groups):
    """Also of those that fusion_steps.py has."""
    compare_random_programs(range(12), False, FLOATS[:2], bits=False, more=True)
    compare_random_programs(range(12), False, FLOATS[2:], bits=False, more=True)
    _C.set_inexact_fusion(False)
    compare_random_programs(range(40), True, more=True)
    compare_random_programs(range(12), True, folds=True, more=True)
    compare_random_programs(range(12), False, more=True)
    assert groups() > SEEDS


@pytest.mark.parametrize(
    "kind",
    [(True,), (True, FLOATS, False, True), (False,), (False, FLOATS[:1], True)],
    ids=["exact", "folds", "functions", "rows"],
)
def test_random_programs_are_as_deep_as_they_say(kind):
    """Each step is an op at least that needs those of the step before."""
    for _ in range(2):  # the first call of some ops runs at once
        with lazy("deferred"):
            results = Dag(0, wrap, *kind).run(DEEPEST)
            pending = lazyeng.graph(*results)
    depths: dict[str, int] = {}
    for op in pending.ops:
        depths[op.label] = 1 + max((depths.get(made, 0) for made in op.reads), default=0)
    assert max(depths.values()) >= DEEPEST


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_adamw_is_one_group_by_default(dtype):
    """Its square root comes from MKL and its products are added unrounded: torch's build has it so,
    or this machine (or an MKL-free build) is one where these steps stay torch's."""
    _C.set_inexact_fusion(False)

    def step(p, grad, m, v):
        p.mul_(0.99)
        m.lerp_(grad, 0.1)
        v.mul_(0.999).addcmul_(grad, grad, value=0.001)
        p.addcdiv_(m, (v.sqrt() / 0.3).add_(1e-8), value=-0.01)
        return p, m, v

    given = [torch.rand(5000, dtype=dtype) + i for i in range(4)]
    expected = step(*(x.clone() for x in given))
    for _ in range(2):  # the first call of some ops runs at once
        lazyeng.reset_stats()
        for a, b in zip(fused(step, *(x.clone() for x in given)), expected, strict=True):
            same_bits(a, b)
    if torch.backends.mkl.is_available():
        assert lazyeng.engine_stats()["groups"] == 1


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="sqrt may have other bits then")
def test_functions_are_tried_once_they_are_used_for_a_while():
    """Not in a program's first step, whose time the trials would be."""
    code = """if True:
        import torch
        import lazyeng
        x = torch.rand(64, 64)
        found = []
        for i in range(400):
            with lazyeng.lazy("deferred"):
                y = (x * 2).sqrt() + 1
                lazyeng.synchronize()
            found.append(lazyeng.engine_stats()["groups"])
            assert torch.equal(lazyeng.unwrap(y), (x * 2).sqrt() + 1)
        assert found[100] == 0 and found[-1] > 0, found
    """
    printed_by(code)


def test_exact_fusion_trains_with_the_bits_of_eager(lazy_mode, groups):
    """What is fused by default leaves no trace in the parameters, whatever their size."""
    _C.set_inexact_fusion(False)
    start, grad = torch.randn(256, 256), torch.randn(256, 256)

    def train():
        weights = [torch.nn.Parameter(start.clone()) for _ in range(2)]
        optimizer = torch.optim.AdamW(weights, lr=1e-2)
        for i in range(4):
            for weight in weights:
                weight.grad = grad * (i + 1)
            optimizer.step()
        return weights[0].detach()

    expected = train()
    with lazy(lazy_mode):
        result = train()
    same_bits(lazyeng.unwrap(result), expected)
    assert groups() > 0


def test_roots_are_eagers():
    _C.set_inexact_fusion(False)
    x = torch.rand(1 << 18)
    for root in (torch.sqrt, torch.rsqrt, lambda x: x**0.5, lambda x: x**-0.5):
        same_bits(fused(lambda x, root=root: root(x * 3) * 2, x), root(x * 3) * 2)


# --- what is fused


def chain(x, steps=20):
    for i in range(steps // 2):
        x = x * 1.01 + i
    return x


def test_a_chain_is_one_group(groups):
    x = torch.randn(100, 100)
    same_bits(fused(chain, x), chain(x))
    assert groups() == 1


def test_async_chain_is_one_group(groups):
    x = torch.randn(100, 100)
    with lazy():
        result = lazyeng.unwrap(chain(x))
    same_bits(result, chain(x))
    assert 1 <= groups() <= 3  # the holder may have found a pause


def test_nothing_is_fused_when_switched_off(unfused, groups):
    fused(chain, torch.randn(100))
    assert groups() == 0


def test_numbers_are_no_part_of_a_plan():
    def step(x, rate):
        with lazy("deferred"):
            return lazyeng.unwrap((wrap(x) * rate + rate).clamp(-rate, rate))

    x = torch.randn(50)
    step(x, 0.5)
    plans = _C.plan_count()
    for rate in (0.25, 0.1, 3.0):
        same_bits(step(x, rate), (x * rate + rate).clamp(-rate, rate))
    assert _C.plan_count() == plans


NUMBERS = {
    "exponent": (lambda x, n: (x.abs() + 1) ** n, (2.5, 1.7, -0.3, 4.0)),
    "eps": (lambda x, n: F.layer_norm(x + 1, x.shape[-1:], eps=n), (1e-5, 1e-3, 0.5)),
    "correction": (lambda x, n: (x + 1).var(-1, correction=n), (1, 0, 5)),
    "fractional correction": (lambda x, n: (x + 1).std(-1, correction=n), (0.5, 1.5, -2.5)),
    "alpha": (lambda x, n: (x * 2).add(x, alpha=n), (0.5, 0.25, 3.0)),
    "value": (lambda x, n: (x * 2).addcmul(x, x, value=n), (0.5, 0.25, 3.0)),
    "weight": (lambda x, n: (x * 2).lerp(x, n), (0.4, 0.25, 0.1)),
    "slope": (lambda x, n: F.leaky_relu(x * 2, n), (0.5, 0.25, 0.1)),
    "bounds": (lambda x, n: (x * 2).clamp(-n, n), (0.5, 0.25, 0.1)),
    "fill": (lambda x, n: (x * 2).masked_fill(x > 0, n), (0.5, 0.25, 0.1)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_is_part_of_a_plan(name):
    program, numbers = NUMBERS[name]
    x = torch.randn(40, 64)

    def fused_with(number):
        with lazy("deferred"):
            return lazyeng.unwrap(program(wrap(x), number))

    fused_with(numbers[0])
    plans, groups_before = _C.plan_count(), lazyeng.engine_stats()["groups"]
    for number in numbers:
        torch.testing.assert_close(fused_with(number), program(x, number))
    assert _C.plan_count() == plans
    assert lazyeng.engine_stats()["groups"] == groups_before + len(numbers)


def test_another_exponent_is_another_plan():
    def power(x, n):
        with lazy("deferred"):
            return lazyeng.unwrap((wrap(x) + 1) ** n)

    x = torch.rand(50)
    for n in (2, 3, 0.5, -1, 1.7, 0):
        torch.testing.assert_close(power(x, n), (x + 1) ** n)


def test_results_still_held_are_written(groups):
    x = torch.randn(64, 64)
    with lazy("deferred"):
        a = wrap(x) * 2
        b = a + 1
        c = b * b
        results = lazyeng.unwrap([a, b, c])
    for got, expected in zip(results, [x * 2, x * 2 + 1, (x * 2 + 1) ** 2], strict=True):
        same_bits(got, expected)
    assert groups() == 1


def test_another_op_in_between_keeps_its_place():
    x = torch.randn(8, 8)
    with lazy("deferred"):
        a = wrap(x) * 2
        b = a @ a  # reads a member, and is read by one
        c = a + b
        d = c * 3
        result = lazyeng.unwrap(d)
    torch.testing.assert_close(result, (x * 2 + (x * 2) @ (x * 2)) * 3)


def test_the_same_elements_are_loaded_once():
    """Views that were made twice; not those that begin elsewhere, which look the same."""
    x = torch.randn(101)
    for i, j in itertools.product((0, 1), repeat=2):
        with lazy("deferred"):
            y = wrap(x)
            made = (y[i : i + 100] * 2).relu() + y[j : j + 100]
            (op,) = planned().ops
            assert op.program is not None and len(op.program.loads) == 1 + (i != j)
        same_bits(lazyeng.unwrap(made), (x[i : i + 100] * 2).relu() + x[j : j + 100])


def test_the_same_elements_before_and_after_a_write():
    def step(x):
        y = x[1:] * 2
        x[1:].add_(y)
        return [y, x[1:] - x[1:] * 3, x]

    x = torch.randn(101)
    with lazy("deferred"):
        made = step(wrap(x.clone()))
    for found, expected in zip(lazyeng.unwrap(made), step(x.clone()), strict=True):
        same_bits(found, expected)


def test_views_of_what_a_group_writes():
    x = torch.arange(12.0).reshape(3, 4)

    def program(x):
        y = x * 2
        y[0].add_(10)
        y.t()[1].mul_(3)
        z = y + y.t().t()
        z[:, 1:].sub_(z[:, :-1].clone())
        return z, y

    expected = program(x.clone())
    for got, want in zip(fused(program, x), expected, strict=True):
        same_bits(got, want)


def test_copies_among_arguments():
    def swap(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        x.add_(y)
        return x, y

    a, b = torch.randn(40), torch.randn(40)
    expected = swap(a.clone(), b.clone())
    for got, want in zip(fused(swap, a.clone(), b.clone()), expected, strict=True):
        same_bits(got, want)


def test_writes_to_plain_tensors_are_fused(groups):
    weight, grad = torch.randn(300), torch.randn(300)
    expected = weight - 0.1 * (grad + 0.01 * weight)
    with lazy():
        weight.sub_(0.1 * (grad + 0.01 * weight))
    same_bits(weight, expected)
    assert groups() >= 1


def test_large_tensors_run_on_all_threads():
    x = torch.randn(700, 1001)
    same_bits(fused(chain, x), chain(x))
    same_bits(fused(lambda x: (x.t() * 2 + 1) / 3, x), (x.t() * 2 + 1) / 3)


def test_plans_for_new_sizes():
    for n in range(1, 70):
        x = torch.randn(n)
        same_bits(fused(lambda x: chain(x, 4), x), chain(x, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(40_001,), (123, 457)])
def test_folds_end_a_group(dtype, shape, groups):
    x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)

    def program(x, y):
        d = x - y
        square = d.square()
        return (
            d.mean(),
            square.sum(),
            square.mean(),
            d.amax(),
            d.amin(),
            d.max(),
            square.sum(tuple(range(d.dim()))),
        )

    for got, want in zip(fused(program, x, y), program(x, y), strict=True):
        torch.testing.assert_close(got, want)
    assert groups() == 1


def test_folds_of_integers_are_exact():
    x = torch.randint(-1000, 1000, (40_001,), dtype=torch.int16)

    def program(x):
        y = x * 3
        return y.sum(), (y > 5).sum(), y.amax(), y.amin(), (y > 9).amax()

    for got, want in zip(fused(program, x), program(x), strict=True):
        same_bits(got, want)


def test_a_fold_sees_what_was_there_before_a_write():
    def program(x):
        total = x.sum()
        x.add_(1)
        return total, x, x.sum()

    x = torch.randn(40_000)
    expected = program(x.clone())
    for got, want in zip(fused(program, x.clone()), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_nan_wins_a_fold():
    x = torch.randn(40_000)
    x[37] = torch.nan
    got = fused(lambda x: ((x + 1).amax(), (x * 2).amin()), x)
    assert all(value.isnan() for value in got)


def test_few_elements_are_folded_as_in_eager():
    x = torch.randn(1000)
    same_bits(fused(lambda x: (x * 3 + 1).sum(), x), (x * 3 + 1).sum())


# --- failures


def test_a_failed_input_fails_only_what_reads_it():
    with lazy("deferred"):
        bad = torch.linalg.inv(wrap(torch.zeros(3, 3)))
        x = wrap(torch.ones(3, 3))
        a = x * 2
        b = bad + 1
        c = a + 3
        d = b * c
        assert lazyeng.unwrap(c).tolist() == [[5.0] * 3] * 3
        with pytest.raises(torch.linalg.LinAlgError) as caught:
            lazyeng.unwrap(d)
    path = caught.value.path
    assert [re.sub(r"#\d+", "", name) for name in path][-2:] == ["add", "mul"]
    lazyeng.synchronize()


def test_a_member_whose_input_was_changed_fails_alone():
    x, y = torch.ones(5), torch.ones(5)
    with lazy("deferred"):
        a = wrap(y) * 2
        b = x + 1
        c = a + 1
        d = b + c
    _C.call_outside(x.add_, (1,), {})
    assert lazyeng.unwrap(c).tolist() == [3.0] * 5
    with pytest.raises(RuntimeError, match="was changed in place") as caught:
        lazyeng.unwrap(d)
    assert caught.value.op == "aten.add.Tensor"


def test_an_argument_that_does_not_fit_fails_its_own_op():
    x = torch.ones(5, dtype=torch.int8)
    with pytest.raises(RuntimeError) as eager:
        x.clone().fill_(300)
    with lazy("deferred"):
        y = wrap(x) + 1
        z = y.clone()
        with pytest.raises(RuntimeError) as caught:
            lazyeng.unwrap(z.fill_(300) + 1)
        assert str(caught.value) == str(eager.value)
        assert lazyeng.unwrap(y).tolist() == [2] * 5


# --- threads and the report


def test_a_group_takes_over_the_threads_settings():
    x = torch.full((64,), 1e-30)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        expected = x * 1e-10 * 1e10
        with lazy("deferred"):
            flushed = wrap(x) * 1e-10 * 1e10
            torch.set_flush_denormal(False)
            kept = wrap(x) * 1e-10 * 1e10
            results = lazyeng.unwrap([flushed, kept])
    finally:
        torch.set_flush_denormal(False)
    same_bits(results[0], expected)
    same_bits(results[1], x * 1e-10 * 1e10)
    assert expected.sum() == 0 and results[1].sum() != 0


def test_many_threads():
    x = torch.randn(50, 50)
    expected = chain(x)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: torch.equal(fused(chain, x), expected), range(80)))


def test_log():
    script = """
import torch, lazyeng
x = torch.ones(1000)
with lazyeng.lazy("deferred"):
    y = lazyeng.wrap(x) * 2 + 1
    y.wait()
"""
    done = alone(script, timeout=90, LAZYENG_LOGS="fusion")
    assert re.search(r"lazyeng fusion: 2 ops, 1000 elements, 4000 bytes not written", done.stderr)


def test_the_log_tells_what_has_run():
    """Not what was going to: a group whose op raises an error runs unfused."""
    script = """
import torch, lazyeng
x = torch.arange(1000)
with lazyeng.lazy("deferred"):
    for divisor in (x + 1, x):
        y = lazyeng.wrap(x) * 2 // divisor + 1
        try:
            y.wait()
        except RuntimeError as error:
            print(error)
"""
    done = alone(script, timeout=90, LAZYENG_LOGS="fusion")
    lines = [line for line in done.stderr.splitlines() if "floor_divide" in line]
    assert done.stdout == "ZeroDivisionError\n", done.stderr
    assert re.search(r": [34] ops, 1000 elements, \d+ bytes not written, (avx|gen)\w+: ", lines[0])
    assert re.search(r": [34] ops, 1000 elements, 0 bytes not written, unfused: ", lines[-1])
