"""Eager code changes a plain tensor while a read is pending: the read fails, or was done before.

What lazyeng counts as a write of its own, and is none, would hide such a change.
"""

import warnings

import pytest
import torch

import lazyeng
from lazyeng import lazy, synchronize, unwrap, wrap

from .test_custom_ops import fresh


def sum_or_noticed(pending):
    try:
        return pending.sum().item()
    except RuntimeError as error:
        assert "was changed in place" in str(error)
        return "noticed"


WRITES = {
    "sync": ("sync", lambda b: b.mul_(2)),
    "first call of its kind": ("async", lambda b: b.erfinv_()),
    "out": ("async", lambda b: torch.linalg.vector_norm(b.view(-1, 10), dim=1, out=b)),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_at_the_call_hides_no_earlier_change(write):
    b = torch.ones(100_000)
    with lazy("deferred"):
        pending = b * 1
    b.add_(1)
    mode, function = WRITES[write]
    with lazy(mode):
        function(b)
    assert sum_or_noticed(pending) in ("noticed", 100_000.0)


def test_a_refused_write_hides_no_later_change():
    x = torch.ones(100_000)
    with lazy("deferred"):
        x * 1
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(7))
        pending = x * 2
    x.zero_()
    assert sum_or_noticed(pending) in ("noticed", 200_000.0)


def test_statistics_of_batch_norm_hide_no_later_change():
    norm = torch.nn.BatchNorm1d(40_000)  # (what is smaller is copied)
    with lazy():
        kept = norm.running_mean.detach()
        norm(torch.ones(2, 40_000))
    with lazy("deferred"):
        pending = norm.running_mean * 2
    norm.running_mean.fill_(5)
    assert sum_or_noticed(pending) in ("noticed", 8000.0)
    del kept


SIZE = 40_000  # (what is smaller is copied)


def step_of(optimizer):
    def write(p):
        parameter = torch.nn.Parameter(p)
        parameter.grad = torch.ones(SIZE)
        optimizer([parameter], lr=0.1, fused=True).step()

    return write


def unscale(p):
    torch._amp_foreach_non_finite_check_and_unscale_([p], torch.zeros(1), torch.ones(1))


# What torch has no kernel for that moves versions: none is moved by these,
NOT_COUNTED = {
    "fused SGD": step_of(torch.optim.SGD),
    "fused Adagrad": step_of(torch.optim.Adagrad),
    "fused AdamW": step_of(torch.optim.AdamW),
    "unscale": unscale,
    "noise": lambda p: torch.ops.aten.rrelu_with_noise(torch.ones(SIZE), p, 0.1, 0.3, True),
    "statistics": lambda p: torch._native_batch_norm_legit(
        torch.ones(2, SIZE), None, None, p, torch.ones(SIZE), True, 0.1, 1e-5
    ),
}


# and one by these: the ops that their kernels are made of do so.
COUNTED_INSIDE = {
    "list": lambda p: torch._foreach_addcdiv_([p], [p.clone()], [p.clone()], torch.ones(1)),
    "copy": lambda p: torch.ops.aten.split_copy.Tensor_out(torch.ones(SIZE), SIZE, 0, out=[p]),
}


def is_seen(plain, kept):
    """Whether a pending read of a plain tensor fails if that changes, or has its value before."""
    synchronize()
    before = plain.clone()
    with lazy("deferred"):
        pending = kept * 1
    version = plain._version
    plain.add_(1)
    assert plain._version == version + 1
    try:
        return torch.equal(unwrap(pending), before)
    except RuntimeError as error:
        return "was changed in place" in str(error)


@pytest.mark.parametrize("write", {**NOT_COUNTED, **COUNTED_INSIDE})
def test_a_write_that_torch_does_not_count_hides_no_later_change(write, mode):
    p = torch.ones(SIZE)
    kept = wrap(p)
    with lazy(mode):
        {**NOT_COUNTED, **COUNTED_INSIDE}[write](p)
    assert p._version == (write in COUNTED_INSIDE)
    assert is_seen(p, kept)


def write_as_debugged(mode, p, pending):
    lazyeng.set_sync_debug_mode(mode)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", lazyeng.SyncWarning)
            with pytest.raises((lazyeng.SyncError, lazyeng.SyncWarning)):
                p.add_(pending)
    finally:
        lazyeng.set_sync_debug_mode("off")


@pytest.mark.parametrize("debug", ["warn", "error"])
def test_a_write_whose_wait_is_reported_by_raising_hides_no_later_change(debug):
    p, x = torch.ones(SIZE), wrap(torch.full((1000, 1000), 1e-3))
    kept = wrap(p)
    with lazy("deferred"):
        for _ in range(20):  # (not done before it is waited for)
            x = x @ x
        pending = x.sum()
    write_as_debugged(debug, p, pending)
    assert is_seen(p, kept)


def test_a_write_that_raises_what_has_failed_hides_no_later_change():
    p = torch.ones(SIZE)
    kept = wrap(p)
    failed = wrap(torch.ones(3))[torch.tensor([7])]
    with pytest.raises(IndexError):
        p.add_(failed)
    kept.fill_(5)
    assert is_seen(p, kept)


def test_one_tensor_for_two_arguments_that_an_op_changes_hides_no_later_change():
    @torch.library.custom_op(fresh("both"), mutates_args=("a", "b"))
    def both(a: torch.Tensor, b: torch.Tensor) -> None:
        a.add_(1)

    both.register_fake(lambda a, b: None)
    p = torch.ones(SIZE)
    kept = wrap(p)
    with lazy():
        both(p, p)
    assert is_seen(p, kept)
