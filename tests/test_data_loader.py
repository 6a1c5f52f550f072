"""DataLoader: torch's options, structures of batches, seeds, and libraries around it."""

import contextlib
import copy
import inspect
import pickle
import random
import sys
import threading
import time
import warnings
from collections import defaultdict, namedtuple
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch.utils import data

import lazyeng
from lazyeng import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes.*")

Pair = namedtuple("Pair", "image label")


@dataclass
class Batch:
    image: torch.Tensor
    names: list


class Numbers(data.Dataset):
    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([index, 1.0])


class Structured(Numbers):
    def __getitem__(self, index):
        pair = Pair(torch.tensor([index]), index)
        return {"pair": pair, "name": f"n{index}", "list": [index, (0.5, "s")]}


def to_dataclass(samples):
    return Batch(torch.stack([s["pair"].image for s in samples]), [s["name"] for s in samples])


@pytest.mark.parametrize("workers", [0, 1])
def test_structure_of_default_collate(workers):
    (batch,) = DataLoader(Structured(2), batch_size=2, num_workers=workers)
    assert type(batch["pair"]) is Pair and batch["name"] == ["n0", "n1"]
    assert type(batch["pair"].image) is lazyeng.LazyTensor
    assert batch["pair"].label.tolist() == [0, 1]
    assert batch["list"][1][0].dtype == torch.float64 and batch["list"][1][1] == ("s", "s")


@pytest.mark.parametrize("workers", [0, 1])
def test_structure_of_a_dataclass(workers):
    loader = DataLoader(Structured(4), 2, collate_fn=to_dataclass, num_workers=workers)
    batches = list(loader)
    assert [type(b) for b in batches] == [Batch, Batch]
    assert [type(b.image) for b in batches] == [lazyeng.LazyTensor] * 2
    assert batches[1].names == ["n2", "n3"] and batches[1].image.tolist() == [[2], [3]]


def test_modules_in_a_batch_stay_as_they_are():
    module = torch.nn.Linear(2, 2)
    for device in (None, "cpu"):
        loader = DataLoader(
            Numbers(1), collate_fn=lambda samples: [module, samples[0]], device=device
        )
        ((got, x),) = loader
        assert got is module and type(module.weight) is torch.nn.Parameter
        assert type(x) is lazyeng.LazyTensor


def test_batches_with_a_history_of_autograd():
    """As in torch, where the dataset computes with what is learned."""
    weight = torch.ones(2, requires_grad=True)

    class Scaled(Numbers):
        def __getitem__(self, index):
            return weight * index

    def grad(cls):
        weight.grad = None
        for batch in cls(Scaled(5), batch_size=2):
            (batch * batch).sum().backward()
        return weight.grad.tolist()

    assert grad(DataLoader) == grad(data.DataLoader)


class Random(Numbers):
    def __getitem__(self, index):
        return index, random.random(), numpy.random.rand(), torch.rand(()).item()


def seeded(cls, workers, **more):
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    loader = cls(Random(), shuffle=True, num_workers=workers, **more)
    batches = [[[x.item() for x in b] for b in loader] for _ in range(2)]
    return batches, torch.rand(()).item(), random.random()


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_random_datasets_draw_what_they_draw_in_torch(workers, persistent):
    expected = seeded(data.DataLoader, workers, persistent_workers=persistent)
    assert seeded(DataLoader, workers, persistent_workers=persistent) == expected


def test_nothing_is_drawn_between_iter_and_next():
    """Samplers draw when the first batch is asked for, as in torch."""

    def draws(cls):
        torch.manual_seed(0)
        iterator = iter(cls(Numbers(), shuffle=True))
        time.sleep(0.05)
        between = torch.rand(()).item()
        return between, [b.tolist() for b in iterator]

    assert draws(DataLoader) == draws(data.DataLoader)


@pytest.mark.parametrize("more", [{}, {"prefetch": 0}, {"num_workers": 1}])
@pytest.mark.parametrize("inside", [True, False])
def test_recorded_draws_keep_their_place(inside, more, mode):
    """What the loop recorded before a batch is drawn before the loader's own draws."""

    def draws(cls, x, **more):
        torch.manual_seed(0)
        before = torch.nn.functional.dropout(x)
        iterator = iter(cls(Numbers(), batch_size=3, shuffle=True, **more))
        between = torch.nn.functional.dropout(x)
        return [t.tolist() for t in (*iterator, before, between, torch.rand(3))]

    workers = more.get("num_workers", 0)
    expected = draws(data.DataLoader, torch.ones(64), num_workers=workers)
    x = lazyeng.wrap(torch.ones(64))
    with lazyeng.lazy(mode) if inside else contextlib.nullcontext():
        assert draws(DataLoader, x, **more) == expected


