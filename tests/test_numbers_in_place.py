"""Numbers written in place, which run at the call where nothing waits for the old ones."""

import contextlib
import warnings

import pytest
import torch

import lazyeng

MODES = ["async", "deferred", "sync"]


def counts(table):
    """Confusion matrix."""
    for a, b in [(0, 1), (1, 1), (0, 1), (2, 0)]:
        table[a, b] += 1
    return table


def path(table):
    """Dynamic programming, whose cells are read as numbers as well."""
    table[0, 0] = 0.5
    for i in range(1, 3):
        for j in range(1, 3):
            table[i, j] = 1 + min(table[i - 1, j], table[i, j - 1], table[i - 1, j - 1])
    return table


def old_value_is_read_later(table):
    before = table * 2  # recorded, and perhaps not run when the cell changes
    row = table[1]
    total = row.sum()
    table[1, 1] = 7
    return torch.cat([before, table, (row + total)[None]])


def written_by_results(table):
    for i in range(3):
        table[i, 0] = (table[:, 2] * i).sum()
        table[i, 1].mul_(3).add_(table[i, 0], alpha=0.5).sub_(1).div_(2)
    return table


def other_dtypes(table):
    table[0, 0] = torch.tensor(3)
    table[0, 1] = True
    table[0, 2] = torch.tensor([2.5], dtype=torch.float64)
    table[1, 0].fill_(2)
    table[1, 1].zero_()
    table[1, 2].clamp_(max=0.1)
    return table


def views_and_copies(table):
    view, copy = table.view(-1), table.clone()
    view[4] = -1
    assert view[4].item() == -1
    table[1, 1] += 1
    return torch.stack([view, copy.view(-1)])


PROGRAMS = [counts, path, old_value_is_read_later, written_by_results, other_dtypes,
            views_and_copies]  # fmt: skip


def table(lazy):
    plain = torch.arange(9.0).reshape(3, 3) / 4
    return lazyeng.wrap(plain) if lazy else plain


def reads_often(x):
    for _ in range(4):
        x.sum().item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lazy", [False, True], ids=["plain", "lazy"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program, lazy, mode):
    want = program(table(False)).tolist()
    for reads in (False, True):
        given = table(lazy)
        with lazyeng.lazy(mode):
            if reads:
                reads_often(given)
            assert program(given).tolist() == want


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_gradients_go_through_a_number_that_is_written(inside):
    def program(weights):
        row = weights * 1.0
        assert row.sum().item() == 3
        row[1] = weights.sum()
        assert row[1].item() == 3
        with torch.no_grad():
            row[2] *= 2
        (row * row).sum().backward()
        return weights.grad

    plain = torch.ones(3, requires_grad=True)
    want = program(plain)
    weights = lazyeng.wrap(torch.ones(3)).requires_grad_()
    with lazyeng.lazy() if inside else contextlib.nullcontext():
        got = program(weights)
    assert torch.equal(torch.as_tensor(got), want)


def test_what_autograd_saved_and_the_program_changed_is_told():
    weights = torch.ones(3, requires_grad=True)
    x = torch.ones(3)
    with lazyeng.lazy():
        reads_often(x)
        product = (weights * x).sum()
        assert product.item() == 3
        x[0] = 5  # saved by the product
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.parametrize("lazy", [False, True], ids=["plain", "lazy"])
def test_refused_as_in_eager(lazy):
    def message(values, write):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            write(values)
            values.sum().item()
        return str(caught.value)

    for write in (
        lambda x: x[0].add_(0.5),  # an integer
        lambda x: x.__setitem__(7, 1),
        lambda x: x[0].copy_(torch.ones(2, dtype=torch.int64)),
        lambda x: x[0].floor_divide_(0),
    ):
        want = message(torch.arange(3), write)
        given = torch.arange(3)
        with lazyeng.lazy():
            given = lazyeng.wrap(given) if lazy else given
            reads_often(given)
            assert message(given, write) == want


