"""docs/syncs.md: each call in its tables waits, or does not, as the table says.

Each is a program of its own: the setup, then the call with set_sync_debug_mode("error").
In mode "deferred" nothing runs before the call. In mode "async" an op that sleeps until the call is
over keeps everything pending.
"""

import contextlib
import copy
import gc
import io
import math
import os
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

import lazyeng
from lazyeng import SyncError, SyncWarning, lazy, set_sync_debug_mode

from .support import fresh
from .support.gate import Gate

PAGE = (Path(__file__).parents[1] / "docs" / "syncs.md").read_text()
(SETUP,) = re.findall(r"^```python setup\n(.*?)^```$", PAGE, re.M | re.S)
CALLED_BEFORE = (  # what the text around the tables says
    "optimizer = optim.SGD(params, lr=0.1)\nscaler = torch.amp.GradScaler('cpu')\n"
)
LIBRARIES = {
    "CosineAnnealingLR": CosineAnnealingLR, "F": F, "OneCycleLR": OneCycleLR,
    "ReduceLROnPlateau": ReduceLROnPlateau, "StepLR": StepLR, "copy": copy, "io": io, "os": os,
    "lazyeng": lazyeng, "math": math, "nn": nn, "np": np, "optim": optim, "pickle": pickle,
    "torch": torch,
}  # fmt: skip

gate = Gate(limit=5.0)  # a call that waits, and should not, takes so long


def tables(title):
    """The rows of a section's table: lists of cells."""
    section = PAGE.split(f"### {title}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (`.*)\|$", section, re.M)
    return [[cell.strip() for cell in row.split(" | ")] for row in rows]


def calls(title):
    found = [
        (call, waits) for cell, waits, *_ in tables(title) for call in re.findall(r"`(.+?)`", cell)
    ]
    assert {waits for _, waits in found} == {"yes", "no"}
    return found


def setup(gated):
    namespace = dict(LIBRARIES)
    source = SETUP.replace("torch.rand(2, 3)", "gate(torch.rand(2, 3))") if gated else SETUP
    assert ("gate" in source) == gated
    exec(source + CALLED_BEFORE, namespace | {"gate": gate}, namespace)
    return namespace


def waits(call, namespace):
    """Whether the call, made in the present mode, raises a SyncError."""
    code = compile(call, call, "exec")
    set_sync_debug_mode("error")
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.set_grad_enabled("mul_" not in call):
            exec(code, namespace)
    except SyncError:
        return True
    except RuntimeError as error:
        if not isinstance(error.__cause__, SyncError):  # (torch.testing makes its own of it)
            raise
        return True
    finally:
        set_sync_debug_mode("off")
    return False


@pytest.fixture(autouse=True)
def quiet():
    gc.disable()  # (what tests before have left may wait when it is collected, and run all of it)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    gc.enable()
    gate.open()


def prepared(call, gated):
    namespace = setup(gated)
    if "scaler" in call:
        namespace["scaler"].scale(namespace["loss"]).backward()
    elif "grad(" not in call and "loss.backward" not in call:
        namespace["loss"].backward()
    return namespace


def in_async(call):
    for is_open in (True, True, False):  # the first calls may learn
        (gate.open if is_open else gate.close)()
        with lazy("async"):
            found = waits(call, prepared(call, gated=True))
            gate.open()
    return found


@pytest.mark.parametrize("call, expected", calls("Inside lazy()"))
def test_inside_a_block(call, expected):
    with lazy("deferred"):
        namespace = prepared(call, gated=False)
        assert waits(call, namespace) == (expected == "yes")
    if expected == "no":
        assert not in_async(call)


@pytest.mark.parametrize("call, expected", calls("Outside of blocks, and at their end"))
def test_outside_of_blocks(call, expected, monkeypatch):
    # What must be complete when the call returns is waited for before the SyncError is raised.
    monkeypatch.setattr(gate, "limit", 0.5 if expected == "yes" else 5.0)
    with lazy("deferred"):
        namespace = prepared(call, gated=False)
    with lazy("deferred"):
        gate.close()
        namespace["x"] = gate(torch.rand(2, 3)) + 1  # an engine thread has it in hand, and waits
    assert waits(call, namespace) == (expected == "yes")


def waits_of_steps(optimizer, mode):
    """Whether each of three steps of a new optimizer waits."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    made = eval(f"optim.{optimizer}", {"optim": optim, "params": list(model.parameters())})

    def closure():
        made.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    found = []
    for _ in range(3):
        gate.close()
        with lazy(mode):
            x = gate(torch.rand(4, 8))
            closure()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", SyncWarning)
                set_sync_debug_mode("warn")  # (an error would end the step in its middle)
                made.step(closure)
                set_sync_debug_mode("off")
            found.append(any(issubclass(w.category, SyncWarning) for w in caught))
            gate.open()
    return found


@pytest.mark.parametrize("row", tables("Optimizers"), ids=lambda row: row[0].strip("`"))
def test_optimizers(row, monkeypatch):
    optimizer, (first, later, deferred) = row[0].strip("`"), (cell == "yes" for cell in row[1:])
    # A read of the number of steps needs nothing that is behind the gate.
    monkeypatch.setattr(gate, "limit", 0.02 if optimizer.startswith("LBFGS") else 5.0)
    assert waits_of_steps(optimizer, "deferred")[1:] == [deferred, deferred]
    waits_of_steps(optimizer, "async")  # what is learned, is
    runs = [waits_of_steps(optimizer, "async") for _ in range(5 if first else 1)]
    assert all(run[1:] == [later, later] for run in runs)
    assert any(run[0] for run in runs) == first  # (the engine may have counted before the read)


def test_the_table_is_broad():
    assert len(calls("Inside lazy()")) > 120


ATTENTION = """
import torch, lazyeng
from torch.library import Library
lib = Library("aten", "IMPL")
def attention(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    y = torch.softmax(q @ k.mT, -1) @ v
    none = torch.empty(0, dtype=torch.int64)
    return y, y.float().sum(-1), none, none, q.size(2), k.size(2), none, none, torch.empty(0)
lib.impl("_scaled_dot_product_flash_attention", attention, "CPU")
op = torch.ops.aten._scaled_dot_product_flash_attention.default
q, k, v = torch.rand(2, 3, 5, 4), torch.rand(2, 3, 7, 4), torch.rand(2, 3, 7, 4)
expected = op(q, k, v)
assert expected[4:6] == (5, 7)
ran = []
for mode in ("async", "deferred", "deferred"):  # (the first one runs at the call)
    before = lazyeng.engine_stats()["fallbacks"]
    with lazyeng.lazy(mode):
        found = op(q, k, v)
        ran.append((lazyeng.engine_stats()["fallbacks"] - before, found[0].is_ready()))
    assert found[4:6] == (5, 7), found
    torch.testing.assert_close(lazyeng.unwrap(found[0]), expected[0])
assert ran[1:] == [(0, False)] * 2, ran
"""


def test_an_op_that_returns_numbers_of_shapes_does_not_wait():
    """As the fused attention of GPUs does (csrc/run/op_info.h: ReturnInfo::number)."""
    result = fresh.run(ATTENTION)
    assert result.returncode == 0, result.stderr
