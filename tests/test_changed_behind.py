"""Eager code changes a plain tensor while a read is pending: the read fails, or was done before.

What lazyeng counts as a write of its own, and is none, would hide such a change.
"""

import pytest
import torch

from lazyeng import lazy


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
