"""Windows that repeat are replayed (csrc/fuse/step_plan.h): same bits, and other calls are seen."""

import contextlib
import itertools
import random
import warnings

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import _C, lazy, wrap

from .programs import random_programs as programs
from .programs.fusion_programs import Dag
from .support import fresh
from .support.fusion_runs import same_bits

ROUNDS = 5  # a window is partitioned twice, then replayed


def replayed():
    return lazyeng.engine_stats()["replayed"]


def run_loop(step, rounds, mode="deferred"):
    """What `step(round)` returns in each round of a lazy loop, as plain tensors; and how many ops
    were replayed in each."""
    results, counts = [], []
    for i in rounds:
        before = replayed()
        with lazy(mode):
            made = lazyeng.unwrap(step(i))
        results.append([x.clone() for x in made])
        counts.append(replayed() - before)
    return results, counts


def compare(step, rounds=range(ROUNDS), mode="deferred"):
    rounds = list(rounds)
    got, counts = run_loop(lambda i: step(wrap, i), rounds, mode)
    for i, found in zip(rounds, got, strict=True):
        expected = step(lambda x: x, i)
        for a, b in zip(found, expected, strict=True):
            same_bits(a, b)
    return counts


def data(i, *shape, dtype=torch.float32):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(i)) * 4).to(dtype)


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_random_programs_over_other_data(mode, first):
    """Each step over other numbers; which tensors are held when it ends differs as well."""
    total = 0
    for seed in range(first, first + 8):

        def step(as_lazy, i, seed=seed):
            def other(x):
                return as_lazy(x.copy_(x.roll(i, -1)) if x.dim() else x)

            made = Dag(seed, other, True, rows=seed % 2 == 1, folds=seed % 3 == 1).run(12)
            return made if i % 2 else made[-3:]

        total += sum(compare(step, mode=mode))
    if mode == "deferred":  # (in the other, workers fetch the windows where they like)
        assert total > 0


