"""Benchmarks run and print what they promise; no figure is looked at."""

from __future__ import annotations

import argparse
import copy
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lazyeng
from benchmarks import steps
from benchmarks.__main__ import SCRIPTS, TABLES
from benchmarks.bursts import NoAnswerError, Runner
from benchmarks.gpu_programs import CHAINS, LAUNCH_BOUND, SMALL_SHAPE, Layer, Llama
from benchmarks.requests import PAUSES

ROOT = Path(__file__).parent.parent


def output_of(*arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def columns(line: str) -> list[str]:
    return line.split()


@pytest.mark.parametrize("table", TABLES)
def test_each_table_has_its_script(table: str) -> None:
    script = importlib.import_module(f"benchmarks.{SCRIPTS.get(table, table)}")
    assert callable(script.main)


def test_an_unknown_table_is_named() -> None:
    assert "no table 'steeps'" in output_of("benchmarks", "steeps", status=2)


def test_one_command_runs_all_tables_and_the_gpus_says_in_one_line_that_there_is_no_gpu() -> None:
    heading, line, seconds = output_of("benchmarks", "gpu").split("\n", 3)[1:]
    assert heading == "== steps, chains, decoding and copies on a GPU (gpu)"
    assert line == "no CUDA device: nothing to measure here"
    assert "FAILED" not in seconds


def test_gpu_tables_on_the_cpu() -> None:
    text = output_of(
        "benchmarks.gpu", "--device", "cpu", "--small", "--rounds", "1", "--seconds", "0.001",
        "--no-compile",
    )  # fmt: skip
    for name in [*LAUNCH_BOUND, "Llama, batch 1", *CHAINS, "products a batch"]:
        assert sum(name in line for line in text.splitlines()) >= 1, name


@torch.no_grad()
def test_decoding_fills_the_caches_and_is_the_same_lazily() -> None:
    torch.manual_seed(1)
    model = Llama(SMALL_SHAPE)
    lazily = copy.deepcopy(model)
    for _ in range(3):
        model()
    with lazyeng.lazy():
        for _ in range(3):
            lazily()
    assert int(model.at) == int(lazily.at) == 3
    for layer, other in zip(model.layers, lazily.layers, strict=True):
        assert isinstance(layer, Layer) and isinstance(other, Layer)
        assert layer.keys[:, :, :3].all()
        assert not layer.keys[:, :, 3:].any()
        torch.testing.assert_close(other.keys, layer.keys)
        torch.testing.assert_close(other.values, layer.values)


def test_torch_compile_has_a_limit_of_time() -> None:
    with pytest.raises(NoAnswerError, match=r"^not done within 0.01 s$"):
        Runner("MLP, AdamW", "compile", limit=0.01)


def test_a_program_that_fails_says_why() -> None:
    with pytest.raises(NoAnswerError, match=r"^KeyError: 'no such program'$"):
        Runner("no such program", "eager")


def test_where_torch_compile_does_not_apply_the_table_of_steps_has_a_dash() -> None:
    columns = steps.columns_of(argparse.Namespace(compile=True))
    figures = dict.fromkeys(columns, 1.0)
    assert "-" not in steps.row("LSTM", figures, columns)
    for column in ("compile", "over it", "first s"):
        del figures[column]
    assert steps.row("LSTM", figures, columns).split()[6:9] == ["-", "-", "-"]


def test_requests_have_a_ratio_for_each_pause() -> None:
    lines = output_of(
        "benchmarks.requests", "--requests", "2", "--rounds", "1", "--only", "product"
    ).splitlines()
    name, *figures = columns(lines[-1])
    assert name == "product"
    assert len(columns(lines[-2])) == len(columns(lines[-1])) + len(PAUSES) - 1
    assert all(float(figure) > 0 for figure in figures[:-1])  # (no line where there is one core)


def test_what_running_a_small_op_costs() -> None:
    lines = output_of("benchmarks.engine", "--rounds", "1", "--ops", "50").splitlines()
    assert columns(lines[1])[:5] == ["kernel", "dispatcher", "TorchScript", "worker", "chain"]
    assert [columns(line)[0] for line in lines[2:]] == [
        "aten::add", "aten::mul_", "aten::relu", "aten::mm", "empty",
    ]  # fmt: skip
    for line in lines[2:6]:
        assert all(float(ns) > 0 for ns in columns(line)[1:6])


def test_replayed_shares() -> None:
    text = output_of("benchmarks.replays", "--ops", "3000", "1,000 tiny ops")
    header, without_reads, with_reads = text.splitlines()
    assert columns(header)[-2:] == ["first", "later"]
    assert columns(with_reads)[3] == "read"
    assert all(0 <= float(share) <= 1 for share in columns(without_reads)[-2:])
