"""Starts workers that have PyTorch's data bases: this process imports them, and forks for each.

Importing takes eight seconds of a core, and most workers have less to do. lazyeng is not imported
here: each worker imports it, with its own environment. A worker ends after its exit handlers,
without the interpreter's own end (`fresh.end_after` says why).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import IO

from tests.support import fresh

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
MOST_BYTES = 1 << 18  # of a message: the environment of a worker
_one_at_a_time = threading.Lock()


class Forked:
    """What a worker has of a `subprocess.Popen`."""

    def __init__(self, supervisor: socket.socket, stdin: IO[str], stdout: IO[str]) -> None:
        self.supervisor = supervisor.makefile("r")
        supervisor.close()
        self.stdin = stdin
        self.stdout = stdout
        self.pid = int(self.supervisor.readline())
        self.status: int | None = None

    def poll(self) -> int | None:
        if self.status is None and select.select([self.supervisor], [], [], 0)[0]:
            self.wait()
        return self.status

    def wait(self) -> int:
        if self.status is None:
            self.status = int(self.supervisor.readline())
            self.supervisor.close()
        return self.status

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(worker: str, environment: dict[str, str], stderr: IO[str] | int) -> Forked:
    """A process that runs the module's `main` with `environment` on top of this process's."""
    request = {"worker": worker, "environment": dict(os.environ) | environment}
    (stdin_read, stdin), (stdout, stdout_write) = os.pipe(), os.pipe()
    ours, theirs = socket.socketpair()
    number = stderr if isinstance(stderr, int) else stderr.fileno()
    files = [stdin_read, stdout_write, number, theirs.fileno()]
    with _one_at_a_time:
        socket.send_fds(_server(), [json.dumps(request).encode()], files)
    theirs.close()
    os.close(stdin_read)
    os.close(stdout_write)
    return Forked(ours, os.fdopen(stdin, "w"), os.fdopen(stdout))


@functools.cache
def _server() -> socket.socket:
    """The way to it. It is started by the first worker, and ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.server", str(theirs.fileno())],
        pass_fds=[theirs.fileno()], env=os.environ | {AUTOLOAD: "0"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> dict | None:
    """Returns in each worker, with its request; in the server when nobody is left to ask."""
    import torch.testing._internal.common_methods_invocations
    import torch.testing._internal.common_modules
    import torch.testing._internal.common_optimizers  # noqa: F401

    while True:
        message, files, *_ = socket.recv_fds(requests, MOST_BYTES, 4)
        _reap()
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            return _supervise(json.loads(message), files)
        for file in files:
            os.close(file)


def _reap() -> None:
    """Supervisors that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _supervise(request: dict, files: list[int]) -> dict:
    """Tells which process the worker is, and what became of it. Returns in the worker."""
    *standard, report = files
    worker = os.fork()
    if worker == 0:
        os.close(report)
        _become(request, standard)
        return request
    for file in standard:
        os.close(file)
    os.write(report, b"%d\n" % worker)
    _, status = os.waitpid(worker, 0)
    os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(request: dict, standard: list[int]) -> None:
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["worker"]]


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _requests:
        _request = _serve(_requests)
    if _request is not None:
        fresh.end_after(importlib.import_module(_request["worker"]).main)