@pytest.mark.parametrize("more", [{}, {"num_workers": 1}])
def test_loading_is_no_wait_of_the_loop(more, mode):
    """Epochs start with a seed, which torch reads at once."""
    with lazyeng.lazy(mode):
        lazyeng.set_sync_debug_mode("error")
        try:
            x = torch.nn.functional.dropout(lazyeng.wrap(torch.ones(1000)))
            loader = DataLoader(Numbers(), batch_size=3, shuffle=True, **more)
            assert len([batch + x.sum() for _ in range(2) for batch in loader]) == 8
        finally:
            lazyeng.set_sync_debug_mode("off")


def tag(worker_id):
    data.get_worker_info().dataset.tag = worker_id + 100


class Tagged(Numbers):
    tag = 0

    def __getitem__(self, index):
        return self.tag


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("more", [{}, {"prefetch": 0}, {"num_workers": 1}])
def test_a_block_may_write_its_own_dataset_between_passes(mode, more):
    """The thread that reads it is not in the block."""

    def epochs(loader, block):
        values = torch.arange(24.0).reshape(8, 3)
        sums = []
        with block:
            values.sub_(values.mean(0)).div_(values.std(0))
            for _ in range(3):
                batches = loader(data.TensorDataset(values), batch_size=4)
                sums.append([batch.sum().item() for (batch,) in batches])
                values += 1
        return sums

    expected = epochs(data.DataLoader, contextlib.nullcontext())
    for _ in range(3):  # (it depends on who is first)
        assert epochs(lambda *a, **k: DataLoader(*a, **more, **k), lazyeng.lazy(mode)) == expected


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_init_fn_sees_the_dataset(start):
    loader = DataLoader(Tagged(4), num_workers=2, worker_init_fn=tag, multiprocessing_context=start)
    assert [b.item() for b in loader] == [100, 101, 100, 101]


def test_loading_runs_ahead_in_a_thread():
    class Names(Numbers):
        def __getitem__(self, index):
            return threading.current_thread() is threading.main_thread()

    assert [b.item() for b in DataLoader(Names(3))] == [False] * 3
    assert [b.item() for b in DataLoader(Names(3), prefetch=0)] == [True] * 3


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_depth_is_exact(prefetch):
    asked = []

    class Counts(Numbers):
        def __getitem__(self, index):
            asked.append(index)
            return index

    iterator = iter(DataLoader(Counts(20), prefetch=prefetch))
    for taken in range(1, 8):
        next(iterator)
        end = time.monotonic() + 60
        while len(asked) < taken + prefetch and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(asked) == taken + prefetch


def test_first_batch_asked_for_by_many():
    """One of them starts the thread."""
    for _ in range(20):
        iterator, start, got = iter(DataLoader(Numbers(), 2)), threading.Barrier(4), []

        def take(iterator=iterator, start=start, got=got):
            start.wait()
            got.append(next(iterator)[0, 0].item())

        threads = [threading.Thread(target=take) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=30)
        assert sorted(got) == [0, 2, 4, 6]


def test_loader_iterated_by_many():
    """Once filelock is there, which torch imports at times, no two threads may fork at once."""
    pytest.importorskip("filelock", reason="this torch does without it")
    loader, got = DataLoader(Numbers(), 2, num_workers=1), []
    collate, init = loader.collate_fn, loader.worker_init_fn

    def read():
        for _ in range(3):
            got.append([b[0, 0].item() for b in loader])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=60)
    assert got == [[0, 2, 4, 6, 8]] * 12
    assert (loader.collate_fn, loader.worker_init_fn) == (collate, init)


@pytest.mark.parametrize("workers", [0, 1])
def test_pin_memory_without_an_accelerator(workers):
    """Also of torch's own loader."""
    for cls in (data.DataLoader, DataLoader):
        batches = list(cls(Numbers(4), batch_size=2, pin_memory=True, num_workers=workers))
        assert [b[:, 0].tolist() for b in batches] == [[0, 1], [2, 3]]


