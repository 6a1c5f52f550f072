"""The threads that make kernels for devices; torch's own run until they are there.

Engine threads ask (``csrc/fuse/device/kernel_requests``); the first time that one does, they begin.
Each has a process that compiles (``compiler_process.py``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from lazyeng import _C
from lazyeng.fuse.chosen.calls import Calls, calls_from
from lazyeng.fuse.chosen.requests import hand_written, is_passed
from lazyeng.fuse.chosen.table import choose
from lazyeng.fuse.compiler import (
    Compiled,
    CompileError,
    NoAnswerError,
    Request,
    compile_kernels,
    end_compiler,
    request_for,
    triton_version,
)
from lazyeng.fuse.description import Program, program_from
from lazyeng.fuse.disk_cache import DiskCache
from lazyeng.fuse.kernels import Argument
from lazyeng.fuse.launches import Launch, launches_of, number_of, partial_bytes
from lazyeng.fuse.source import source_of

_KEPT = 256  # kernels in memory, some 20 KB each; the disk has them all


class CompileWarning(UserWarning):
    """A kernel cannot be compiled; torch's own run, with the same results."""


class KernelMaker:
    """Looks on disk, compiles what is not there, and remembers what came out last. (What two
    threads look for at once, both compile.)"""

    def __init__(
        self,
        cache: DiskCache | None = None,
        compile: Callable[[Sequence[Request]], list[Compiled]] = compile_kernels,
    ) -> None:
        self._cache = cache or DiskCache()
        self._compile = compile
        self._known: dict[str, Compiled | CompileError] = {}  # what was asked for last at the end
        self._lock = threading.Lock()

    def make(self, request: Request) -> Compiled:
        """The kernel.

        Raises:
            CompileError: it cannot be compiled; it is not tried again at once.
        """
        key = request.key()
        with self._lock:
            known = self._known.pop(key, None)
        if known is None:
            try:
                known = self._find(key, request)
            except NoAnswerError:
                raise
            except CompileError as error:
                known = error
        with self._lock:
            self._known[key] = known
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        if isinstance(known, CompileError):
            raise known
        return known

    def _find(self, key: str, request: Request) -> Compiled:
        kept = self._cache.get(key)
        if kept is not None:
            with contextlib.suppress(ValueError, TypeError):  # of another format: compile again
                return Compiled.from_bytes(kept)
        (kernel,) = self._compile([request])
        self._cache.put(key, kernel.to_bytes())
        return kernel


class Service:
    """Answers the requests of the core, one after another in each thread that runs it."""

    def __init__(self, maker: KernelMaker) -> None:
        self._maker = maker
        self._reported: set[str] = set()
        self._stopping = False

    def stop(self) -> None:
        """From here on nothing is reported: who compiles is about to be interrupted."""
        self._stopping = True

    def run(self) -> None:
        """Until the core says that there is nothing more."""
        if triton_version() is None:
            _C.give_up_device_groups()
            self._report(CompileError("Triton is not installed (pip install triton)"))
        while (request := _C.next_kernel_request()) is not None:
            self._answer(*request)

    def _answer(
        self,
        number: int,
        arch: int,
        data: dict[str, Any],
        ops: list[str],
        aligned: tuple[bool, ...],
    ) -> None:
        try:
            if triton_version() is None:
                raise CompileError("Triton is not installed (pip install triton)")
            if not arch:
                raise CompileError("the driver does not say what the device is")
            if "calls" in data:
                _C.answer_kernel_request(number, *self._chosen(calls_from(data), arch))
                return
            kernels = self._kernels(program_from(data), arch, ops, aligned)
            _C.answer_kernel_request(number, *kernels)
        except Exception as error:  # whatever it is, the group runs unfused
            self._report(error)
            _C.answer_kernel_request(number)

    def _kernels(
        self, program: Program, arch: int, ops: list[str], aligned: tuple[bool, ...]
    ) -> tuple[list[int], list[tuple]]:
        source = source_of(program, ops)
        launches = launches_of(program, source)
        kernels = []
        for launch in launches:
            request = request_for(
                source, launch, arch, _divisible(program, launches, launch, aligned)
            )
            made = self._maker.make(request)
            arguments = [_described(a, program, launches) for a in launch.kernel.arguments]
            kernels.append((request.key(), made.name, made.shared, made.num_warps, made.cubin,
                            (launch.programs, 1, 1), arguments))  # fmt: skip
        return partial_bytes(program, launches), kernels

    def _chosen(self, calls: Calls, arch: int) -> tuple[Any, ...]:
        """Hand-written kernels for the calls; () if torch's own are to run."""
        launches = choose(calls)
        if launches is None:
            return ()
        kernels = []
        for launch in launches.kernels:
            request = hand_written(launch, arch)
            made = self._maker.make(request)
            operands = [
                (o.kind, o.type, o.index, o.number) for o in launch.operands if is_passed(o)
            ]
            grid = (*launch.grid, 1, 1)[:3]
            kernels.append((request.key(), made.name, made.shared, made.num_warps, made.cubin,
                            grid, operands))  # fmt: skip
        tables = [
            (table.piece, [(c.places, c.moves, c.call, c.index) for c in table.columns])
            for table in launches.tables
        ]
        return launches.scratch, kernels, tables, launches.draws

    def _report(self, error: Exception) -> None:
        """Once for each thing that is said, however many groups it is said of."""
        said = str(error) or type(error).__name__
        if said in self._reported or self._stopping:
            return
        self._reported.add(said)
        with contextlib.suppress(CompileWarning):  # filters may turn it into an exception
            warnings.warn(
                f"lazyeng: a kernel cannot be compiled, its ops run one by one: {said}",
                CompileWarning,
                stacklevel=2,
            )


def _divisible(
    program: Program, launches: tuple[Launch, ...], launch: Launch, aligned: tuple[bool, ...]
) -> list[str]:
    """Names of the arguments that are multiples of 16, which makes wide loads."""
    names = []
    for argument in launch.kernel.arguments:
        match argument.kind:
            case "tensor":
                divisible = aligned[argument.index]
            case "partial":
                divisible = True  # (from the allocator, which knows no smaller steps)
            case "parameter" | "row_divisor" | "divisor":
                divisible = False
            case _:
                divisible = number_of(argument, program, launches) % 16 == 0
        if divisible:
            names.append(argument.name)
    return names


def _described(
    argument: Argument, program: Program, launches: tuple[Launch, ...]
) -> tuple[str, str, int, int | float]:
    """As ``_C.answer_kernel_request`` takes it."""
    if argument.kind in ("tensor", "parameter", "partial"):
        return argument.kind, argument.type, argument.index, 0
    return "number", argument.type, 0, number_of(argument, program, launches)


_threads: list[threading.Thread] = []


def _how_many() -> int:
    """A quarter of the cores: the program needs the others."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


def start() -> None:
    """Starts the threads, once. The core calls it on the main thread."""
    if _threads:
        return
    service = Service(KernelMaker())
    for _ in range(_how_many()):
        thread = threading.Thread(
            target=_serve, args=(service,), name="lazyeng-compiler", daemon=True
        )
        _threads.append(thread)
        thread.start()
    atexit.register(_stop, service)


def _serve(service: Service) -> None:
    try:
        service.run()
    finally:
        end_compiler()


def _stop(service: Service) -> None:
    """Lets the threads end if they wait. What one compiles is left to the end of the process, which
    ends its compiler too."""
    service.stop()
    _C.stop_kernel_requests()
    for thread in _threads:
        thread.join(timeout=0.5 / len(_threads))
