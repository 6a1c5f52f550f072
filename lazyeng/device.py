"""torch.device("lazyeng"): the module that torch expects behind a device name."""

from __future__ import annotations

import functools
import os
import sys
import types
import warnings
from typing import Any

import torch
import torch.utils.backend_registration

from lazyeng import _C
from lazyeng.torch_patches import loading

NAME = "lazyeng"
_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # (torch reads it at each call)


def register() -> None:
    """Names the PrivateUse1 backend and gives torch its device module. Once per process."""
    real = "cuda:0" if _has_gpu() else "cpu"
    _C.set_backing_device(real)
    if not _C.keep_accelerator() and torch.version.cuda is not None:
        warnings.warn(
            f'lazyeng: torch {torch.__version__} cannot have the device "{NAME}" beside '
            f"{torch.accelerator.current_accelerator()} in a way that this version of lazyeng "
            "knows; all else works",
            stacklevel=2,
        )
        return
    torch.utils.backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module())
    torch.utils.backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=False
    )
    _autocast_by_name()
    _profile_no_device()
    loading.install(NAME, real)


def _has_gpu() -> bool:
    """Without a call of CUDA's: after one, no child of a fork can use a GPU."""
    if torch.version.cuda is None:
        return torch.cuda.is_available()  # (that of whoever has put another function there)
    before = os.environ.get(_BY_NVML)
    os.environ[_BY_NVML] = "1"
    try:
        return torch.cuda.is_available()
    finally:
        if before is None:
            del os.environ[_BY_NVML]
        else:
            os.environ[_BY_NVML] = before


def _autocast_by_name() -> None:
    """``torch.autocast("lazyeng")`` is that of the real device: lazy tensors go by it."""
    original = torch.autocast.__init__

    @functools.wraps(original)
    def init(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        if isinstance(device_type, str) and device_type.partition(":")[0] == NAME:
            device_type = "cuda" if torch.cuda.is_available() else "cpu"
        original(self, device_type, *args, **kwargs)

    setattr(torch.autocast, "__init__", init)  # noqa: B010 (a type checker refuses the assignment)


def _profile_no_device() -> None:
    """torch.profiler would record a device of its own for each PrivateUse1 backend."""
    original = getattr(torch.autograd, "_supported_activities", None)
    if original is None:  # in a version of torch that asks elsewhere
        return

    @functools.wraps(original)
    def supported() -> set[torch.profiler.ProfilerActivity]:
        return original() - {torch.profiler.ProfilerActivity.PrivateUse1}

    for module in (torch.autograd, torch.autograd.profiler, torch.profiler):
        if hasattr(module, "_supported_activities"):
            setattr(module, "_supported_activities", supported)  # noqa: B010


def _device_module() -> types.ModuleType:
    module = types.ModuleType(f"torch.{NAME}")
    for function in (
        is_available, is_initialized, device_count, current_device, set_device, _is_in_bad_fork,
        manual_seed_all, manual_seed, get_rng_state, set_rng_state, get_amp_supported_dtype,
        synchronize, device,
    ):  # fmt: skip
        setattr(module, function.__name__, function)
    return module


class device:  # noqa: N801 (as torch.cuda.device is)
    """Context manager for the selected device; there is one, so it changes nothing."""

    def __init__(self, _device: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


# Who asks in order to move there what is on the CPU: (module, function; None: any).
_SEEKING_ACCELERATORS = (
    ("torch._utils", "_get_available_device_type"),  # DataParallel, among others
    ("torch.distributed.checkpoint.filesystem", None),
)


def is_available() -> bool:
    """True, but for those parts of torch that look for an accelerator to use in the CPU's place:
    this device is none (csrc/record/device/accelerator.h), and no program gets it that does not
    name it.
    """
    caller = sys._getframe(1)
    module, function = caller.f_globals.get("__name__"), caller.f_code.co_name
    return not any(
        module == seeker and name in (None, function) for seeker, name in _SEEKING_ACCELERATORS
    )


def is_initialized() -> bool:
    """FakeTensorMode asks."""
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(_device: object) -> None:
    """There is one device."""


def _is_in_bad_fork() -> bool:
    return False  # the engine works in a forked child


def manual_seed_all(seed: int) -> None:
    """Called by torch.manual_seed, too, before it seeds the default generator itself."""
    _C.wait_for_generators()
    torch.default_generator.manual_seed(int(seed))


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


def get_rng_state(_device: object = None) -> torch.Tensor:
    _C.wait_for_generators()
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, _device: object = None) -> None:
    _C.wait_for_generators()
    torch.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def synchronize(_device: object = None) -> None:
    from lazyeng.mode import synchronize as synchronize_engine

    synchronize_engine()