def test_length_as_in_torch():
    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(7))

    class Sized(Stream):
        def __len__(self):
            return 5

    assert len(DataLoader(Numbers(), batch_size=3)) == len(iter(DataLoader(Numbers(), 3))) == 4
    assert len(DataLoader(Sized(), batch_size=2)) == 3
    with pytest.raises(TypeError):
        len(DataLoader(Stream()))
    loader = DataLoader(Sized())
    len(loader)
    with pytest.warns(UserWarning, match="Length of IterableDataset"):
        assert len(list(loader)) == 7


def test_is_a_data_loader_with_its_attributes():
    loader = DataLoader(Numbers(), 2, device="cpu", prefetch=3)
    assert isinstance(loader, data.DataLoader)
    assert (loader.device, loader.prefetch, loader.batch_size) == ("cpu", 3, 2)
    next(iter(loader))
    for same in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert len(list(same)) == 5
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3


def test_attributes_may_be_set_or_be_properties():
    class Own(DataLoader):
        @property
        def device(self):
            return "mine"

        @property
        def prefetch(self):
            return "all of them"

    loader = Own(Numbers(4), 2, device="cpu", prefetch=0)
    assert (loader.device, loader.prefetch) == ("mine", "all of them")
    assert [type(b) for b in loader] == [lazyeng.LazyTensor] * 2
    loader = DataLoader(Numbers(4), 2)
    loader.prefetch = 0
    assert [b[0, 0].item() for b in loader] == [0, 2] and loader.prefetch == 0


def test_signature_is_that_of_torch_and_two_more():
    torchs = inspect.signature(data.DataLoader).parameters
    ours = inspect.signature(DataLoader).parameters
    assert list(ours) == [*torchs, "device", "prefetch"]
    assert all(ours[name] == torchs[name] for name in torchs)
    assert (ours["device"].default, ours["prefetch"].default) == (None, 2)

    class Own(DataLoader):
        def __init__(self, path):
            super().__init__(path)

    assert list(inspect.signature(Own).parameters) == ["path"]


@pytest.mark.parametrize(
    "bad", [{"prefetch": -1}, {"prefetch": None}, {"num_workers": -1}, {"timeout": -1}]
)
def test_arguments(bad):
    with pytest.raises((TypeError, ValueError)):
        DataLoader(Numbers(), **bad)


def test_training_is_that_of_torch(mode):
    def trained(cls, block):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with block:
            for x in cls(Numbers(), batch_size=3, shuffle=True):
                optimizer.zero_grad()
                (model(x) - 1).square().mean().backward()
                optimizer.step()
        return [p.tolist() for p in model.parameters()]

    eager = trained(data.DataLoader, warnings.catch_warnings())
    torch.testing.assert_close(trained(DataLoader, lazyeng.lazy(mode)), eager)


def test_tqdm(capsys):
    tqdm = pytest.importorskip("tqdm").tqdm
    assert len(list(tqdm(DataLoader(Numbers()), file=sys.stdout))) == 10
    assert "10/10" in capsys.readouterr().out


def test_stateful_data_loader():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    loader = lazyeng.prefetch(stateful(Numbers(), batch_size=4))
    assert len(loader) == 3
    for _ in range(2):
        assert [b[:, 0].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_hugging_face_datasets():
    made = pytest.importorskip("datasets").Dataset.from_dict({"x": [[1.0], [2.0], [3.0]]})
    made = made.with_format("torch")
    for source in (DataLoader(made, batch_size=1), lazyeng.prefetch(made.iter(batch_size=1))):
        batches = list(source)
        assert [type(b["x"]) for b in batches] == [lazyeng.LazyTensor] * 3
        assert [b["x"].item() for b in batches] == [1, 2, 3]
    assert [row["x"].item() for row in lazyeng.prefetch(made)] == [1, 2, 3]


def test_defaultdict_batch_keeps_its_class():
    def collate(samples):
        batch = defaultdict(list)
        batch["x"] = torch.stack(samples)
        return batch

    (batch,) = DataLoader(Numbers(2), 2, collate_fn=collate, num_workers=1)
    assert type(batch) is defaultdict and batch["missing"] == []
    assert type(batch["x"]) is lazyeng.LazyTensor
