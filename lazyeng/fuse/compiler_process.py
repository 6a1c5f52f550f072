"""The process that compiles (``worker.py``): it imports Triton once, for many kernels."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

WORKER = Path(__file__).with_name("worker.py")
SECONDS = 120  # for a request; most take half of one, the first some more


class ProcessError(Exception):
    """The process did not start, or ended, or did not answer; the message says which."""


class CompilerProcess:
    """Starts with the first request; ends with the program, or when nobody has asked for a while
    (``worker.IDLE``), and starts again. For one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._owner = 0  # the process that started it

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Waits for the answer, without the GIL.

        Raises:
            ProcessError: there is none. Another request starts another process.
        """
        line = json.dumps(request).encode() + b"\n"
        try:
            answer = self._ask(line)
            if answer is None and self._ended() == 0:  # it had just gone, as nobody had asked
                answer = self._ask(line)
        except BaseException:  # an interrupt: its answer would be taken for the next one's
            self.end()
            raise
        if answer is None:
            raise ProcessError(self._last_words())
        return json.loads(answer)

    def end(self) -> None:
        """Kills it, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner != os.getpid():
            process.returncode = 0  # a fork: it is not ours to wait for
        else:
            process.kill()
            process.wait()
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
            self.end()
        if self._process is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (end() closes it)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(WORKER)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                )  # fmt: skip
            except OSError as error:
                raise ProcessError(f"the compiler did not run: {error}") from error
            self._owner = os.getpid()
        return self._process

    def _read_line(self, file: int) -> bytes | None:
        until = time.monotonic() + SECONDS
        line = b""
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([file], [], [], left)[0]:
                raise ProcessError(f"the compiler did not answer within {SECONDS} seconds")
            part = os.read(file, 1 << 20)
            if not part:
                return None
            line += part
        return line

    def _ended(self) -> int | None:
        """Its status; it has closed its end of the pipes."""
        return self._process.wait() if self._process else None

    def _last_words(self) -> str:
        status, said = self._ended(), b""
        if self._stderr:
            self._stderr.seek(0)
            said = self._stderr.read()
        self.end()
        words = said.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        return f"the compiler ended with status {status}: {words[0]}"
