"""Two processes that train together: lazily they find what they find in eager."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from tests.support.processes import printed_by

from .programs.distributed_programs import (
    PROCESSES,
    look_at_calls,
    lose_the_peer,
    train_and_compare,
    under_torchrun,
)

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this build of torch has no gloo",
)


def run_pair(role, tmp_path, limit):
    """What the processes print; they have to end by themselves, with status 0."""
    command = [sys.executable, "-m", "tests.programs.distributed_programs", role.__name__]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(PROCESSES)
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=limit)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * PROCESSES, "\n".join(texts)
    return texts


@pytest.mark.limit(120)
def test_programs(tmp_path):
    """All programs in one pair of processes: most of the time is that of importing torch twice."""
    run_pair(train_and_compare, tmp_path, limit=110)


@pytest.mark.limit(120)
def test_calls(tmp_path):
    run_pair(look_at_calls, tmp_path, limit=110)


@pytest.mark.limit(120)
def test_torchrun():
    """DistributedDataParallel as it is usually started, and functional collectives: losses,
    gradients and weights are eager's on both ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={PROCESSES}", "-m", "tests.programs.distributed_programs"]
    process = subprocess.Popen(
        [*command, under_torchrun.__name__], cwd=ROOT, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=110)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also those that it started
    assert process.returncode == 0, text
    for rank in range(PROCESSES):
        assert f"rank {rank} of {PROCESSES}: equal\n" in text, text


@pytest.mark.limit(60)
def test_a_peer_that_dies(tmp_path):
    """Long before the patience of the process group is at its end."""
    assert "told" in run_pair(lose_the_peer, tmp_path, limit=40)[0]


def test_coalescing_that_cannot_begin():
    """Collectives are recorded afterwards, as before."""
    lines = printed_by("""
        import torch, lazyeng
        import torch.distributed as dist
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

        def recorded():
            x = lazyeng.wrap(torch.ones(3))
            before = lazyeng.engine_stats()["recorded"]
            dist.all_reduce(x)
            return lazyeng.engine_stats()["recorded"] - before

        print(recorded())
        try:
            dist.distributed_c10d._get_default_group()._start_coalescing(torch.device("cpu"))
        except RuntimeError:
            print("refused")
        print(recorded())
    """)
    assert lines.split() == ["1", "refused", "1"]
