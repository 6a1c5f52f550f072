"""torch.save to a path: a file is not touched before it is known what goes there."""

import io

import pytest
import torch
from torch import nn

from lazyeng import lazy, wrap


def failed():
    return wrap(torch.arange(3.0))[torch.tensor([7])]


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def save(request):
    def to(obj, path):
        torch.save(obj, path, _use_new_zipfile_serialization=request.param)

    return to


def test_what_failed_does_not_cost_the_last_checkpoint(save, lazy_mode, tmp_path):
    path = tmp_path / "model.pt"
    model = nn.Linear(3, 3)
    save(model.state_dict(), path)
    with pytest.raises(RuntimeError, match="out of bounds"), lazy(lazy_mode):
        with torch.no_grad():
            model.weight.index_add_(0, torch.tensor([7]), torch.ones(1, 3))
        save(model.state_dict(), path)
    loaded = torch.load(path)
    assert loaded.keys() == model.state_dict().keys()


@pytest.mark.parametrize("where", [lambda x: x, lambda x: {"a": [x]}], ids=["itself", "nested"])
def test_a_wrapped_tensor_that_failed(save, where, tmp_path):
    path = tmp_path / "x.pt"
    save(torch.ones(2), path)
    bad = failed()
    for _ in range(2):  # (told of or not)
        with pytest.raises(IndexError, match="out of bounds"):
            save(where(bad), path)
    assert torch.load(path).tolist() == [1.0, 1.0]


def test_another_failure_is_no_hindrance(save, tmp_path):
    path = tmp_path / "x.pt"
    bad = failed()
    with lazy():
        save({"x": torch.ones(300, 300) * 2, "name": "a"}, path)
    assert torch.load(path)["x"].sum().item() == 180_000
    with pytest.raises(IndexError):
        bad.item()


def test_a_file_that_is_read_through_a_mapping(lazy_mode, tmp_path):
    """It is replaced once what was recorded has read it."""
    path = tmp_path / "w.pt"
    torch.save({"w": torch.ones(300, 300)}, path)
    with lazy(lazy_mode):
        loaded = torch.load(path, mmap=True)
        torch.save({k: v.half() * 2 for k, v in loaded.items()}, path)
    assert torch.load(path)["w"].double().sum().item() == 180_000


def test_files_that_are_open_already():
    file = io.BytesIO()
    with lazy():
        torch.save(torch.ones(3) + 1, file)
    file.seek(0)
    assert torch.load(file).tolist() == [2.0, 2.0, 2.0]
