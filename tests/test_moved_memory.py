"""Storages that grow or move by calls that nobody records: lazy tensors over them follow."""

import pytest
import torch

import lazyeng
from lazyeng import lazy, unwrap, wrap
from tests.support import fresh

SMALL, LARGE = 6, 100_000


def numbers():
    return torch.arange(float(SMALL))


def fill_freed_memory():
    return [torch.full((SMALL,), -1.0) for _ in range(50)]


MOVES = {
    "resize_": lambda b: b.resize_(LARGE),
    "resize_as_": lambda b: b.resize_as_(torch.ones(LARGE)),
    "out": lambda b: torch.add(torch.zeros(LARGE), 1, out=b),
    "storage": lambda b: b.untyped_storage().resize_(4 * LARGE),
    "set_": lambda b: torch.zeros(0).set_(b.untyped_storage(), 0, (LARGE,), (1,)),
}
KINDS = {
    "a view from a block": lambda b, mode: in_block(mode, lambda: b[1:]),
    "wrapped": lambda b, _: wrap(b)[1:],
    "computed": lambda b, _: wrap(b)[1:].view(-1),
}
USES = {
    "op": lambda v: (v * 1).tolist(),
    "method": lambda v: v.add(0).tolist(),
    "read": lambda v: v.tolist(),
    "item": lambda v: [v[i].item() for i in range(len(v))],
    "unwrap": lambda v: unwrap(v).tolist(),
    "numpy": lambda v: v.numpy().tolist(),
}


def in_block(mode, function):
    with lazy(mode):
        return function()


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_eager_code_moves_a_plain_tensor(move, kind, use, mode):
    def program(view_of):
        b = numbers()
        view = view_of(b)
        MOVES[move](b)
        kept = fill_freed_memory()
        first = USES[use](view)
        b[2] = 20
        del kept
        return first, USES[use](view), b[:SMALL].tolist()

    assert program(lambda b: KINDS[kind](b, mode)) == program(lambda b: b[1:])


@pytest.mark.parametrize("move", MOVES)
def test_writes_through_both_after_the_move(move, mode):
    def program(made):
        b = numbers()
        x = made(b)
        MOVES[move](b)
        x.add_(1)
        kept = fill_freed_memory()
        b.mul_(2)
        x.add_(1)
        del kept
        return unwrap(x)[:SMALL].tolist(), b[:SMALL].tolist()

    assert program(wrap) == program(lambda b: b.view(-1))
    assert program(lambda b: in_block(mode, lambda: b.view(-1))) == program(lambda b: b.view(-1))


def test_a_pending_read_of_memory_that_moves_fails_or_is_right():
    b = numbers()
    with lazy("deferred"):
        y = wrap(b) * 2
    torch.add(torch.zeros(LARGE), 1, out=b)
    try:
        assert y.tolist() == [0, 2, 4, 6, 8, 10]
    except RuntimeError as error:
        assert "was changed in place" in str(error)


def test_a_tensor_that_takes_a_storage_and_lets_it_grow(mode):
    def program(made):
        b = made(numbers())
        c = b + 0
        x = made(torch.zeros(0))
        x.set_(b.untyped_storage(), 0, (12,), (1,))
        b += 1
        x += 1
        b += 1
        return unwrap(b).tolist(), unwrap(x)[:SMALL].tolist(), unwrap(b * 1).tolist(), c.tolist()

    expected = program(lambda t: t)
    assert program(wrap) == expected
    with lazy(mode):
        assert program(lambda t: t) == expected
        assert program(wrap) == expected


def test_what_is_known_of_one_storage_is_not_believed_of_a_smaller_one(mode):
    def view(t):
        return t.as_strided((1000,), (1,))

    with lazy(mode):
        grown = wrap(torch.ones(1))
        grown.untyped_storage().resize_(4096)
        assert view(grown).shape == (1000,)
        for other in (torch.ones(1), wrap(torch.ones(1)), wrap(torch.ones(1)) * 1):
            with pytest.raises(RuntimeError, match="out of bounds for storage"):
                view(other)


def test_a_write_of_a_part_keeps_the_failure_of_the_rest():
    x = wrap(torch.ones(1))
    x.untyped_storage().resize_(64)
    y = x.as_strided((16,), (1,))
    y.mul_(wrap(torch.ones(1))[torch.tensor([9])])
    x.zero_()
    with pytest.raises(IndexError):
        y.tolist()
    lazyeng.synchronize()


GROWS_WHILE_READ = """
import torch, lazyeng
from lazyeng import lazy, wrap
LARGE = 1500
p = torch.ones(LARGE, LARGE)
ways = [lambda: p.resize_(2 * LARGE, LARGE), lambda: p.resize_as_(torch.ones(3 * LARGE, LARGE))]
for grow in ways:
    x = wrap(p)[:LARGE]
    y = x @ x  # on a worker, some 20 ms
    grow()
    assert (y == LARGE).all().item()
    p.fill_(1)
"""


def test_a_plain_tensor_that_grows_waits_for_those_who_read_it():
    done = fresh.run(GROWS_WHILE_READ, timeout=120)  # (it was a segmentation fault)
    assert done.returncode == 0, done.stderr


LOSSES = {
    "mse_loss": torch._C._nn.mse_loss,
    "smooth_l1_loss": torch._C._nn.smooth_l1_loss,
    "huber_loss": torch._C._nn.huber_loss,
    "soft_margin_loss": torch._C._nn.soft_margin_loss,
    "binary_cross_entropy": lambda x, y, reduction, out: torch._C._nn.binary_cross_entropy(
        x, y, None, reduction, out=out),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_kernels_that_resize_their_result_for_a_while(loss, mode):
    """To the shape of the losses, and back to that of their sum: the storage stays another one."""
    x, y, out = torch.rand(300), torch.rand(300), torch.full((), -7.0)
    alias = out[None]
    expected = LOSSES[loss](x, y, 2, out=torch.full((), -7.0))
    with lazy(mode):
        result = LOSSES[loss](x, y, 2, out=out)
        twice = out * 2
    assert torch.equal(out, expected) and torch.equal(alias, expected[None])
    assert torch.equal(result, expected) and torch.equal(unwrap(twice), expected * 2)
