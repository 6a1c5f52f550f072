"""What joins groups because a trial found eager's bits (csrc/fuse/bits/trials.h) gives them.

Of each op half of the cases are run, of in-place forms a quarter, always the same ones;
LAZYENG_TEST_ALL_CASES=1 runs all."""

import functools
import itertools
import os
import random
import sys

import pytest
import torch

import lazyeng
from lazyeng import _C, lazy, wrap
from tests.support.processes import printed_by

DTYPES = {torch.float32: torch.int32, torch.float64: torch.int64}
NUMBERS = (0.3, 1, 0.7, -2.5, 0.5, 1e-3)
ZEROS = (0.0, -0.0, 0.0, -0.0)  # twice: whether one has a sign is seen in few results
NOT_FINITE = (float("inf"), float("-inf"), float("nan"))
SPECIAL = (*ZEROS, *NOT_FINITE, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, 88.5, -104.0, 710.0, -746.0)
POOL = 1 << 17
ALL_CASES = bool(os.environ.get("LAZYENG_TEST_ALL_CASES"))

Tensor = torch.Tensor


# These have files of their own: test_fusion_exact_rows.py, test_fusion_nll.py.
REDUCTIONS = (
    *("sum", "mean", "mse_loss", "var", "std", "var_mean", "std_mean", "native_layer_norm"),
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
    *("logsumexp", "nll_loss_forward"),
)


def tried_ops() -> dict[str, torch._ops.OpOverload]:
    """Those of the table that torch has: in-place forms of some it has not."""
    ops = {}
    for name in _C.tried_ops():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if base in REDUCTIONS:
            continue
        packet = getattr(torch.ops.aten, base, None)
        if packet and (overload or "default") in packet.overloads():
            ops[name] = getattr(packet, overload or "default")
    return ops


OPS = tried_ops()
BOUNDS = ("beta", "delta", "lambd")
# torch warns of others, or refuses them.
OF_ONE_SHAPE = (
    "binary_cross_entropy_with_logits", "huber_loss", "smooth_l1_loss", "log_sigmoid_backward",
)  # fmt: skip
# A number takes the place of a tensor. And with a weight of 1, which a tensor may hold, the sign of
# a zero that lerp makes depends on which of torch's loops it gets into.
NEVER_FUSED = ("aten::add.Scalar", "aten::sub.Scalar", "aten::rsub.Scalar", "aten::lerp.Tensor")


@functools.cache
def numbers_for(dtype: torch.dtype, place: int) -> Tensor:
    """Of every size, most of them near 1, some with a meaning of their own."""
    generator = torch.Generator().manual_seed(place)
    few = torch.finfo(dtype)
    special = [*SPECIAL, few.tiny, few.tiny / 4, -few.tiny / 8, few.max, few.min]
    x = torch.randn(POOL, generator=generator, dtype=torch.float64) * 3
    power = torch.randint(-20, 20, (POOL,), generator=generator)
    x = torch.where(torch.randint(0, 4, (POOL,), generator=generator) == 0, x * 2.0**power, x)
    which = torch.randint(0, 6 * len(special), (POOL,), generator=generator)
    for i, number in enumerate(special):
        x[which == i] = number
    return x.to(dtype)


