"""torch.load(..., map_location="lazyeng")."""

import io
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import lazyeng
from lazyeng import LazyTensor

LOCATIONS = (
    "lazyeng", "lazyeng:0", torch.device("lazyeng"), {"cpu": "lazyeng"},
    lambda storage, _: torch.serialization.default_restore_location(storage, "lazyeng"),
)  # fmt: skip


def saved(value: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("where", LOCATIONS, ids=["name", "number", "device", "dict", "function"])
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_come_back_lazy(where, weights_only, zipped):
    base = torch.arange(6.0)
    values = {
        "base": base, "view": base[2:4], "leaf": torch.ones(2, requires_grad=True),
        "conjugated": torch.tensor([1 + 2j]).conj(), "negative": torch.tensor([1 + 2j]).conj().imag,
        "narrow": torch.ones(3, dtype=torch.bfloat16).t(), "none": torch.empty(0, 3),
        "lazy": lazyeng.wrap(torch.ones(2)), "parameter": torch.nn.Parameter(torch.ones(2)),
    }  # fmt: skip
    file = saved(values, _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=where, weights_only=weights_only)
    for name, value in values.items():
        got = loaded[name]
        assert type(got) is LazyTensor and torch.equal(got, value), name
        assert got.requires_grad == value.requires_grad and got.stride() == value.stride()
        assert got.device == value.device
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    loaded["base"][2] = 9
    assert loaded["view"].tolist() == [9, 3]


def test_modules_and_their_states(tmp_path):
    model = torch.nn.Linear(3, 2)
    file = tmp_path / "model.pt"
    torch.save(model.state_dict(), file)
    state = torch.load(file, map_location="lazyeng", mmap=True)
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(state)
    assert type(other.weight) is torch.nn.Parameter and torch.equal(other.weight, model.weight)
    other.load_state_dict(state, assign=True)
    assert type(other.weight) is LazyTensor and isinstance(other.weight, torch.nn.Parameter)
    whole = torch.load(saved(model), map_location="lazyeng", weights_only=False)
    result = whole(torch.ones(1, 3))
    assert type(result) is LazyTensor and torch.equal(result, model(torch.ones(1, 3)))


def test_states_of_optimizers():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(torch.load(saved(optimizer.state_dict()), map_location="lazyeng"))
    optimizer.step()
    moment = optimizer.state[model.weight]["exp_avg"]
    assert type(moment) is LazyTensor and moment.shape == (2, 3)


def test_inside_of_a_block(mode):
    with lazyeng.lazy(mode):
        loaded = torch.load(saved([torch.arange(3.0)]), map_location="lazyeng")[0] + 1
    assert type(loaded) is LazyTensor and loaded.tolist() == [1, 2, 3]


def test_what_cannot_be_lazy_comes_back():
    values = [torch.eye(2).to_sparse(), torch.ones(2).untyped_storage()]
    sparse, storage = torch.load(saved(values), map_location="lazyeng", weights_only=False)
    assert sparse.layout is torch.sparse_coo and torch.equal(sparse.to_dense(), torch.eye(2))
    assert storage.nbytes() == 8


def test_fake_tensors(tmp_path):
    """torch asks the device's module more for them than it does for others."""
    torch.save(torch.ones(2, 3), tmp_path / "x.pt")
    with FakeTensorMode():
        loaded = torch.load(tmp_path / "x.pt", map_location="lazyeng")
    assert isinstance(loaded, FakeTensor) and loaded.shape == (2, 3)


class Shares(torch.nn.Module):
    """A buffer that is a part of another's memory, which it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)
        self.register_buffer("whole", torch.arange(6.0) * 2)
        self.register_buffer("part", self.whole[:3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.whole.add_(1)
        return self.norm(x) + self.part.sum()


def exported_and_loaded() -> Any:
    archive = io.BytesIO()
    torch.export.save(torch.export.export(Shares().eval(), (torch.ones(1, 2),)), archive)
    archive.seek(0)
    loaded = torch.export.load(archive)
    return loaded.module()(torch.ones(1, 2)).tolist(), list(loaded.state_dict)


def test_weights_of_exported_programs_share_their_memory(mode):
    expected = exported_and_loaded()
    with lazyeng.lazy(mode):
        assert exported_and_loaded() == expected
