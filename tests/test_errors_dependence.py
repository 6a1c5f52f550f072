"""What depends on a failure fails with it, and none is lost: gradients of what failed, groups that
leave a result out, ops with several failed inputs."""

import contextlib
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lazyeng import LazyError, lazy, synchronize, unwrap, wrap

WAYS = ["wrap", "async", "deferred"]


@contextlib.contextmanager
def way(name):
    """The block of a mode, or none."""
    with contextlib.nullcontext() if name == "wrap" else lazy(name):
        yield wrap if name == "wrap" else lambda tensor: tensor


def line_of(text):
    """Of the first line of this file that has it."""
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


# ---- gradients of what failed


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("options", [{}, {"scale_grad_by_freq": True}], ids=str)
@pytest.mark.parametrize("index", [7, -1, 10**9])
def test_a_failed_lookup_has_no_gradient(name, options, index):
    """With an explicit one for its result, nothing else of the backward pass depends on it."""
    with pytest.raises(IndexError, match="index out of range in self") as caught, way(name) as use:
        weight = wrap(torch.ones(4, 3)).requires_grad_()
        looked_up = F.embedding(use(torch.tensor([1, index])), weight, **options)
        looked_up.backward(torch.ones(2, 3))
        weight.grad.tolist()
    # (Of the gradient's own kernel if that ran first: its line is that of the lookup, too.)
    note = caught.value.__notes__[0]
    assert note.startswith(("lazyeng: aten.embedding(", "lazyeng: aten.embedding_dense_backward("))
    assert f"test_errors_dependence.py:{line_of('looked_up = F.embedding(use(')}" in note
    with contextlib.suppress(IndexError, LazyError):
        synchronize()


@pytest.mark.parametrize("name", WAYS)
def test_a_failed_lookup_has_no_sparse_gradient(name):
    """Which cannot carry a failure: raised at the call."""
    with pytest.raises(IndexError, match="index out of range in self"), way(name) as use:
        weight = use(torch.ones(4, 3)).requires_grad_()
        looked_up = F.embedding(torch.tensor([1, 7]), weight, sparse=True)
        looked_up.backward(use(torch.ones(2, 3)))
    assert weight.grad is None
    del looked_up
    with contextlib.suppress(IndexError, LazyError):
        synchronize()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_that_nobody_has_looked_at(dtype):
    """The kernel of the gradient called by itself."""
    backward = torch.ops.aten.embedding_dense_backward
    grad, fine = wrap(torch.ones(2, 3)), torch.tensor([1, 3], dtype=dtype)
    with pytest.raises(IndexError, match="index out of range in self"):
        backward(grad, wrap(torch.tensor([1, 4], dtype=dtype)), 4, -1, False).tolist()
    expected = backward(torch.ones(2, 3), fine, 4, -1, False)
    assert torch.equal(unwrap(backward(grad, wrap(fine), 4, -1, False)), expected)


def test_a_later_step_of_the_same_line_has_its_gradient():
    """What failed was another call, whose failure somebody still holds."""
    weight = wrap(torch.ones(4, 3)).requires_grad_()
    held = []
    for index in (7, 2):
        weight.grad = None
        looked_up = F.embedding(wrap(torch.tensor([1, index])), weight)
        looked_up.backward(torch.ones(2, 3))
        held.append(looked_up)
    assert weight.grad.sum(1).tolist() == [0.0, 3.0, 3.0, 0.0]
    with pytest.raises(IndexError):
        held[0].tolist()


# ---- what a group leaves out


def _dropped(numbers, zero):
    doubled = numbers * 2
    doubled % zero
    del doubled


def _overwritten(numbers, zero):
    doubled = numbers * 2
    doubled.fmod_(zero)
    doubled.fill_(1)
    return doubled


@contextlib.contextmanager
def tells_of(text):
    """Somebody does: `synchronize` or, if the op had failed before its result was dropped, a
    warning."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        told = []
        try:
            yield
            synchronize()
        except (RuntimeError, IndexError) as error:
            told.append(str(error))
        told += [str(warning.message) for warning in shown]
    assert any(text in each for each in told), told


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("body", [_dropped, _overwritten])
def test_an_error_in_a_result_that_nobody_needs(mode, body):
    numbers, zero = torch.arange(8), torch.tensor([1, 2, 3, 0, 5, 6, 7, 8])
    with tells_of("ZeroDivisionError"), lazy(mode):
        body(numbers, zero)


def test_a_target_out_of_range_of_a_loss_that_nobody_needs(lazy_mode):
    """Also once trials have found that the loss joins groups."""
    scores, targets = torch.rand(4, 6), torch.tensor([6, 0, 0, 0])
    for _ in range(120):
        with tells_of("Target 6 is out of bounds"), lazy(lazy_mode):
            F.cross_entropy(scores * 2, targets)


# ---- several failed inputs


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("swapped", [False, True])
def test_of_several_failed_inputs_the_first_in_the_program_counts(name, swapped):
    """Whichever argument it is: there the program ends in eager."""
    zeros = wrap(torch.zeros(2, 2))
    with pytest.raises(torch.linalg.LinAlgError), way(name):
        inverse = torch.linalg.inv(zeros)
        rows = zeros[torch.tensor([7, 0])]
        (inverse @ rows if swapped else rows @ inverse).sum().item()
    with pytest.raises(IndexError):
        rows.tolist()


def test_of_several_failed_inputs_of_a_group_too():
    x = wrap(torch.ones(4))
    with lazy("deferred"):
        first, second = x[torch.tensor([5, 0, 0, 0])], x[torch.tensor([9, 0, 0, 0])]
        total = (second * 2 + first).relu()
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        total.tolist()
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        second.tolist()


# ---- the reader


def test_what_the_first_reader_handles_is_no_part_of_a_failure():
    failed = wrap(torch.ones(3))[torch.tensor([9])]
    try:
        raise KeyError("unrelated")
    except KeyError:
        with pytest.raises(IndexError):
            failed.tolist()
    with pytest.raises(IndexError) as caught:
        failed.tolist()
    assert caught.value.__cause__.__context__ is None


def test_several_plain_tensors_that_are_gone_do_not_end_a_failure(lazy_mode):
    """Nobody has a plain tensor over the memory when the block ends: the lazy one tells."""
    x = wrap(torch.zeros(4))
    with lazy(lazy_mode):
        whole, part = unwrap(x), unwrap(x[1:])
        whole.sum(), part.sum()
        del whole, part
        x.index_fill_(0, torch.tensor([9]), 1.0)
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        x.tolist()