def looks(shape: tuple[int, ...], layout: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in memory of a tensor that is, or expands to, that shape."""
    if not shape:
        return (), ()
    if layout == "one":
        return (1,), (1,)
    if layout == "repeated":  # one number for all, or for each row
        return shape, (*(1 for _ in shape[:-1]), 0)
    if layout == "every row":
        return shape, (*(0 for _ in shape[:-1]), 1)
    order = list(range(len(shape)))
    if layout == "transposed":
        order.reverse()
    strides, step = [0] * len(shape), 2 if layout == "with gaps" else 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim] + (layout == "rows")
    return shape, tuple(strides)


def cases(tensors: int, in_place: bool):
    """Shapes, and how the tensors lie."""

    def same(layout):
        return (layout,) * tensors

    others = ("dense", "with gaps", "transposed", "repeated", "every row", "one")
    mixed = [c for c in itertools.product(others, repeat=tensors) if len({*c}) > 1 or tensors == 1]
    if in_place:
        mixed = [c for c in mixed if c[0] in ("dense", "with gaps", "transposed")]
    mixed = itertools.cycle(mixed or [same("dense")])
    for n in range(1, 71):
        yield (n,), same("dense")
        yield (29, n), same("rows")
        yield (31, n), next(mixed)
        yield (n,), next(mixed)
        yield (n, 5), same("transposed")
        yield (n, 7), same("with gaps")
    # Of the last one torch gives each thread a share, which ends in what is no whole vector.
    for shape in ((), (1, 1), (7, 1), (37, 41), (3, 5, 7), (1001,), (3, 1365), (64, 64), (50_003,)):
        for layout in ("dense", "with gaps", "transposed"):
            yield shape, same(layout)
        for _ in range(8):
            yield shape, next(mixed)


class Calls:
    """Every call of the op, again and again of the same numbers."""

    def __init__(self, op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
        self.op = op
        self.in_place = op._schema.is_mutable
        # (Of gelu the approximation stays "none": test_fusion_exact_rows.py has the other.)
        self.named = [arg for arg in op._schema.arguments if str(arg.type) != "str"]
        self.kinds = [str(arg.type) for arg in self.named]
        self.names = [arg.name for arg in self.named]
        tensors = self.kinds.count("Tensor")
        self.pools = [numbers_for(dtype, i) for i in range(tensors)]
        self.cases = list(cases(tensors, self.in_place))
        if op._schema.name.removeprefix("aten::") in OF_ONE_SHAPE:
            self.cases = [case for case in self.cases if len({*case[1]}) == 1]
        self.plain = (13,), ("dense",) * tensors
        if not ALL_CASES:
            sample = random.Random(f"{op} {dtype}")
            share = 0.25 if self.in_place else 0.5
            chosen = (case for case in self.cases if sample.random() < share)
            self.cases = [self.plain, *chosen]

    def arguments(self, case: int):
        shape, layouts = self.cases[case]
        left = list(zip(self.pools, layouts, strict=True))
        numbers = itertools.cycle(NUMBERS[case % 6 :] + NUMBERS[: case % 6])
        for kind, name in zip(self.kinds, self.names, strict=True):
            if kind != "Tensor":
                number = next(numbers)
                # (Of losses each element; what a bound is, is positive.)
                yield {"int": 0, "Optional[Tensor]": None}.get(
                    kind, abs(number) if name in BOUNDS else number
                )
                continue
            pool, layout = left.pop(0)
            size, strides = looks(shape, layout)
            extent = 1 + sum((n - 1) * step for n, step in zip(size, strides, strict=True))
            begin = 997 * case % (POOL - extent)
            memory = pool[begin : begin + extent]
            written = self.in_place and pool is self.pools[0]
            yield (memory.clone() if written else memory).as_strided(size, strides)

    def run(self, case: int, given=lambda x: x) -> Tensor:
        arguments, keywords = [], {}
        for x, argument in zip(self.arguments(case), self.named, strict=True):
            if argument.kwarg_only:
                keywords[argument.name] = x
            else:
                arguments.append(given(x) if torch.is_tensor(x) else x)
        made = self.op(*arguments, **keywords)
        return (made[0] if isinstance(made, tuple) else made) * 1.0


def differing(a: Tensor, b: Tensor) -> int:
    """How many numbers; any NaN is as good as any other."""
    bits = DTYPES[a.dtype]
    same = a.contiguous().view(bits) == b.contiguous().view(bits)
    return int((~(same | (a.isnan() & b.isnan()))).sum())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(OPS))
def test_what_is_tried_gives_the_bits_of_eager(name, dtype, groups):
    calls = Calls(OPS[name], dtype)
    with lazy("deferred"):
        fused = lazyeng.unwrap([calls.run(i, wrap) for i in range(len(calls.cases))])
    groups()
    with lazy("deferred"):
        lazyeng.unwrap(calls.run(calls.cases.index(calls.plain), wrap))
    found = _C.tried_ops()[name][dtype == torch.float64]
    assert found in ("same", "same if dense", "same if whole", "other")
    of_numbers = found == "same if dense" and ".Scalar" in name
    if found == "other" or not (of_numbers or name.replace("_.", ".") in NEVER_FUSED):
        assert groups() == (found in ("same", "same if dense"))
    bad = {}
    for i, result in enumerate(fused):
        if count := differing(result, calls.run(i)):
            bad[calls.cases[i]] = count
    assert not bad, f"{found}: {len(bad)} of {len(fused)}, {list(bad.items())[:10]}"


LONG_PROGRAM = """if True:
    import torch
    import lazyeng
    from lazyeng import _C
    from tests.programs.fusion_programs import tried_functions

    def run(step, given=lambda x: x):
        generator = torch.Generator().manual_seed(step)
        results, total = [], 0.0
        for dtype in (torch.float32, torch.float64):
            x, y = (torch.randn(1 + step, 9, generator=generator).to(dtype) for _ in range(2))
            x, y = given(x), given(y.t().contiguous().t() if step % 2 else y)
            for i, (tensors, function) in enumerate(FUNCTIONS):
                results.append(function(*(x * 1.5, y)[:tensors]) - 1)
                if i % 9 == 0:
                    total += float(results[-1][0, 0].nan_to_num(0, 0, 0))
        return results, total

    FUNCTIONS = list(tried_functions().values())
    bits = {torch.float32: torch.int32, torch.float64: torch.int64}
    for step in range(40):
        with lazyeng.lazy():
            ours, our_total = run(step, lazyeng.wrap)
            ours = lazyeng.unwrap(ours)
        eager, total = run(step)
        assert total == our_total, step
        for a, b in zip(ours, eager):
            different = a.view(bits[a.dtype]) != b.view(bits[b.dtype])
            assert not (different & ~(a.isnan() & b.isnan())).any(), step
        found = {word for words in _C.tried_ops().values() for word in words}
        if step == 0:
            assert found == {"untried", "wanted"}, found
    assert not {"wanted", "running"} & found, found
    assert {"same", "same if dense", "other"} & found, found
    assert lazyeng.engine_stats()["recorded"] > 4000
"""


def test_a_program_gets_eagers_bits_before_and_after_the_trials():
    """By default they come when a program has gone on for a while."""
    printed_by(LONG_PROGRAM)


@pytest.mark.parametrize("setting", ["set_fusion(False)", "set_inexact_fusion(True)"])
def test_what_is_used_before_fusion_needs_it_is_tried_all_the_same(setting):
    code = f"""if True:
        import torch
        from lazyeng import _C, lazy, synchronize, wrap
        x = wrap(torch.rand(50))
        def record(ops, function):
            with lazy("deferred"):
                for _ in range(ops):
                    function(x)
            synchronize()
        _C.set_ops_before_trials(100)
        _C.{setting}
        record(200, torch.sqrt)
        assert _C.tried_ops()["aten::sqrt"][0] == "wanted"
        _C.set_fusion(True)
        _C.set_inexact_fusion(False)
        record(20, torch.neg)
        assert _C.tried_ops()["aten::sqrt"][0] in ("same", "same if dense", "other")
    """
    printed_by(code)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_trials_leave_no_threads_of_openmp():
    """Those of the recording thread would spin, or make all others sleep between kernels."""
    code = """if True:
        import torch
        from lazyeng import _C, lazy, synchronize, wrap
        from tests.support.thread_names import count_threads
        torch.set_num_threads(4)
        with open("/proc/self/comm") as file:
            name = file.read().strip()  # its helpers have it, too
        x = wrap(torch.rand(50))
        _C.set_ops_before_trials(10)
        with lazy("deferred"):
            y = x.sqrt() + x.exp() + x.tanh()
            before = count_threads(name)
            for _ in range(100):
                x + x
            assert "wanted" not in {words[0] for words in _C.tried_ops().values()}
            assert count_threads(name) == before
    """
    printed_by(code)


def test_ops_whose_first_call_tells_what_they_return_are_tried_too():
    """Large tensors are not made up to ask a kernel."""
    code = """if True:
        import torch
        from lazyeng import _C, lazy, wrap
        names = ("aten::var.correction", "aten::native_layer_norm")
        x = wrap(torch.rand(4096, 256))
        with lazy():
            (x * 2).var(-1), torch.layer_norm(x * 2, (256,))
        assert [_C.tried_ops()[name][0] for name in names] == ["wanted"] * 2
    """
    printed_by(code)


def test_large_tensors_are_fused_from_the_first_call_on():
    """A trial costs less than one such op. A small program comes to it later."""
    code = """if True:
        import torch
        import lazyeng
        from lazyeng import _C, lazy, synchronize
        def groups_of_first_call(rows):
            before = lazyeng.engine_stats()["groups"]
            x = torch.rand(rows, 256)
            with lazy("deferred"):
                y = torch.softmax((x * 2).tanh() - 1, -1)
            synchronize()
            return lazyeng.engine_stats()["groups"] - before
        groups_of_first_call(2)
        assert _C.tried_ops()["aten::tanh"][0] == "wanted"
        groups = groups_of_first_call(8192)
        assert groups == 1, groups
        assert _C.tried_ops()["aten::tanh"][0] == "same"
        assert _C.tried_ops()["aten::_softmax"][0] == "same"
    """
    printed_by(code)
