"""Writes to what sparse and nested tensors are made of (`s._values().mul_(2)`) are writes to these,
and the other way round: random programs beside eager."""

import contextlib
import copy
import random
import threading
import time

import pytest
import torch

from lazyeng import lazy, wrap

from .support.failures import raised_by

# torch's: in beta state.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*nested:UserWarning"),
]


def _matrix():
    return torch.tensor([[0.0, 1.5, 0.0, 2.0], [3.0, 0.0, 0.0, 0.0], [0.0, 4.0, 5.0, 0.0]])


MADE = {
    "coo": lambda: _matrix().to_sparse(),
    "csr": lambda: _matrix().to_sparse_csr(),
    "csc": lambda: _matrix().to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.arange(3.0)]),
}


def _components(kind, whole):
    """Tensors that share memory with it."""
    if kind == "nested":
        return [whole.values(), *whole.unbind()]
    return [whole._values() if kind == "coo" else whole.values()]


def _dense(kind, whole):
    return whole.values().clone() if kind == "nested" else whole.to_dense()


def _numbers(x):
    return x.detach().clone().tolist()


WRITES = [
    lambda x, draw: x.mul_(draw),
    lambda x, draw: x.add_(x, alpha=draw),
    lambda x, draw: x.clamp_(-draw, draw),
    lambda x, draw: x.copy_(torch.full_like(x, draw)),
    lambda x, draw: x[:1].fill_(draw),
    lambda x, draw: torch.add(x, draw, out=x),
]


def _program(seed, kind, whole):
    """Writes and reads through the tensor and through its components, some of which are dropped at
    once. What it has seen."""
    steps = random.Random(seed)
    held, seen, lazily = [], [], []
    for _ in range(steps.randint(2, 8)):
        draw = steps.choice([0.5, 2.0, 3.0])
        step = steps.randrange(7)
        if step == 0:
            held.append(steps.choice(_components(kind, whole)))
        elif step == 1:
            whole.mul_(draw)
        elif step == 2 and held:
            held.pop(steps.randrange(len(held)))
        elif step == 3:
            seen.append(_numbers(_dense(kind, whole)))
        elif step == 4:
            lazily.append(_dense(kind, whole) * 2)
        else:
            pool = held if held and steps.random() < 0.5 else _components(kind, whole)
            steps.choice(WRITES)(steps.choice(pool), draw)
    seen += map(_numbers, lazily)
    return seen, held


def _run(seed, kind, mode, whole):
    with lazy(mode) if mode else contextlib.nullcontext():
        seen, held = _program(seed, kind, whole)
    after = [*seen, _numbers(_dense(kind, whole)), *map(_numbers, held)]
    del held
    return [*after, _numbers(_dense(kind, whole))]


@pytest.mark.parametrize("kind", MADE)
def test_a_tensor_and_its_components_are_one_memory(kind, mode):
    for seed in range(60):
        expected = _run(seed, kind, None, MADE[kind]())
        assert _run(seed, kind, mode, MADE[kind]()) == expected, seed


@pytest.mark.parametrize("kind", MADE)
def test_one_that_a_block_has_made(kind, mode):
    for seed in range(20):
        expected = _run(seed, kind, None, MADE[kind]())
        with lazy(mode):
            whole = MADE[kind]()
        assert _run(seed, kind, mode, whole) == expected, seed


SHARED = {
    "coo": lambda v: torch.sparse_coo_tensor(torch.tensor([[0, 2]]), v, (3,), is_coalesced=True),
    "csr": lambda v: torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), v),
    "csc": lambda v: torch.sparse_csc_tensor(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), v),
    "bsr": lambda v: torch.sparse_bsr_tensor(
        torch.tensor([0, 1]), torch.tensor([0]), v.view(1, 1, 2)
    ),
}


def _shared(kind, values, again):
    whole = SHARED[kind](values)
    values += 1
    seen = [whole.to_dense().tolist()]
    whole.mul_(3)
    seen.append(values.tolist())
    values = again(values)
    values.mul_(2)
    del values
    seen.append(whole.to_dense().tolist())
    return seen


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("again", [lambda v: v, lambda v: v.view(2)[:1]])
def test_made_of_given_values(kind, again, mode):
    expected = _shared(kind, torch.zeros(2), again)
    assert _shared(kind, wrap(torch.zeros(2)), again) == expected
    given = torch.zeros(2)
    with lazy(mode):
        assert _shared(kind, given, again) == expected
        assert _shared(kind, wrap(torch.zeros(2)), again) == expected
        assert _shared(kind, torch.zeros(2) + 0, again) == expected


@pytest.mark.parametrize("kind", MADE)
def test_the_whole_changes_outside_after_a_read_was_recorded(kind, mode):
    for again in (lambda x: x, lambda x: x.detach()):
        whole = MADE[kind]()
        with lazy(mode):
            doubled = [x * 2 for x in _components(kind, whole)]
        expected = [x.clone() * 2 for x in _components(kind, whole)]
        again(whole).neg_() if kind != "nested" else whole.mul_(-1)
        assert [x.tolist() for x in doubled] == [x.tolist() for x in expected]