@pytest.mark.parametrize("seed", range(6))
def test_random_views_and_writes(seed):
    """Programs of views, storages, resizes, draws: each run five times in one block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = programs.generate(seed, 300)
        shared = programs.make_shared()
        expected = programs.outcome(
            programs.interpret(program, programs.make_state(seed, shared)), lambda x: x
        )
        before = replayed()
        with lazy("deferred"):
            for _ in range(ROUNDS):
                state = programs.make_state(seed, [wrap(x.clone()) for x in shared])
                state.slots = [wrap(x) for x in state.slots]
                programs.interpret(program, state)
                got = programs.outcome(state, lazyeng.unwrap)
                assert programs.differences(expected, got) == []
        assert replayed() > before


@pytest.fixture
def no_trial_is_due():
    """What a trial finds out about an op (csrc/fuse/bits/trials.h) has all loops planned anew:
    those that other tests have made due come first."""
    with lazy("deferred"):
        for _ in range(40):
            x = wrap(torch.zeros(8))
            for _ in range(100):
                x = x + 1
            lazyeng.unwrap(x)


def test_a_loop_is_replayed(no_trial_is_due):
    counts = compare(lambda as_lazy, i: [(as_lazy(data(i, 64)) * i + 1).relu() - 0.5])
    assert counts[0] == counts[1] == 0
    assert min(counts[3:]) > 0  # (the first call of an op may run at the call)


def test_another_shape_falls_back_for_that_step_only(no_trial_is_due):
    shapes = [64] * 6 + [65, 64, 66, 66, 64]

    def step(as_lazy, i):
        x = as_lazy(data(i, shapes[i]))
        return [((x * 2 + 1).relu() - x).neg()]

    counts = compare(step, range(len(shapes)))
    assert [count > 0 for count in counts[5:]] == [True, False, True, False, False, True]


def test_another_path_falls_back_for_that_step_only(no_trial_is_due):
    paths = "aaaaaabacca"

    def step(as_lazy, i):
        x = as_lazy(data(i, 64)) * 2
        return [{"a": x.relu, "b": x.abs, "c": x.neg}[paths[i]]() + 1]

    counts = compare(step, range(len(paths)))
    assert [count > 0 for count in counts[5:]] == [True, False, True, False, False, True]


def test_batches_of_one_tensor(no_trial_is_due):
    """Where a view begins in its storage is not known to a plan: that of a number is another."""
    rows = data(0, 64, 32)

    def step(as_lazy, i):
        x = as_lazy(rows)
        batch, target, one = x[i * 4 : i * 4 + 4], x[63 - i], x[i, i]
        return [((batch * 2 + one).relu() - target).square(), batch.t().contiguous() + 1]

    plans = _C.plan_count()
    counts = compare(step, range(10))
    assert min(counts[3:]) > 0
    assert _C.plan_count() - plans <= 3  # (programs of groups, by whether a result is held)


def test_views_that_begin_together_or_not(no_trial_is_due):
    """Only where both views are one may a group write it and go on with what it wrote."""
    # (x[0] would begin where x does.)
    places = [
        (1, 5),
        (2, 9),
        (7, 3),
        (5, 8),
        (4, 4),
        (8, 1),
        (6, 6),
        (2, 2),
        (3, 8),
        (9, 9),
        (9, 2),
    ]

    def step(as_lazy, i):
        x = as_lazy(data(i, 12, 32))
        a, b = x[places[i][0]], x[places[i][1]]
        a.mul_(2).add_(1)
        y = b * 3 + a
        b.sub_(y)
        return [x, y, a.abs() + 1]

    counts = compare(step, range(len(places)))
    assert counts[3] > 0 and counts[8] > 0
    assert counts[4] == counts[6] == 0  # the first two windows of the other kind
    assert counts[7] > 0


def views_placed_anew(seed, as_lazy, i):
    """A program of pointwise ops on views of two tensors, in place or not: the same ops for each
    `i`, on views that begin elsewhere, together or not."""
    ops, places = random.Random(seed), random.Random(f"{seed} {i // 3}")
    bases = [as_lazy(data(i + k, 12, 8, 4)) for k in range(2)]
    made = [as_lazy(data(i, 4))]

    def view():
        base, kind = bases[ops.randrange(2)], ops.randrange(5)
        k = places.choice([1, 1, 1, 2, 3, 4])
        views = [
            lambda: base[k, k],
            lambda: base[k][:, k % 4].reshape(4, 2)[:, 0],
            lambda: base.view(-1)[k * 4 : k * 4 + 4],
            lambda: base[k, :4].t()[k % 4],
            lambda: base.view(-1).view(torch.int32)[k * 4 : k * 4 + 4].view(torch.float32),
        ]
        return views[kind]()

    for _ in range(25):
        a, b = view(), ops.choice([view, lambda: made[ops.randrange(len(made))]])()
        kind = ops.randrange(6)
        if kind == 0:
            a.copy_(b)
        elif kind == 1:
            a.mul_(0.5).sub_(b)
        elif kind == 2:
            torch.maximum(a, b, out=a) if seed % 2 else a.clamp_(min=b)
        elif kind == 3:
            made.append(a * 2 + b)
        else:
            made.append(((a > b) & (b > 1)).float() if kind == 4 else a.neg())
    return [*bases, *made]


@pytest.mark.parametrize("seed", range(20))
def test_views_placed_anew(seed):
    """Each placing comes three times: the plan of one may be replayed for another only if that
    shares as much."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = compare(lambda as_lazy, i: views_placed_anew(seed, as_lazy, i), range(24))
    assert sum(counts) > 0


def test_more_views_than_a_plan_looks_at():
    rows = data(0, 600, 8)

    def step(as_lazy, i):
        x = as_lazy(rows)
        return [sum(x[(i + k) % 600] * 2 for k in range(400))]

    compare(step)