def test_warnings_are_those_of_the_line():
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with lazyeng.lazy(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.zeros(3)
            reads_often(x)
            x[1].copy_(torch.ones((), dtype=torch.complex64))  # loses an imaginary part
            assert x.tolist() == [0, 1, 0]
    finally:
        torch.set_warn_always(always)
    assert {w.filename for w in caught if "imaginary" in str(w.message)} == {__file__}


def test_a_failed_tensor_stays_failed():
    with lazyeng.lazy():
        x = torch.arange(3.0)
        reads_often(x)
        bad = lazyeng.wrap(x)[torch.tensor([7, 1])]
        bad[0] = 1.0
        with pytest.raises(IndexError, match="out of bounds"):
            bad.sum().item()


def test_ops_are_counted():
    with lazyeng.lazy():
        x = torch.zeros(3)
        assert x[0].item() == 0
        before = lazyeng.engine_stats()
        for i in range(3):
            x[i] = i
        after = lazyeng.engine_stats()
    assert after["recorded"] - before["recorded"] == 3
    assert after["executed"] - before["executed"] == 3


# ---- numbers read in inference mode, under autocast, and after a transform


@pytest.mark.parametrize(
    "scope",
    [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu")],
    ids=["inference", "no_grad", "autocast"],
)
def test_numbers_are_read_in_each_scope(scope):
    model = torch.nn.Linear(4, 3)
    x = torch.ones(2, 4)
    with scope():
        want = [model(x)[0, 0].item(), bool((model(x) > 0).any()), float(x.mean())]
    with lazyeng.lazy(), scope():
        for _ in range(4):
            got = [model(x)[0, 0].item(), bool((model(x) > 0).any()), float(x.mean())]
            assert got == want


def test_a_program_that_reads_after_a_transform_and_within_one():
    x = torch.arange(6.0).reshape(2, 3)
    want = torch.vmap(lambda row: row.cumsum(0).sum())(x)
    with lazyeng.lazy():
        for _ in range(3):
            reads_often(x)
            assert torch.equal(torch.vmap(lambda row: row.cumsum(0).sum())(x), want)
            grads = torch.func.grad(lambda row: row.cumsum(0).square().sum())(x[0])
            assert grads.tolist() == [8.0, 8.0, 6.0]

        def reads_within(row):
            reads_often(x)
            return row.cumsum(0).sum()

        assert torch.equal(torch.vmap(reads_within)(x), want)


def test_arrays_and_lists_share_memory_and_wait(mode):
    plain = torch.zeros(3)
    with lazyeng.lazy(mode):
        plain += 1
        assert plain.tolist() == [1, 1, 1]
        plain += 1
        array = plain.numpy()
        assert array.tolist() == [2, 2, 2]
        array[0] = 9
        assert plain.sum().item() == 13
        lazy = plain * 2
        shared = lazy.numpy()
        shared[1] = -1
        assert lazy.tolist() == [18, -1, 4]
        lazy.add_(1)
        assert lazy.sum().item() == 24 and shared.tolist() == [19, 0, 5]
        with pytest.raises(RuntimeError, match="requires grad"):
            torch.ones(2, requires_grad=True).numpy()
        with pytest.raises(RuntimeError, match="requires grad"):
            (torch.ones(2, requires_grad=True) * 2).numpy()
        with pytest.raises(TypeError, match="BFloat16"):
            lazy.bfloat16().numpy()


def test_modes_and_subclasses_see_an_array_being_asked_for():
    seen = []

    class Sees(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with lazyeng.lazy():
        assert torch.ones(2).as_subclass(Sees).numpy().tolist() == [1, 1]
        assert "numpy" in seen
        seen.clear()
        x = torch.ones(2)
        with Mode():
            assert x.tolist() == [1, 1]
        assert "tolist" in seen


@pytest.mark.parametrize(
    "scope",
    [contextlib.nullcontext, torch.inference_mode, lambda: torch.autocast("cpu")],
    ids=["usual", "inference", "autocast"],
)
def test_a_number_is_read_where_it_lies(scope):
    with lazyeng.lazy(), scope():
        x = torch.ones(3) * 2
        total = x.sum()
        before = lazyeng.engine_stats()["fallbacks"]
        assert total.item() == 6 and bool(total) and float(total) == 6
        assert lazyeng.engine_stats()["fallbacks"] == before
