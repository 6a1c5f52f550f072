"""The programs of tests/programs/cuda_programs.py and its like on a real GPU:
`python -m tests.real_cuda MODULE CHECK`, in a process of its own, as a kernel that fails takes CUDA
down.

They are written for the simulated device (tests/simulated_cuda). What stands for its controls here
changes nothing: a GPU cannot be held back, and says nothing of its launches. Kernels are Triton's.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import lazyeng
from lazyeng import _C
from lazyeng.fuse import background
from lazyeng.fuse.compiler import Compiled, Request, compile_kernels
from tests.programs import random_programs

PROGRAMS = (
    "cuda_programs", "stream_programs", "graph_programs", "hand_written_programs", "gpu_programs"
)  # fmt: skip

_TWO = "has two devices"
_HELD = "holds the device back"
_COUNTED = "counts what the device has launched"
_MEMORY = "has a device of a few MiB"
_FAILS = "lets a kernel fail"
_DEVICE = "is about the simulated device itself"

#: What does not run here: why.
LEFT_OUT = {
    "check_devices_have_an_index": _TWO,
    "check_copies_overlap_kernels": _HELD,
    "check_copies_have_threads": _TWO,
    "check_many_threads_copy": _TWO,
    "check_candidates_are_listed": _HELD,
    "check_a_wait_for_the_device_can_be_interrupted": _HELD,
    "check_repr_never_waits": _HELD,
    "check_a_failure_of_a_kernel_is_one_of_the_members": _FAILS,
    "check_a_kernel_that_fails_names_its_op": _FAILS,
    "check_a_lost_device_is_blamed_on_the_ops": _FAILS,
    "check_each_device_has_its_kernels": _TWO,
    "check_dropout_draws_what_torchs_kernel_draws": "sets the generator's state by the device",
    "check_what_is_captured_runs_when_it_is_launched": _DEVICE,
    "check_memory_of_a_capture_is_the_graphs": _DEVICE,
    "check_what_is_not_permitted_fails_the_capture": _DEVICE,
    "check_a_capture_that_fails_loses_nothing": "lets a capture fail",
    "check_an_op_that_cannot_be_captured_stays_outside": "lets a capture fail",
    "check_a_graph_without_memory_runs_as_its_ops": _MEMORY,
    "check_what_is_kept_for_reuse_is_given_back": _MEMORY,
    "check_memory_that_other_streams_are_past_is_used": _MEMORY,
    "check_out_of_memory_is_an_error_of_its_op_alone": _MEMORY,
    "check_a_group_that_lacks_memory_runs_all_the_same": _MEMORY,
    "check_what_is_pending_is_bounded_by_the_memory_of_the_device": _MEMORY,
    "check_a_group_without_a_kernel_frees_memory_as_it_goes": _MEMORY,
    "check_kernels_do_not_overwrite_what_is_being_copied_to_the_host": _HELD,
    "check_a_pinned_source_is_not_written_before_it_is_copied": _HELD,
    "check_a_plain_source_that_changes_in_flight_is_reported": _HELD,
    "check_the_engine_bounds_what_is_being_copied": _HELD,
    "check_ops_run_on_the_selected_stream": _COUNTED,
    "check_backward_runs_on_the_stream_of_its_forward": _COUNTED,
    "check_groups_run_on_the_selected_stream": _COUNTED,
    "check_plain_tensors_remember_what_other_streams_do": _COUNTED,
    "check_what_fails_behind_a_launch_fails_each_op_once": "lets a copy fail",
    "check_ops_behind_a_launch_may_share_an_exception": "lets a copy fail",
    "check_streams_are_rows_of_a_profile": "measures how long kernels of a known length take",
    "check_chains_over_lists_that_are_torchs": "writes memory twice in one kernel: eager races too",
    "check_a_number_that_does_not_fit_is_the_ops_failure": "torch's CUDA refuses it at the call",
    "check_no_chain_of_a_heavy_loop_is_cut": _COUNTED,
    "check_any_number_of_heavy_steps_is_one_kernel": _COUNTED,
    "check_numbers_in_masks_are_recorded": _COUNTED,
}


class Controls:
    """In place of ``torch.ops.simulated_cuda``."""

    def set_delay(self, us: int) -> None: ...

    def hold(self, device: int) -> None: ...

    def hold_others(self, device: int) -> None: ...

    def let_go(self) -> None: ...

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def host_waits(self) -> int:
        return 0

    def launches(self) -> int:
        return 0

    def finished(self) -> int:
        """That of `launches` if the device has nothing to do."""
        return 0 if torch.cuda.current_stream().query() else -1

    def graph_launches(self) -> int:
        return lazyeng.engine_stats()["graph_launches"]

    def graphs(self) -> int:
        return int(lazyeng.engine_stats()["graph_bytes"] > 0)


class Ran(list[str]):
    """One unknown text for each group that ran."""

    def __len__(self) -> int:
        return lazyeng.engine_stats()["groups"]


class Kernels:
    """In place of ``tests.simulated_cuda.kernels``."""

    told = False  # which kernels ran

    def __init__(self) -> None:
        self.ran: list[str] = Ran()
        self.names: list[str] = []
        self.compiled: list[Request] = []

    def _compile(self, requests: Sequence[Request]) -> list[Compiled]:
        self.compiled.extend(requests)
        return compile_kernels(requests)

    def install(self, compile: Callable[[Sequence[Request]], list[Compiled]] | None = None) -> None:
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        cache = background.DiskCache(Path(folder.name) / "kernels")
        maker = functools.partial(background.KernelMaker, cache, compile or self._compile)
        background.KernelMaker = maker  # pyright: ignore[reportAttributeAccessIssue]

    def wait(self, seconds: float = 100) -> None:
        until = time.monotonic() + seconds
        while _C.pending_kernel_requests():
            assert time.monotonic() < until, "the compiler's thread does not answer"
            time.sleep(0.001)


def allow_products_of_integers() -> None:
    """In random programs, which have them: torch has none on CUDA."""

    def by_way_of_floats(run: Callable[..., Any], state: Any, *tensors: torch.Tensor) -> Any:
        if any(x.is_floating_point() or x.is_complex() for x in tensors):
            return run(state, *tensors)
        return run(state, *(x.double() for x in tensors)).to(tensors[0].dtype)

    for name in ("mm", "gram", "addmm_gram", "addmm", "linear"):
        op = random_programs.OPS[name]
        run = functools.partial(by_way_of_floats, op.run)
        random_programs.OPS[name] = dataclasses.replace(op, run=run)


def programs(name: str) -> ModuleType:
    """The module, with this device's controls."""
    allow_products_of_integers()
    controls, kernels = Controls(), Kernels()
    for other in PROGRAMS:
        module = importlib.import_module(f"tests.programs.{other}")
        module.simulated, module.kernels = controls, kernels  # type: ignore[attr-defined]
    return importlib.import_module(f"tests.programs.{name}")


def checks(name: str) -> list[str]:
    module = importlib.import_module(f"tests.programs.{name}")
    # (Those of this device alone replace some of the others, by their names.)
    left_out = {} if name == "gpu_programs" else LEFT_OUT
    return [n for n in vars(module) if n.startswith("check_") and n not in left_out]


if __name__ == "__main__":
    _, _module, _check = sys.argv
    getattr(programs(_module), _check)()
    print("passed", _module, _check)