NUMBERS = {
    "power": (lambda x, n: (x + 1).pow(n) * 2, [2, 2, 2, 3, -1, 0.5, 2.5, 2]),
    "alpha": (lambda x, n: torch.add(x + 1, x, alpha=n) * 2, [1, 1, 1, 2, 3, 0.5, 1]),
    "rsub": (lambda x, n: torch.rsub(x + 1, x, alpha=n) * 2, [1, 1, 1, 2, 1]),
    "lerp": (lambda x, n: (x + 1).lerp(x * 3, n) * 2, [0.5, 0.5, 0.5, 1.0, 0.25, 1.0]),
    "clamp": (lambda x, n: (x + 1).clamp(-n, n) * 2, [1, 1, 1, 2, 3, float("nan"), 1]),
    "add": (lambda x, n: (x + n) * 2, [1, 1, 1, 2.5, float("nan"), float("inf"), 2**40]),
    "threshold": (lambda x, n: F.threshold(x + 1, n, 20) * 2, [1, 1, 1, 2, float("nan"), 1]),
    "correction": (
        lambda x, n: x.reshape(4, 16).var(-1, correction=n) * 2,
        [1, 1, 1, 0, 2, 1],
    ),
    "fill": (lambda x, n: torch.full_like(x, n) * 2 + x, [1, 1, 1, 2, float("nan")]),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_are_those_of_the_step(name, dtype):
    function, numbers = NUMBERS[name]
    compare(
        lambda as_lazy, i: [function(as_lazy(data(i, 64, dtype=dtype)), numbers[i])],
        range(len(numbers)),
    )


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("op", [torch.floor_divide, torch.remainder, torch.fmod])
def test_divisors_are_those_of_the_step(op, as_tensor):
    divisors = [3, 3, 3, 0, 5, -1, 1000, 3]

    def step(as_lazy, i):
        x = as_lazy(data(i, 64, dtype=torch.int32)) + 1
        by = as_lazy(torch.tensor(divisors[i], dtype=torch.int32)) if as_tensor else divisors[i]
        return [op(x, by) * 2]

    for i in range(len(divisors)):
        if divisors[i]:
            compare(lambda as_lazy, _, i=i: step(as_lazy, i), [0])
            continue
        with pytest.raises(RuntimeError) as eager:
            step(lambda x: x, i)
        with pytest.raises(RuntimeError) as deferred, lazy("deferred"):
            lazyeng.unwrap(step(wrap, i))
        assert str(deferred.value).startswith(str(eager.value))


def test_one_tensor_or_several():
    """The same calls on one tensor, on equal ones, on views of one, and on overlapping ones."""

    def step(as_lazy, i):
        base = as_lazy(data(i, 80))
        a = base[:64]
        b = [a, base[:64], as_lazy(data(i, 64)), base[8:72], base[16:80]][i % 5]
        c = (a * 2 + b).relu()
        a.add_(1)
        return [c + b, b * a, base]

    compare(step, [*itertools.chain.from_iterable([k] * 3 for k in range(5)), *range(10)])


def test_random_order_of_several_steps():
    """Windows of six kinds, in any order, in one block and read at changing places."""
    choice = random.Random(3)
    x = data(0, 64)

    def step(x, kind):
        y = x * 2 + kind if kind % 2 else (x - 1).abs()
        y = y.relu() if kind % 3 else y + x
        return y.cumsum(0) if kind == 5 else y

    kinds = [(choice.randrange(6), choice.random() < 0.3) for _ in range(300)]
    expected = [x]
    for kind, _ in kinds:
        expected.append(step(expected[-1], kind).clamp(-9, 9))
    for mode in ("async", "deferred"):
        with lazy(mode):
            y = wrap(x)
            for i, (kind, read) in enumerate(kinds):
                y = step(y, kind).clamp(-9, 9)
                if read:
                    same_bits(lazyeng.unwrap(y), expected[i + 1])
            same_bits(lazyeng.unwrap(y), expected[-1])


def test_a_failure_is_that_of_its_op():
    def step(i):
        x = wrap(torch.arange(1, 65, dtype=torch.int32)) + 1
        y = x * 2
        z = y // (x - 2 if i == 4 else x)
        return y, z + 1

    for i in range(7):
        with lazy("deferred"):
            y, z = step(i)
            assert lazyeng.unwrap(y)[0] == 4
            if i != 4:
                assert lazyeng.unwrap(z)[0] == 3
                continue
            with pytest.raises(RuntimeError, match="ZeroDivisionError") as raised:
                lazyeng.unwrap(z)
            assert raised.value.op == "aten.floor_divide"
            assert raised.value.creation_stack[-1].line.startswith("z = y // (x - 2")


def test_other_settings_are_other_windows():
    before = torch.get_num_threads()

    def step(as_lazy, i):
        torch.set_num_threads(1 if i % 2 else before)
        x = as_lazy(data(i, 1 << 16))
        return [(x * 2 + 1).sum(), (x + 1).mean()]

    try:
        compare(step, range(8))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("read", [False, True])
def test_training_loop(mode, read):
    """Bias corrections and learning rates change in each step; windows are cut anywhere."""

    def train(lazily):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
        losses = []
        with lazy(mode) if lazily else contextlib.nullcontext():
            for i in range(120):
                batch = 32 if i % 40 != 39 else 20
                loss = F.cross_entropy(model(x[:batch]), y[:batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item() if read else loss.detach())
        state = [p.detach() for p in model.parameters()]
        return [float(loss) for loss in losses], [lazyeng.unwrap(p).clone() for p in state]

    before = replayed()
    losses, parameters = train(True)
    if mode == "deferred":  # (in the other, workers fetch the windows where they like)
        assert replayed() > before
    expected, wanted = train(False)
    assert losses == expected
    for a, b in zip(parameters, wanted, strict=True):
        same_bits(a, b)


def test_what_is_found_out_later_counts():
    """A function joins groups after a trial: a loop replayed without it is planned anew."""
    done = fresh.run(
        """
import torch, lazyeng
from lazyeng import _C

x = torch.linspace(-4, 4, 64, dtype=torch.float64)
expected, launches, replayed = torch.tanh(x * 2 + 1) * 3, [], []
with lazyeng.lazy("deferred"):
    for _ in range(600):
        before = lazyeng.engine_stats()
        assert lazyeng.unwrap(torch.tanh(lazyeng.wrap(x) * 2 + 1) * 3).equal(expected)
        now = lazyeng.engine_stats()
        launches.append(now["launches"] - before["launches"])
        replayed.append(now["replayed"] - before["replayed"])
print(_C.tried_ops()["aten::tanh"][1], launches[9], launches[-1], replayed[9], replayed[-1])
"""
    )
    assert done.returncode == 0, done.stderr
    verdict, *numbers = done.stdout.split()
    launches_before, launches_after, replayed_before, replayed_after = map(int, numbers)
    assert replayed_before > 0 and replayed_after > 0
    assert verdict != "untried"
    assert (launches_after < launches_before) == (verdict != "other")


def test_numbers_are_no_part_of_plans():
    """A learning rate that changes in each step; a value that memory is filled with."""

    def step(wrapped, i):
        torch.manual_seed(i)
        lists = [[wrapped(torch.rand(3)), wrapped(torch.rand(4))] for _ in range(4)]
        count = lists[0][0].new_full((), i + 1.0, dtype=torch.float32)
        torch._fused_adamw_(
            *lists, [], [count, count], lr=0.1 / (i + 1), beta1=0.9, beta2=0.99, eps=1e-8,
            weight_decay=0.1 * i, amsgrad=False, maximize=False,
        )  # fmt: skip
        sums = [[wrapped(torch.rand(3))] for _ in range(2)]
        torch._fused_sgd_(
            *sums, [], lr=0.1 / (i + 1), momentum=0.0, dampening=0.0, weight_decay=0.1 * i,
            nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
        return [x for tensors in (*lists, *sums) for x in tensors]

    run_loop(lambda i: step(wrap, i), range(2))
    plans = lazyeng.engine_stats()["plans"]
    compare(step, range(2, 12))
    assert lazyeng.engine_stats()["plans"] == plans
