"""TorchScript modules are saved in a block that has just trained them."""

import io

import pytest
import torch
from torch import nn

from lazyeng import lazy, unwrap

from .support import fresh

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


def indexed(x):
    y = x[torch.tensor([1])] + torch.arange(2.0)
    y[0] = 5
    return y, x[[0, 2]]


def test_what_is_traced_has_constants(lazy_mode):
    x = torch.arange(3.0)
    with lazy(lazy_mode):
        traced = torch.jit.trace(indexed, x * 1, check_trace=False)
        results = traced(x + 1)
    for result, expected in zip(results, indexed(torch.arange(3.0) + 1), strict=True):
        assert result.tolist() == expected.tolist()


@pytest.mark.parametrize("make", [torch.jit.freeze, torch.jit.optimize_for_inference])
def test_frozen_modules_have_no_parameters(make, lazy_mode):
    module = torch.jit.script(torch.nn.Linear(3, 2).eval())
    x = torch.ones(4, 3)
    with lazy(lazy_mode):
        frozen = make(torch.jit.freeze(module) if make is not torch.jit.freeze else module)
        result = frozen(x)
    assert not list(frozen.parameters()) and not result.requires_grad
    torch.testing.assert_close(unwrap(result), module(x).detach())


SAVES = """
import torch

class Saves(torch.jit.ScriptModule):
    __constants__ = ["path"]

    def __init__(self, path):
        super().__init__()
        self.path = path

    @torch.jit.script_method
    def forward(self, x):
        torch.save(x, self.path)
        return x
"""
LOST = """
import sys, torch, lazyeng
from torch.jit import _builtins
sys.path.insert(0, {folder!r})
from saves import Saves
path = {folder!r} + "/saved"
print(Saves(path)(torch.ones(2)).tolist(), torch.load(path).tolist())
for name in ("save", "set_anomaly_enabled", "_has_compatible_shallow_copy_type"):
    print(_builtins._find_builtin(getattr(torch, name)))
"""


def test_functions_that_are_replaced_are_builtins_still(tmp_path):
    (tmp_path / "saves.py").write_text(SAVES)  # TorchScript reads the source
    run = fresh.run(LOST.format(folder=str(tmp_path)))
    assert run.stdout.splitlines() == [
        "[1.0, 1.0] [1.0, 1.0]", "aten::save", "aten::set_anomaly_enabled",
        "aten::_has_compatible_shallow_copy_type",
    ], run.stderr  # fmt: skip
