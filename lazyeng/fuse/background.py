"""Kernels compiled by a thread in the background; a group runs unfused until they are there."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import warnings
from collections.abc import Callable, Sequence

from lazyeng.fuse.compiler import (
    Compiled,
    CompileError,
    Request,
    compile_kernels,
    triton_version,
)
from lazyeng.fuse.disk_cache import DiskCache


class CompileWarning(UserWarning):
    """A group cannot be compiled; it runs unfused, with the same results."""


class BackgroundCompiler:
    """Takes requests, looks on disk, compiles what is not there, and keeps what came out.

    One thread, which begins with the first request, as what is compiled next is most often what
    runs next. Any thread may ask; nobody waits. After a fork the child begins anew.
    """

    def __init__(
        self,
        cache: DiskCache | None = None,
        compile: Callable[[Sequence[Request]], list[Compiled]] = compile_kernels,
    ) -> None:
        self._cache = cache or DiskCache()
        self._compile = compile
        self._lock = threading.Lock()
        self._known: dict[str, Compiled | None] = {}  # None: asked for, or it cannot be compiled
        self._reported: set[str] = set()
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._queue: queue.SimpleQueue[tuple[str, Request]] = queue.SimpleQueue()
        self._pending = 0
        self._done = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def get(self, request: Request) -> Compiled | None:
        """The kernel if it is there; otherwise None, and it will be, unless it cannot be compiled.
        Never waits for the compiler or for the disk."""
        key = request.key()
        with self._lock:
            if self._process != os.getpid():
                self._known = {k: kernel for k, kernel in self._known.items() if kernel}
                self._start()
            if key in self._known:
                return self._known[key]
            self._known[key] = None
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="lazyeng-compiler", daemon=True
                )
                self._thread.start()
        self._queue.put((key, request))
        return None

    def wait(self, timeout: float | None = None) -> bool:
        """Until everything that was asked for is there, or cannot be compiled; False if that took
        longer than ``timeout`` seconds. For tests and warm-ups."""
        with self._done:
            return self._done.wait_for(lambda: self._pending == 0, timeout)

    def _run(self) -> None:
        while True:
            key, request = self._queue.get()
            kernel = None
            try:
                kernel = self._find(key, request)
            except Exception as error:
                self._report(request, error)
            with self._done:
                self._known[key] = kernel
                self._pending -= 1
                self._done.notify_all()

    def _find(self, key: str, request: Request) -> Compiled:
        kept = self._cache.get(key)
        if kept is not None:
            with contextlib.suppress(ValueError, TypeError):  # of another format: compile again
                return Compiled.from_bytes(kept)
        if triton_version() is None:
            raise CompileError("Triton is not installed (pip install lazyeng[gpu])")
        (kernel,) = self._compile([request])
        self._cache.put(key, kernel.to_bytes())
        return kernel

    def _report(self, request: Request, error: Exception) -> None:
        """Once for each thing that the compiler says, however many groups it says it of."""
        said = str(error) or type(error).__name__
        if said in self._reported:
            return
        self._reported.add(said)
        with contextlib.suppress(CompileWarning):  # filters may turn it into an exception
            warnings.warn(
                f"lazyeng: a fused group cannot be compiled for sm_{request.arch} and runs op by "
                f"op: {said}",
                CompileWarning,
                stacklevel=2,
            )
