"""Writes outside of blocks to lazy tensors whose memory plain ones share: as in eager."""

import copy
import io

import pytest
import torch

import lazyeng
from lazyeng import unwrap, wrap


@pytest.fixture
def slow():
    """One number that the engine takes a while for."""
    a = wrap(torch.full((900, 900), 1e-3))

    def make():
        product = a
        for _ in range(4):
            product = product @ a
        return product.mean() * 0 + 1

    return make


# What looks at plain memory by an operator, and not through a method that waits.
LOOKS = {
    "sum": lambda x: x.sum(),
    "clone": lambda x: x.clone(),
    "compare": lambda x: torch.tensor(torch.equal(x, torch.ones_like(x))),
    "index": lambda x: x[0],
    "into": lambda x: torch.zeros_like(x).copy_(x),
    "stack": lambda x: torch.stack([x, x]),
    "write": lambda x: x.mul_(3),
}


@pytest.mark.parametrize("look", LOOKS)
def test_the_plain_tensor_that_was_wrapped(look, slow):
    plain, eager = torch.zeros(64, 64), torch.zeros(64, 64)
    lazy_one = wrap(plain)
    lazy_one.add_(slow())
    lazy_one[3] = slow() * 2
    eager.add_(1)
    eager[3] = 2
    assert torch.equal(LOOKS[look](plain), LOOKS[look](eager))


def test_the_plain_tensor_that_was_made(slow):
    x = wrap(torch.zeros(64, 64)) + 1
    plain, array = unwrap(x), x.numpy()
    x.add_(slow())
    assert plain.sum().item() == 2 * 64 * 64
    x.add_(slow())
    assert array.sum() == 3 * 64 * 64


def test_lists_of_tensors(slow):
    plain = [torch.zeros(64, 64) for _ in range(3)]
    torch._foreach_add_([wrap(x) for x in plain], [slow() for _ in plain])
    assert [x.sum().item() for x in plain] == [64 * 64] * 3


def test_a_view_of_parameters():
    model = torch.nn.Linear(300, 300)
    flat, before = model.weight.detach().view(-1), model.weight.detach().clone()
    wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(wrap(torch.ones(300, 300))).square().sum().backward()
        optimizer.step()
        assert flat.norm() != before.norm()


def test_what_failed_is_told_by_the_lazy_tensor():
    plain = torch.zeros(3)
    lazy_one = wrap(plain)
    lazy_one.add_(wrap(torch.arange(3.0))[torch.tensor([7])])
    with pytest.raises(RuntimeError, match="is not complete"):  # (not the values of before)
        plain.sum()
    for read in (plain.tolist, lazy_one.tolist):
        with pytest.raises(IndexError, match="out of bounds"):
            read()


LOOKED_AT = {
    "saved": lambda model: torch.save(model.state_dict(), io.BytesIO()),
    "copied": lambda model: copy.deepcopy(model.state_dict()),
    "its storages": lambda model: [p.untyped_storage().nbytes() for p in model.parameters()],
    "unwrapped": lambda model: [unwrap(p).sum() for p in model.parameters()],
    "an array": lambda model: [p.detach().numpy().sum() for p in model.parameters()],
    "its state": lambda model: model.state_dict(),
}


@pytest.mark.parametrize("look", LOOKED_AT.values(), ids=LOOKED_AT)
def test_steps_do_not_wait_after_somebody_has_looked(look):
    model = wrap(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        model(wrap(torch.ones(8, 64))).square().mean().backward()
        optimizer.step()

    step()
    look(model)
    lazyeng.set_sync_debug_mode("error")
    try:
        step()
    finally:
        lazyeng.set_sync_debug_mode("off")


def test_nobody_waits_if_nobody_could_see(slow):
    x = wrap(torch.zeros(64, 64))  # (the plain tensor is gone)
    lazyeng.set_sync_debug_mode("error")
    try:
        x.add_(slow())
    finally:
        lazyeng.set_sync_debug_mode("off")
    assert x.sum().item() == 64 * 64
