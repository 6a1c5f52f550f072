"""`plain.data = lazy`, and conversions of modules inside lazy(), which are made of it."""

import pytest
import torch

import lazyeng
from lazyeng import LazyTensor, lazy, unwrap, wrap


def test_plain_takes_the_memory_of_a_lazy_one(mode):
    plain, value = torch.zeros(2, requires_grad=True), wrap(torch.ones(3))
    with lazy(mode):
        value = value * 2
        plain.data = value
        assert type(plain) is torch.Tensor and plain.requires_grad
    assert plain.tolist() == [2.0, 2.0, 2.0] and type(plain.data) is torch.Tensor
    value.add_(1)
    assert plain.tolist() == [3.0, 3.0, 3.0]  # one memory, as in eager


def test_writes_recorded_before_go_to_the_old_memory(lazy_mode):
    plain, old = torch.zeros(2), torch.zeros(2)
    plain.data = old
    with lazy(lazy_mode):
        plain.add_(1)
        plain.data = torch.ones(2) * 5
        plain.add_(1)
    assert plain.tolist() == [6.0, 6.0] and old.tolist() == [1.0, 1.0]


def test_a_failure_is_raised_at_the_assignment(lazy_mode):
    plain = torch.zeros(2)
    with lazy(lazy_mode):
        failed = torch.linalg.inv(torch.zeros(2, 2))
        with pytest.raises(torch.linalg.LinAlgError) as caught:
            plain.data = failed
    assert isinstance(caught.value, lazyeng.LazyError)
    assert plain.tolist() == [0.0, 0.0]


def test_what_torch_refuses_is_refused():
    plain = torch.zeros(2, requires_grad=True)
    with pytest.raises(TypeError):
        plain.data = 3
    with pytest.raises(RuntimeError):
        plain.data = wrap(torch.ones(2, dtype=torch.long))


@pytest.mark.parametrize("convert", [lambda m: m.double(), lambda m: m.to(torch.bfloat16)])
def test_converted_modules_keep_their_parameters(convert, mode):
    """An optimizer made before goes on with them, and shared ones stay shared."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model(torch.ones(1, 2)).sum().backward()
    before = list(model.parameters())
    with lazy(mode):
        convert(model)
        after = list(model.parameters())
        assert [id(p) for p in after] == [id(p) for p in before]
        assert model[1].weight is model[0].weight
        assert all(p.dtype == p.grad.dtype == convert(torch.zeros(0)).dtype for p in after)
    assert all(type(p) is torch.nn.Parameter for p in after)


def test_converted_lazy_modules_keep_their_parameters():
    model = wrap(torch.nn.Linear(2, 2))
    before = model.weight
    model.double()
    assert model.weight is before and isinstance(before, LazyTensor)
    assert unwrap(before).dtype == torch.float64


# --- memory that grows, or cannot


def numbers(n):
    return torch.arange(float(n))


def fail_to_take(n, out):
    torch.take(torch.ones(n), torch.full((n,), 10**8), out=out)


@pytest.mark.parametrize("n", [12, 400_003])
def test_a_kernel_that_throws_once_it_has_resized_its_result(n, mode):
    """What other tensors see of the memory is there."""

    def program(made):
        p = made(numbers(4))
        v = p[:3]
        with pytest.raises(IndexError, match="out of range"):
            fail_to_take(n, p)
            unwrap(p)
        return p.shape, unwrap(v).tolist(), unwrap(v.add(0)).tolist()

    expected = program(lambda x: x)
    with lazy(mode):
        assert program(lambda x: x) == expected
    for ours in (program(wrap), program(lambda x: wrap(x) * 1)):
        assert ours[1:] == expected[1:]


def test_what_an_op_that_was_refused_leaves(mode):
    def program(made):
        base = made(numbers(6))
        out = base.view(2, 3)
        with pytest.raises(RuntimeError, match="memory"):
            torch.cat([base, base], out=out)
        plain = unwrap(out)
        assert plain.numel() * 4 <= plain.untyped_storage().nbytes()
        return plain.tolist() if plain.numel() == 6 else plain.shape, unwrap(base).tolist()

    expected = program(lambda x: x)
    with lazy(mode):
        assert program(lambda x: x)[1] == program(wrap)[1] == expected[1]
    assert program(wrap)[1] == expected[1]


@pytest.mark.parametrize("resize", [
    lambda x: x.resize_(200_000), lambda x: torch.add(torch.ones(200_000), 1, out=x),
    lambda x: x.resize_as_(torch.ones(200_000)),
])  # fmt: skip
@pytest.mark.parametrize("array_of", [lambda x: x.numpy(), lambda x: unwrap(x).numpy()])
def test_memory_of_an_array_does_not_grow(resize, array_of, mode):
    def check(x):
        array = array_of(x)
        with pytest.raises(RuntimeError, match="not resizable"):
            resize(x)
        assert array[:4].tolist() == [0, 1, 2, 3] and array[-1] == 99_999

    check(numbers(100_000))
    check(wrap(numbers(100_000)))
    check(wrap(numbers(100_000)) * 1)
    with lazy(mode):
        check(numbers(100_000))
        check(wrap(numbers(100_000)))
        check(numbers(100_000) * 1)
