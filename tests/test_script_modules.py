"""TorchScript modules are saved in a block that has just trained them."""

import io

import pytest
import torch
from torch import nn

from lazyeng import lazy

SAVED = {
    "torch.jit.save of a script": lambda m, x, f: torch.jit.save(torch.jit.script(m), f),
    "torch.jit.save of a trace": lambda m, x, f: torch.jit.save(torch.jit.trace(m, x), f),
    "save_to_buffer": lambda m, x, f: f.write(torch.jit.script(m).save_to_buffer()),
    "frozen": lambda m, x, f: torch.jit.save(torch.jit.freeze(torch.jit.script(m).eval()), f),
}


@pytest.mark.parametrize("mode", [None, "async", "deferred", "sync"])
@pytest.mark.parametrize("how", SAVED)
def test_saved_modules_have_what_was_trained(how, mode, tmp_path):
    def train(path):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.rand(5, 3)
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
        file = io.BytesIO()
        SAVED[how](model, x, file)
        torch.jit.script(model).save(str(path))
        return file.getvalue(), x

    saved, x = train(tmp_path / "eager")
    expected = torch.jit.load(io.BytesIO(saved))(x)
    if mode is None:
        assert torch.equal(torch.jit.load(tmp_path / "eager")(x), expected)
        return
    with lazy(mode):
        saved, _ = train(tmp_path / "lazy")
    assert torch.equal(torch.jit.load(io.BytesIO(saved))(x), expected)
    assert torch.equal(torch.jit.load(tmp_path / "lazy")(x), expected)
