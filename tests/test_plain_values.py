"""Plain tensors that are used again and again inside lazy() (csrc/run/plain/plain_values.h)."""

import gc

import pytest
import torch

import lazyeng
from lazyeng import lazy, synchronize
from tests.support.processes import printed_by

MODES = ("async", "deferred")


CHANGES = {
    "t_": lambda x: x.t_(),
    "resize_": lambda x: x.resize_(2, 8),
    "as_strided_": lambda x: x.as_strided_((4, 4), (0, 1)),
    "set_": lambda x: x.set_(torch.arange(16.0).view(4, 4)),
    "data": lambda x: setattr(x, "data", torch.full((4, 4), 7.0)),
    "swap": lambda x: torch.utils.swap_tensors(x, torch.full((4, 4), 3.0)),
}


def equal_in_a_block(program, mode, *plain):
    expected = program(*(x.clone() for x in plain))
    with lazy(mode):
        result = program(*plain)
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(lazyeng.unwrap(ours), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHANGES)
def test_a_tensor_that_has_changed_is_seen_as_it_is(name, mode):
    def program(x):
        total = torch.zeros(4, 4) + 1
        for _ in range(3):
            total = total * 2 + x
        CHANGES[name](x)
        return total.sum() + (x * 3 + 1).sum(), (total.flatten()[0] + x).clone()

    x = torch.arange(16.0).view(4, 4)
    equal_in_a_block(program, mode, x)


@pytest.mark.parametrize("mode", MODES)
def test_memory_at_an_address_used_before(mode):
    """Tensors come and go, often at the places of those before."""
    seen = []
    with lazy(mode):
        total = torch.zeros(64) + 0
        for i in range(2000):
            plain = torch.full((64,), float(i))
            total = total + plain
            del plain
            if i % 97 == 0:
                seen.append((i, total))
    for i, value in seen:
        assert value.tolist() == [i * (i + 1) / 2] * 64


@pytest.mark.parametrize("mode", MODES)
def test_what_the_program_drops_is_let_go_of(mode):
    with lazy(mode):
        plain = torch.ones(256, 256)
        result = (torch.zeros(256, 256) + 1) * plain
        held = plain.untyped_storage()._weak_ref()
        del plain
        gc.collect()
        synchronize()
        assert torch.UntypedStorage._expired(held)
        torch.UntypedStorage._free_weak_ref(held)
    assert result.sum().item() == 65536


@pytest.mark.parametrize("mode", MODES)
def test_few_of_the_dropped_are_held_for_a_while(mode):
    """Without any wait: others that come push them out."""
    refs = []
    with lazy(mode):
        total = torch.zeros(100, 100) + 1
        for i in range(3000):
            plain = torch.full((100, 100), float(i))
            refs.append(plain.untyped_storage()._weak_ref())
            total = total + plain
            if i % 50 == 0:
                total.wait()
        total.wait()
        alive = sum(not torch.UntypedStorage._expired(ref) for ref in refs)
    for ref in refs:
        torch.UntypedStorage._free_weak_ref(ref)
    assert alive < 600


LARGE = (512, 256)  # half a MiB


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHANGES)
def test_rows_of_a_large_tensor_that_has_changed(name, mode):
    """Its value is kept while the program takes row after row."""

    def program(x):
        rows = [x[i] * 2 for i in range(8)]
        x[9].fill_(5)
        rows += [x[i] + 0 for i in range(8, 12)]
        CHANGES[name](x)
        return torch.stack([row.sum() for row in rows]), sum(x[i % 2].sum() for i in range(8))

    x = torch.arange(512.0 * 512).view(512, 512)
    equal_in_a_block(program, mode, x)


@pytest.mark.parametrize("mode", MODES)
def test_a_large_tensor_whose_rows_were_taken_is_let_go_of(mode):
    other = torch.ones(4)
    with lazy(mode):
        for use in ("another", "wait", "rows of another"):
            plain = torch.ones(*LARGE)
            total = sum(plain[i].sum() for i in range(20))
            held = plain.untyped_storage()._weak_ref()
            total.wait()
            del plain, total
            assert not torch.UntypedStorage._expired(held)
            if use == "another":
                (other + 1).wait()
            elif use == "wait":
                synchronize()
            else:
                plain = torch.ones(*LARGE)
                for i in range(20):
                    plain[i]
            assert torch.UntypedStorage._expired(held), use
            torch.UntypedStorage._free_weak_ref(held)


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_goes_with_the_tensors_that_it_failed(mode):
    x = torch.ones(4)
    with pytest.raises(IndexError), lazy(mode):
        y = torch.zeros(4) + x  # x is known from here on
        x[torch.tensor([9])] = (y + 1)[:1]
    with lazy(mode):
        again = torch.zeros(4) + x
    assert again.tolist() == [1.0] * 4


@pytest.mark.parametrize("mode", MODES)
def test_a_lazily_copied_tensor_is_a_copy(mode):
    x = torch.ones(64)
    with lazy(mode):
        first = torch.zeros(64) + x
        copy = torch._lazy_clone(x)
        x.add_(1)
        second = torch.zeros(64) + x
        third = torch.zeros(64) + copy
    assert (first[0].item(), second[0].item(), third[0].item()) == (1, 2, 1)


@pytest.mark.parametrize("mode", MODES)
def test_written_in_turns(mode):
    """As an optimizer writes the parameters that each step reads."""

    def program():
        x, total = torch.ones(8, 8), torch.zeros(8, 8)
        for i in range(20):
            total = total + x * (i + 1)
            x.mul_(0.5).add_(total.mean())
        return total, x

    equal_in_a_block(program, mode)


ATTENTION = """
import torch, lazyeng

def attended(rows, wrapped, mode=None):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)
    x = torch.randn(rows, 4, 8)
    if wrapped:
        lazyeng.wrap(module)
    if mode is None:
        return lazyeng.unwrap(module(x, x, x, need_weights=False)[0])
    with lazyeng.lazy(mode):
        found = module(x, x, x, need_weights=False)[0]
    return lazyeng.unwrap(found)

for rows in (2, 600):
    expected = attended(rows, False)
    print([torch.equal(attended(rows, *how), expected) for how in HOW])
"""


@pytest.mark.parametrize("mode", ["async", "deferred", "sync"])
def test_one_object_twice_is_one_in_the_kernel(mode):
    """Attention looks whether query, key and value are one tensor (other last bits), and returns
    nothing for the weights if nobody wants them; each for a first call."""
    outside = printed_by(ATTENTION, head="HOW = [(True,)] * 4\n", LAZYENG_MODE=mode)
    assert outside == f"{[True] * 4}\n" * 2
    inside = printed_by(ATTENTION, head=f"HOW = [(False, {mode!r}), (True, {mode!r})] * 2\n")
    assert inside == f"{[True] * 4}\n" * 2
