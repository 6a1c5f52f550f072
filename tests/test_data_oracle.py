"""DataLoader against torch's, over generated configurations: the same events in the same order.

An event is a batch, an exception, the end of an epoch, or the state of a random generator after
it. Epochs are broken off early now and then; iteration goes on after exceptions, as torch's does.
"""

import hashlib
import random
import time

import pytest
import torch
from torch.utils import data

import lazyeng

CONFIGURATIONS = 100
WITH_WORKERS = 8
ORDERS = ["as is", "shuffle", "random", "replace", "subset", "weighted", "each"]


class Rows(data.Dataset):
    def __init__(self, length, bad=()):
        self.length, self.bad = length, frozenset(bad)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            raise LookupError(f"row {index} is bad")
        return {"row": torch.tensor([index, index * index]), "name": f"row {index}"}


class ManyRows(Rows):
    """Gives a batch at once."""

    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)]


class Stream(data.IterableDataset):
    def __init__(self, length, bad=(), sized=False):
        self.length, self.bad = length, frozenset(bad)
        if sized:
            self.__class__ = SizedStream

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.length, step):
            if index in self.bad:
                raise LookupError(f"row {index} is bad")
            yield torch.tensor([index]), float(index)


class SizedStream(Stream):
    def __len__(self):
        return self.length


class DrawEach(data.Sampler):
    """Draws an index when it is asked for one."""

    def __init__(self, length, generator):
        self.length, self.generator = length, generator

    def __len__(self):
        return 2 * self.length

    def __iter__(self):
        for _ in range(len(self)):
            yield int(torch.randint(self.length, (), generator=self.generator))


def configuration(seed, workers=False):
    """A random choice of everything that decides which batches come; plain values only."""
    choose = random.Random(seed)
    length = choose.choice([1, 2, 7, 16, 23])
    return {
        "length": length,
        "kind": choose.choice(["rows", "rows", "many rows", "stream", "sized stream"]),
        "bad": [i for i in range(length) if choose.random() < choose.choice([0, 0, 0.1])],
        "batching": choose.choice(["size", "size", "none", "sampler"]),
        "batch_size": choose.choice([1, 3, 5, 16]),
        "drop_last": choose.random() < 0.4,
        "order": choose.choice(ORDERS),
        "generator": choose.choice([None, 5, 6]),
        "breaks": [choose.choice([None, None, 0, 1, 2, 4]) for _ in range(3)],
        "prefetch": choose.choice([0, 1, 2, 5]),
        "num_workers": choose.choice([1, 2]) if workers else 0,
        "persistent_workers": workers and choose.random() < 0.5,
    }


def dataset_of(c):
    if "stream" in c["kind"]:
        return Stream(c["length"], c["bad"], sized="sized" in c["kind"])
    return (ManyRows if c["kind"] == "many rows" else Rows)(c["length"], c["bad"])


def sampler_of(c, dataset, generator):
    length = c["length"]
    if c["order"] == "random":
        return data.RandomSampler(dataset, num_samples=length + 3, generator=generator)
    if c["order"] == "replace":
        return data.RandomSampler(
            dataset, replacement=True, num_samples=4 * length, generator=generator
        )
    if c["order"] == "subset":
        return data.SubsetRandomSampler(range(0, length, 2), generator=generator)
    if c["order"] == "weighted":
        return data.WeightedRandomSampler(list(range(1, length + 1)), 10, generator=generator)
    if c["order"] == "each" and generator is not None:
        return DrawEach(length, generator)
    return data.SequentialSampler(dataset)


def arguments(c, generator):
    dataset = dataset_of(c)
    given = {"dataset": dataset, "generator": generator}
    given |= {k: c[k] for k in ("num_workers", "persistent_workers")}
    if isinstance(dataset, data.IterableDataset):
        given["batch_size"] = None if c["batching"] == "none" else c["batch_size"]
        if c["batching"] != "none":
            given["drop_last"] = c["drop_last"]
    elif c["batching"] == "sampler":
        sampler = sampler_of(c, dataset, generator)
        given["batch_sampler"] = data.BatchSampler(sampler, c["batch_size"], c["drop_last"])
    else:
        given["batch_size"] = None if c["batching"] == "none" else c["batch_size"]
        given["drop_last"] = c["drop_last"] and c["batching"] == "size"
        if c["order"] == "shuffle":
            given["shuffle"] = True
        elif c["order"] != "as is":
            given["sampler"] = sampler_of(c, dataset, generator)
    return given


def digest(generator):
    return hashlib.sha1(generator.get_state().numpy().tobytes()).hexdigest()[:8]


def epoch(loader, stop_after):
    """The events of one epoch; stopped after so many batches and exceptions."""
    iterator = iter(loader)
    while stop_after is None or stop_after > 0:
        try:
            batch = next(iterator)
        except StopIteration:
            yield "end"
            return
        except Exception as error:
            yield type(error).__name__
        else:
            yield plain(batch)
        stop_after = stop_after and stop_after - 1
    time.sleep(0.01)  # long enough to run ahead as far as that goes
    yield "broken off"


