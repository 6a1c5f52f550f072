"""Starting the C++ core: the class of its results, its threads and its bounds."""

from __future__ import annotations

import os
import sys

import torch

from lazyeng import _C, device, process, sharing
from lazyeng import config as environment
from lazyeng._arguments import as_int
from lazyeng.config import MAX_WORKERS, MODES, STACKS, Config
from lazyeng.fuse.chosen import names
from lazyeng.tensor import LazyTensor, _rebuild
from lazyeng.torch_patches import (
    autocast,
    backward,
    comparing,
    compiled,
    custom_ops,
    dirty_inputs,
    fused_adam,
    jiterator,
    optimizers,
    parameters,
    plain_data,
    plain_reads,
    process_groups,
    resizing,
    saving,
    script_modules,
    settings,
    subclasses,
    torch_profiler,
    tracers,
    uninitialized,
)

# In the order in which torch's functions get their places taken: where two take one, the later one
# is called first.
_INSTALLED = (
    plain_reads, plain_data, resizing, parameters, uninitialized, torch_profiler, backward,
    compiled, custom_ops, dirty_inputs, sharing, subclasses, optimizers, fused_adam, process_groups,
    process, saving, script_modules, settings, tracers, jiterator, comparing, autocast,
)  # fmt: skip

_configs_read: list[Config] = []  # of the environment; the last one counts
_failures: list[BaseException] = []  # of the first import


def start(config: Config) -> None:
    """Brings the core up as `config` says, at import. A reload of the package changes nothing.

    Raises:
        ImportError: another copy of the package did so in this process, or an earlier import has
            failed, which has left the core half made.
    """
    if _failures:
        raise ImportError("lazyeng: an earlier import in this process failed") from _failures[0]
    if _configs_read:
        return
    try:
        _bring_up(config)
    except BaseException as error:
        _failures.append(error)
        raise


def _bring_up(config: Config) -> None:
    _C.init(LazyTensor, config.num_workers)
    _configs_read.append(config)
    _apply(config)
    _C.arm_first_use()
    _C.announce_kernel_requests()
    _C.set_internal_prefixes(_internal_directories())
    device.register()
    _be_found_in_torch()
    torch.serialization.add_safe_globals([LazyTensor, _rebuild])
    for module in _INSTALLED:
        module.install()
    _C.start_engine()


def _be_found_in_torch() -> None:
    """Libraries that do not import torch know its tensors by their module's name, ``torch``.

    (wandb, tensorboardX, opt_einsum and others.) The device's module has such a name, and pickle
    finds the class there.
    """
    if module := sys.modules.get(f"torch.{device.NAME}"):
        setattr(module, LazyTensor.__name__, LazyTensor)
        LazyTensor.__module__ = module.__name__


def look_again() -> None:
    """The environment may have changed since the import, which the program does not see happen.

    `import torch` imports lazyeng; what a program sets after that line, and before it uses lazyeng,
    counts. Called by the core (csrc/record/process/first_use.h).

    Raises:
        ValueError: a variable has a value that is not allowed; the message names both.
    """
    before, now = _configs_read[-1], environment.read()
    if now == before:
        return  # (what was set by functions meanwhile stays)
    _configs_read.append(now)
    _apply(now)
    if now.num_workers != before.num_workers:
        _C.set_num_workers(now.num_workers)


def _apply(config: Config) -> None:
    _C.set_default_mode(MODES.index(config.mode))
    _C.set_stack_mode(STACKS.index(config.stacks))
    _C.install_buffer_pool(config.max_pool_bytes)
    _C.set_fusion(config.fusion != "off")
    _C.set_inexact_fusion(config.fusion == "on")
    inexact = config.fusion not in ("exact", "off")
    _C.set_inexact_device_fusion(inexact)
    fused_adam.enable(inexact)
    if inexact:
        _C.set_chosen_ops(list(names.ALONE), list(names.PAIRS), list(names.LISTS))
    else:
        _C.set_chosen_ops([], [], [])
    _C.set_cuda_graphs(config.cuda_graphs)
    _C.set_fusion_log("fusion" in config.logs)
    _C.set_limits(config.max_pending_ops, config.max_pending_bytes)


def set_num_workers(n: int) -> None:
    """Sets the number of engine threads for CPU operators; returns when those that run are done.

    Args:
        n: number of threads, 1 to 1024; the default is ``LAZYENG_NUM_WORKERS``, else one less
            than the process has cores, since the thread that records needs one.

    Raises:
        TypeError: `n` is not an int.
        ValueError: `n` is not positive, or more than 1024.
    """
    n = as_int("set_num_workers: expected an int", n)
    if n < 1:
        raise ValueError(f"set_num_workers: expected a positive number, got {n}")
    if n > MAX_WORKERS:
        raise ValueError(f"set_num_workers: expected at most {MAX_WORKERS}, got {n}")
    _C.set_num_workers(n)


def _internal_directories() -> list[str]:
    """Frames of code under these are not the user's: lazyeng (first) and torch."""
    here = os.path.dirname(os.path.abspath(__file__))
    torch_dir = os.path.dirname(os.path.abspath(torch.__file__))
    return [here + os.sep, torch_dir + os.sep]
