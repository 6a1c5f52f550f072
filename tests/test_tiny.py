"""The whole of lazyeng in a few lines each; read first. Seconds."""

import pytest
import torch

import lazyeng
from lazyeng import LazyError, LazyTensor, lazy, synchronize, unwrap, wrap


def test_wrapped_tensors_record_and_read():
    x, y = wrap(torch.tensor([1.0, 2.0])), wrap(torch.tensor([3.0, 4.0]))
    z = x + y
    assert type(z) is LazyTensor
    assert z.sum().item() == 10.0


def test_metadata_is_the_real_one():
    z = wrap(torch.zeros(3, 4)).t() * 2
    assert (z.shape, z.dtype, z.device.type, z.stride()) == ((4, 3), torch.float32, "cpu", (1, 4))


def test_plain_tensors_record_inside_lazy(mode):
    with lazy(mode):
        z = torch.ones(2, 2) @ torch.ones(2, 2)
        assert type(z) is LazyTensor
    assert z.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_training_step(mode):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    with lazy(mode):
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
    assert not torch.equal(model.weight, before)


def test_failure_is_raised_at_the_read(lazy_mode):
    with lazy(lazy_mode):
        bad = wrap(torch.ones(3))[torch.tensor([7])]
    with pytest.raises(IndexError, match="out of bounds") as caught:
        bad.tolist()
    assert isinstance(caught.value, LazyError)


def test_wrong_argument_is_raised_at_the_call():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        wrap(torch.ones(2, 3)) @ wrap(torch.ones(2, 3))


def test_wait_ready_synchronize():
    x = wrap(torch.ones(3)) + 1
    assert x.wait() is x
    assert x.is_ready()
    synchronize()


def test_unwrap_gives_a_plain_tensor():
    plain = unwrap(wrap(torch.ones(3)) * 2)
    assert type(plain) is torch.Tensor
    assert plain.tolist() == [2.0, 2.0, 2.0]


def test_statistics():
    lazyeng.reset_stats()
    (wrap(torch.ones(3)) + 1).wait()
    assert lazyeng.engine_stats()["recorded"] >= 1
