"""Two processes that train together: lazily they find what they find in eager."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from .distributed_programs import PROCESSES

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this build of torch has no gloo",
)
@pytest.mark.limit(120)
def test_processes(tmp_path):
    """All programs in one pair of processes: most of the time is that of importing torch twice."""
    command = [sys.executable, "-m", "tests.distributed_programs"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(PROCESSES)
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * PROCESSES, "\n".join(texts)
