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
