"""Scripts in new processes, without the seconds that each would take to import torch.

A server has imported torch and torch._dynamo, for which torch's meta functions ask, but not
lazyeng, and forks for each script. The script finds what it would find under `python -c`, after
these imports with lazyeng not there yet. Differences: what is
read when torch's libraries are loaded (OMP_NUM_THREADS, LD_PRELOAD) cannot be changed by `env`, and
the process ends after its exit handlers, without the interpreter's own end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def run(
    script: str,
    *,
    env: dict[str, str] | None = None,
    timeout: float = 90,
    begin: str = "import torch, torch._dynamo",
) -> subprocess.CompletedProcess[str]:
    """Runs the script with `env` on top of this process's environment. `begin` is a script that
    runs before, in a server of its own: it may start no threads.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was killed.
    """
    server = _server(begin)
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "script": script, "env": os.environ | (env or {}), "cwd": os.getcwd(),
            "folder": folder, "timeout": timeout,
        }  # fmt: skip
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = json.loads(server.stdout.readline())
        stdout, stderr = (Path(folder, name).read_text() for name in ("stdout", "stderr"))
    if status is None:
        raise subprocess.TimeoutExpired(script, timeout, stdout, stderr)
    return subprocess.CompletedProcess(script, status, stdout, stderr)


@functools.cache
def _server(begin: str) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fresh", begin], cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {AUTOLOAD: "0"},
    )  # fmt: skip

    def end() -> None:
        server.communicate()  # (it ends with its input)

    atexit.register(end)
    return server


def _serve(begin: str) -> str | None:
    """Returns in each child, with its script; in the server at the end of its input."""
    exec(compile(begin, "<begin>", "exec"), {"__name__": "<begin>"})
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
            return request["script"]
        print(json.dumps(_wait(child, request["timeout"])), flush=True)
    return None


def _become(request: dict) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(Path(request["folder"], name), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["-c"]
    sys.path[0] = ""


def _wait(child: int, timeout: float) -> int | None:
    """The exit status; None if it was ended because the time was over: by an abort first, so that
    `faulthandler` says where it was."""
    if (status := _status(child, timeout)) is not None:
        return status
    for last in (signal.SIGABRT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, last)
        if _status(child, 5) is not None:
            break
    return None


def _status(child: int, timeout: float) -> int | None:
    """None: the process goes on."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def _run_and_exit(script: str) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    end_after(lambda: exec(compile(script, "<string>", "exec"), main.__dict__))


def end_after(run: Callable[[], object]) -> None:
    """Ends a forked process when `run` is done: after the exit handlers, without the interpreter's
    own end. Freeing all modules would copy every page that is shared with the server, which takes
    longer than importing torch."""
    status = 0
    try:
        run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    if (_script := _serve(sys.argv[1])) is not None:
        _run_and_exit(_script)
