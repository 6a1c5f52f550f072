"""Custom ops: each is recorded as one op from its first call on.

The dispatcher's registration listener (csrc/record/library.cpp) hears of an op when it is defined,
before it has kernels; here lazyeng is told when kernels have come.

An op of aten that gets a kernel of the program's is treated as a custom op for as long as it has
it: what lazyeng knows of the op is about torch's kernel, in whose place no other may be run, and
which alone may be tried with made-up numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch.library
from torch._library import custom_ops as definitions

from lazyeng import _C


def install() -> None:
    """Puts the telling functions in place of torch's own. Once per process, at import."""
    torch.library.Library.impl = _then_look(torch.library.Library.impl)
    torch.library.Library._destroy = _after_what_is_recorded(torch.library.Library._destroy)
    torch.library._del_library = _then_look_again(torch.library._del_library)
    # (Those for CUDA that are there now may be torch's own, which has some in Python.)
    _look_at(_replaced(kernel for kernel in torch.library._impls if not kernel.endswith("/CUDA")))
    torch.ops.load_library = _then_adopt(torch.ops.load_library)
    definitions.increment_version = _announced(definitions.increment_version)


def _then_adopt(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _C.adopt_ops_with_kernels()
        return result

    return register


# What runs where lazyeng runs ops; "" stands for the last.
_KEYS = ("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "")


def _replaced(kernels: Iterable[str]) -> set[str]:
    """The ops of aten, "mul.Tensor", among kernels as torch writes them: "aten/mul.Tensor/CPU"."""
    parts = (kernel.split("/") for kernel in kernels)
    return {name for space, name, key in parts if space == "aten" and key in _KEYS}


def _look_at(ops: Iterable[str]) -> None:
    """Tells which of these ops of aten have a kernel of the program's now, and which have none."""
    for op in ops:
        name, _, overload = op.partition(".")
        replaced = any(f"aten/{op}/{key}" in torch.library._impls for key in _KEYS)
        _C.set_replaced(f"aten::{name}", overload, replaced)


def _take_back_kernels(definitions: Iterable[str]) -> None:
    """Before these definitions ("mylib::foo.out") end: see csrc/record/library.h."""
    for name in definitions:
        _C.take_back_kernels(name.partition(".")[0])


def _wait() -> None:
    """For what is recorded. (Once the engine has ended with the program, all of it has run; what a
    daemon thread recorded in that moment never does.)"""
    if not _C.in_custom_kernel() and not _C.records_in_sync_only():
        _C.wait_for_all()


def _then_look(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        replaces = self.ns == "aten" and (dispatch_key or self.dispatch_key) in _KEYS
        if replaces:
            _wait()
        result = original(self, op_name, fn, dispatch_key, **kwargs)
        _C.adopt_ops_with_kernels()
        if replaces:
            _look_at(_replaced(self._op_impls))
        return result

    return impl


def _then_look_again(delete: Callable[..., Any]) -> Callable[..., Any]:
    """For `del library`. (Those that were made before lazyeng was imported call torch's own.)"""

    @functools.wraps(delete)
    def del_library(
        impls: set[str], its_impls: Collection[str], defs: set[str], its_defs: Collection[str],
        *rest: Any,
    ) -> None:  # fmt: skip
        ops = _replaced(its_impls)
        if ops or its_defs:
            _wait()
        _take_back_kernels(its_defs)
        delete(impls, its_impls, defs, its_defs, *rest)
        _look_at(ops)

    return del_library


def _after_what_is_recorded(destroy: Callable[..., Any]) -> Callable[..., Any]:
    """Defining a custom op of the same name again first takes back the old one: calls of that one
    that have not run would find the new kernel."""

    @functools.wraps(destroy)
    def destroy_library(self: Any) -> None:
        ops = _replaced(self._op_impls)
        _wait()
        _take_back_kernels(self._op_defs)
        destroy(self)
        _look_at(ops)

    return destroy_library


def _announced(increment: Callable[[Any], None]) -> Callable[[Any], None]:
    """An op made by custom_op moves the version counters of what it writes before its kernel is
    called (those of aten do so afterwards): see csrc/run/plain/own_writes.h."""

    @functools.wraps(increment)
    def increment_version(value: Any) -> None:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                _C.announce_own_write(item)
        increment(value)

    return increment_version
