"""The process that compiles (``worker.py``): it imports Triton once, for many kernels."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

WORKER = Path(__file__).with_name("worker.py")
SECONDS = 120  # for a request; most take half of one, the first some more
IDLE = 60  # seconds without a request after which the process is ended


# Environment variables that decide what Triton makes of a source, by how their names begin.
_SETTINGS = (
    "TRITON_", "DISABLE_LLVM_", "DISABLE_PTXAS_", "DISABLE_MMA_", "DISABLE_FAST_", "LLVM_", "MLIR_",
    "NVPTX_", "PTXAS_", "ALLOW_LHS_", "USE_IR_LOC",
)  # fmt: skip


def is_setting(name: str) -> bool:
    """Whether the environment variable is one that Triton's compiler looks at."""
    return name.startswith(_SETTINGS)


def compiler_settings() -> dict[str, str]:
    """Those that are set, but for what a compiler process decides by itself."""
    own = ("TRITON_CACHE_DIR", "TRITON_INTERPRET", "TRITON_DISABLE_LINE_INFO")
    return {n: value for n, value in os.environ.items() if is_setting(n) and n not in own}


class ProcessError(Exception):
    """The process did not start, or ended, or did not answer; the message says which."""


class CompilerProcess:
    """Starts with the first request. Ends with the program, and when nobody has asked for a while;
    it starts again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._folder = ""  # where it writes; after a fork that is the parent's
        self._owner = 0  # the process that started it
        self._lock = threading.Lock()
        self._idle: threading.Timer | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Waits for the answer, without the GIL.

        Raises:
            ProcessError: there is none. Another request starts another process.
        """
        with self._lock:
            if self._idle:
                self._idle.cancel()
            try:
                answer = self._ask(json.dumps(request).encode() + b"\n")
                if answer is None:
                    raise ProcessError(self._last_words())
            except BaseException:  # an interrupt too: its answer would be taken for the next one's
                self._end()
                raise
            self._idle = threading.Timer(IDLE, self.end)
            self._idle.daemon = True
            self._idle.start()
            return json.loads(answer)

    def end(self) -> None:
        """Ends it, if it runs."""
        with self._lock:
            if self._idle:
                self._idle.cancel()
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        folder, self._folder = self._folder, ""
        if process is None:
            return
        if self._owner != os.getpid():
            process.returncode = 0  # a fork: it is not ours to wait for
        else:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
        for pipe in (process.stdin, process.stdout, self._stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, line: bytes) -> bytes | None:
        """None: the process has ended."""
        process = self._running()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            return None
        return self._read_line(process.stdout.fileno())

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process and (self._owner != os.getpid() or self._process.poll() is not None):
            self._end()
        if self._process is None:
            try:
                self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (_end() closes it)
                self._folder = tempfile.mkdtemp(prefix="lazyeng-triton-")  # 0700
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(WORKER), self._folder],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                    env={n: value for n, value in os.environ.items() if not is_setting(n)},
                )  # fmt: skip
            except OSError as error:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise ProcessError(f"the compiler did not run: {error}") from error
            self._owner = os.getpid()
        return self._process

    def _read_line(self, file: int) -> bytes | None:
        until = time.monotonic() + SECONDS
        line = b""
        answers = select.poll()  # (select() knows no descriptors above 1,023)
        answers.register(file, select.POLLIN)
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not answers.poll(left * 1000):
                raise ProcessError(f"the compiler did not answer within {SECONDS} seconds")
            part = os.read(file, 1 << 20)
            if not part:
                return None
            line += part
        return line

    def _last_words(self) -> str:
        """Of a process that has closed its end of the pipes."""
        assert self._process and self._stderr
        status = self._process.wait()
        self._stderr.seek(0)
        words = self._stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"the compiler ended with status {status}: {words[0] if words else 'nothing'}"
