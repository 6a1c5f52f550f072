"""Tensors sent between processes: they share memory, and failures arrive."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp

from lazyeng import LazyError, LazyTensor, lazy, synchronize, unwrap, wrap
from tests.support.failures import failed


@pytest.fixture(params=sorted(mp.get_all_sharing_strategies()), autouse=True)
def strategy(request):
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


def sent(tensor):
    """As it arrives (here, in the same process)."""
    return pickle.loads(ForkingPickler.dumps(tensor))


@pytest.mark.parametrize(
    "make",
    [
        lambda: wrap(torch.arange(6.0)),
        lambda: wrap(torch.arange(6.0)) * 2,
        lambda: (wrap(torch.arange(6.0)) * 2)[2:4],
        lambda: (wrap(torch.arange(6.0)) * 2).reshape(2, 3).T,
        lambda: wrap(torch.ones(0)),
        lambda: wrap(torch.tensor(3)),
    ],
)
def test_what_arrives_shares_memory(make):
    x = make()
    expected = x.clone()
    y = sent(x)
    assert type(y) is LazyTensor and y.stride() == x.stride()
    assert torch.equal(unwrap(y), unwrap(expected))
    assert not x.numel() or (x.is_shared() and y.is_shared())  # (torch shares nothing then)
    x += 1
    assert torch.equal(unwrap(y), unwrap(expected + 1))


def test_requires_grad_and_parameters():
    parameter = wrap(torch.nn.Linear(2, 2)).weight
    arrived = sent(parameter)
    assert arrived.requires_grad and isinstance(arrived, torch.nn.Parameter)
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        sent(parameter * 2)


def test_lazy_tensors_follow_a_plain_one_to_shared_memory():
    plain = torch.arange(4.0)
    x = wrap(plain)
    pending = x * 3
    plain.share_memory_()
    plain += 1
    assert (x + 0).tolist() == [1, 2, 3, 4] and pending.tolist() == [0, 3, 6, 9]
    x.mul_(2)
    synchronize()
    assert plain.tolist() == [2, 4, 6, 8]


def test_lazy_tensors_follow_a_resized_storage():
    plain = torch.arange(4.0)
    x = wrap(plain)
    pending = [x + i for i in range(50)]
    plain.untyped_storage().resize_(1 << 20)
    assert [p.tolist()[0] for p in pending] == list(range(50))
    assert x.tolist() == [0, 1, 2, 3]


def test_a_failed_tensor_arrives_failed():
    bad = failed("async")
    arrived = sent(bad)
    assert type(arrived) is LazyTensor and arrived.shape == bad.shape
    for _ in range(2):
        with pytest.raises(IndexError, match="index 7 is out of bounds") as caught:
            arrived.tolist()
        assert isinstance(caught.value, LazyError)
        assert any("test_sharing.py" in note for note in caught.value.__notes__)


def answer(questions, answers):
    """In the other process: doubles in place, and sends back a new tensor and a failed one."""
    x = questions.get(timeout=60)
    x.mul_(2)
    answers.put((x + 1, failed("async")))
    questions.get(timeout=60)  # until the tensors have been read


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_queue(start):
    context = mp.get_context(start)
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=answer, args=(questions, answers))
    process.start()
    x = wrap(torch.arange(3.0)) + 1
    questions.put(x)
    good, bad = answers.get(timeout=100)
    assert type(good) is LazyTensor and good.tolist() == [3, 5, 7]
    assert x.tolist() == [2, 4, 6]
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        bad.tolist()
    questions.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_storages_whose_tensor_is_written(lazy_mode):
    plain = torch.zeros(300, 300)
    storage = plain.untyped_storage()
    with lazy(lazy_mode):
        plain.add_(1)
        assert torch.empty(0).set_(storage, 0, (3,), (1,)).tolist() == [1] * 3
        plain.add_(1)
        assert storage[3] == 0x40  # the first byte of 2.0, from behind
        plain.add_(1)
        assert storage.clone()[2:4].tolist() == [0x40, 0x40]
        plain.add_(1)
        file = io.BytesIO()
        torch.save(storage, file)
        file.seek(0)
        assert torch.load(file).untyped()[2:4].tolist() == [0x80, 0x40]
        plain.add_(1)
        storage.fill_(0)
        assert plain.sum().item() == 0


def test_a_checkpoint_that_is_mapped_and_written_anew(lazy_mode, tmp_path):
    """The copies have read the file when it is cut off."""
    path = tmp_path / "checkpoint"
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    torch.save(model.state_dict(), path)
    before = [p.tolist() for p in model.parameters()]
    with lazy(lazy_mode):
        model.load_state_dict(torch.load(path, mmap=True))
        torch.save(model.state_dict(), path)
    assert [p.tolist() for p in model.parameters()] == before