def _reads_while_another_writes(whole, component, number, mode):
    """What has failed."""
    errors = []

    def read():
        try:
            with lazy(mode):
                for _ in range(number):
                    whole.to_dense().sum().item()
        except RuntimeError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    with lazy(mode):
        reader.start()
        while reader.is_alive():
            component(whole).mul_(1.0)
        reader.join()
    return errors


@pytest.mark.limit(120)
@pytest.mark.parametrize("kind", ["coo", "csr"])
def test_one_thread_reads_and_another_writes(kind, mode):
    whole = torch.eye(300).to_sparse() if kind == "coo" else torch.eye(300).to_sparse_csr()
    values = torch.Tensor._values if kind == "coo" else torch.Tensor.values
    assert _reads_while_another_writes(whole, values, 50, mode) == []


@pytest.mark.limit(120)
@pytest.mark.parametrize("kind", ["csr", "dense"])
def test_a_block_ends_with_its_writes_also_if_another_thread_reads(kind):
    """The other one begins to read before, and is not done when this one's write is recorded."""
    whole = torch.eye(3).to_sparse_csr() if kind == "csr" else torch.eye(3)
    component = torch.Tensor.values if kind == "csr" else torch.Tensor.detach
    slow = torch.randn(800, 800)
    started, read, over = threading.Event(), threading.Event(), threading.Event()

    def other():
        with lazy():
            component(whole).mul_((slow @ slow @ slow @ slow).sum() * 0 + 1)
            started.set()
            whole.to_dense() if kind == "csr" else whole.clone().tolist()
            read.set()
            over.wait(60)

    reader = threading.Thread(target=other)
    with lazy("deferred"):
        values = component(whole)
        reader.start()
        started.wait(60)
        time.sleep(0.05)
        values.mul_(2)
        read.wait(60)
    assert whole.to_dense().sum().item() == 6.0
    over.set()
    reader.join()


def test_quantized_tensors_follow_their_scales(mode):
    def program(write):
        scales = torch.tensor([0.1, 0.2], dtype=torch.float64)
        whole = torch.quantize_per_channel(
            torch.ones(2, 3), scales, torch.tensor([0, 1]), 0, torch.qint8
        )
        write(scales, whole)
        return whole.dequantize().tolist(), whole.q_per_channel_scales().tolist()

    for write in (
        lambda scales, whole: scales.mul_(2),
        lambda scales, whole: whole.q_per_channel_scales().mul_(2),
        lambda scales, whole: (
            torch.empty(0, dtype=torch.uint8).set_(whole.untyped_storage()).fill_(3)
        ),
    ):
        expected = program(write)
        with lazy(mode):
            assert program(write) == expected


@pytest.mark.parametrize("size", [(), ((2, 2),)])
def test_made_in_inference_mode(size, mode):
    def program():
        indices = torch.tensor([[0, 1], [1, 0]]) + 0
        with torch.inference_mode(), torch.sparse.check_sparse_tensor_invariants():
            return torch.sparse_coo_tensor(indices, torch.ones(2) * 2, *size).to_dense().tolist()

    expected = program()
    with lazy(mode):
        assert program() == expected


@pytest.mark.parametrize(
    ("kind", "look"),
    [("coo", copy.deepcopy), *((kind, repr) for kind in MADE)],  # (torch copies no other kind)
    ids=["coo copied", *MADE],
)
def test_looked_at_after_a_recorded_write(kind, look, mode):
    def program():
        whole = MADE[kind]()
        _components(kind, whole)[0].mul_(2)
        return repr(look(whole))

    expected = program()
    with lazy(mode):
        assert program() == expected


def test_sparse_gradients_that_are_clipped(mode):
    def train(block):
        torch.manual_seed(0)
        table = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        with block:
            for _ in range(3):
                optimizer.zero_grad()
                (table(torch.tensor([1, 2])) * 100).square().sum().backward()
                table.weight.grad._values().clamp_(-1, 1)
                optimizer.step()
        return table.weight.tolist()

    assert train(lazy(mode)) == train(contextlib.nullcontext())


def test_a_write_that_fails_is_raised():
    def clear(whole):
        whole._values().copy_(torch.ones(3)[torch.tensor([7, 7])])

    whole = torch.eye(2).to_sparse()
    with pytest.raises(IndexError, match="index 7 is out of bounds"), lazy("deferred"):
        clear(whole)
    with contextlib.suppress(IndexError), lazy("deferred"):
        values = whole._values()
        values.copy_(torch.ones(3)[torch.tensor([7, 7])])
        assert isinstance(raised_by(whole.to_dense), IndexError)
    assert whole.to_dense().tolist() == torch.eye(2).tolist()