def plain(batch):
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), batch.tolist()
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    return [plain(x) for x in batch] if isinstance(batch, list | tuple) else batch


def events(cls, c, **more):
    torch.manual_seed(3)
    generator = None if c["generator"] is None else torch.Generator().manual_seed(c["generator"])
    loader = cls(**arguments(c, generator), **more)
    for stop_after in c["breaks"]:
        yield from epoch(loader, stop_after)
        yield "length", length_of(loader)
        yield "global", digest(torch.default_generator)
        if generator is not None:
            yield "own", digest(generator)


def length_of(loader):
    try:
        return len(loader)
    except TypeError:
        return None


def compare(c):
    expected = list(events(data.DataLoader, c))
    assert list(events(lazyeng.DataLoader, c, prefetch=c["prefetch"])) == expected, c


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
def test_same_events_as_torch(seed):
    compare(configuration(seed))


class OneStream(data.IterableDataset):
    """Gives out one iterator for all epochs."""

    def __init__(self, length):
        self.iterator = iter(range(length))

    def __iter__(self):
        return self.iterator


class Restarts(data.IterableDataset):
    """Its own iterator, which each iter() sets back."""

    def __iter__(self):
        self.next = 0
        return self

    def __next__(self):
        self.next += 1
        if self.next > 20:
            raise StopIteration
        return self.next


class OwnNames(data.Sampler):
    """Draws from generators under names of its own."""

    def __init__(self, generator):
        self.rng = generator
        self.inner = data.RandomSampler(range(50), replacement=True, generator=generator)

    def __iter__(self):
        for index in self.inner:
            yield (index + int(torch.randint(50, (), generator=self.rng))) % 50


STATEFUL = {
    "stream": lambda g: {"dataset": OneStream(50), "batch_size": 3},
    "restarts": lambda g: {"dataset": Restarts(), "batch_size": 3},
    "drop last": lambda g: {"dataset": OneStream(50), "batch_size": 3, "drop_last": True},
    "sampler": lambda g: {"dataset": range(50), "batch_size": 3, "sampler": iter(range(50))},
    "batches": lambda g: {"dataset": range(50), "batch_sampler": ([i] for i in range(50))},
    "inner": lambda g: {
        "dataset": range(50),
        "batch_sampler": data.BatchSampler(iter(range(50)), 4, drop_last=False),
    },
    "own names": lambda g: {"dataset": range(50), "batch_size": 3, "sampler": OwnNames(g)},
}


@pytest.mark.parametrize("prefetch", [0, 1, 3, 30])
@pytest.mark.parametrize("kind", STATEFUL)
def test_what_goes_on_after_a_break(kind, prefetch):
    """Sources that torch's epochs go on with: nothing that was made ahead is lost."""

    def epochs(cls, **more):
        generator = torch.Generator().manual_seed(3)
        loader = cls(**STATEFUL[kind](generator), **more)
        for stop_after in (2, 0, 1, 5, None, None):
            yield from epoch(loader, stop_after)
        yield digest(generator)

    assert list(epochs(lazyeng.DataLoader, prefetch=prefetch)) == list(epochs(data.DataLoader))


@pytest.mark.filterwarnings("ignore:.*worker processes.*")
@pytest.mark.parametrize("seed", range(WITH_WORKERS))
def test_same_events_as_torch_with_workers(seed):
    compare(configuration(1000 + seed, workers=True))


def test_configurations_reach_everything():
    """The generator of configurations is worth what it generates."""
    made = [configuration(seed) for seed in range(CONFIGURATIONS)]
    for key, values in {
        "kind": {"rows", "many rows", "stream", "sized stream"},
        "batching": {"size", "none", "sampler"},
        "order": set(ORDERS),
        "prefetch": {0, 1, 2, 5},
    }.items():
        assert {c[key] for c in made} == values
    assert sum(bool(c["bad"]) for c in made) > 10


@pytest.mark.parametrize("how", ["nested", "zip", "itself"])
def test_iterators_that_share_a_generator(how):
    """The draw with which a sampler ends comes when the end is asked for, as in torch."""

    def run(cls):
        generator = torch.Generator().manual_seed(0)
        outer, inner = (
            cls(range(n), batch_size=4, shuffle=True, generator=generator) for n in (12, 8)
        )
        seen = []
        for _ in range(3):
            if how == "zip":
                seen += [(a.tolist(), b.tolist()) for a, b in zip(outer, inner, strict=False)]
                continue
            for i, batch in enumerate(outer):
                seen.append(batch.tolist())
                if i == 1:
                    time.sleep(0.05)  # (all that is made ahead is made)
                    seen += [b.tolist() for b in (inner if how == "nested" else outer)]
        return seen, generator.get_state().tolist()

    assert run(lazyeng.DataLoader) == run(torch.utils.data.DataLoader)
