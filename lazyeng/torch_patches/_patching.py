"""What the modules that put functions in the place of torch's have in common."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import itertools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.jit import _builtins

from lazyeng import _C
from lazyeng.tensor import LazyTensor

F = TypeVar("F", bound=Callable[..., Any])


def is_lazy(value: Any) -> bool:
    """Whether it is a LazyTensor; of anything."""
    return isinstance(value, LazyTensor)


def inside_block() -> bool:
    """Whether the calling thread is in a lazy() block."""
    return _C.thread_mode()[1] != 0


def put_method(name: str, method: Any) -> None:
    """Makes it a method of torch.Tensor, as which pickle finds it: torch's own can be pickled."""
    method.__module__, method.__qualname__ = "torch", f"Tensor.{name}"
    setattr(torch.Tensor, name, method)


def as_builtin_of(original: F, replacement: F) -> F:
    """The replacement, which TorchScript, as it knows functions by objects, takes for torch's."""
    table: dict[int, str] = _builtins._builtin_table or {}
    if id(original) in table:  # (else it will find the replacement in its place)
        table[id(replacement)] = table[id(original)]
    return replacement


def when_imported(name: str, change: Callable[[Any], None]) -> None:
    """Has a module changed once it has been imported, which may be now, later or never."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, as the finders after it do, and has it changed after its code has run.

    It stays where it is: who asks for a spec (importlib.util.find_spec) need not import it, and a
    module that is loaded again has to be changed again.
    """

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self.name = name
        self.change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = self._spec_of_those_after(path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def then_change(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == self.name:  # (a loader may be that of many modules)
                self.change(module)

        loader.exec_module = then_change
        return spec

    def _spec_of_those_after(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        from_us_on = itertools.dropwhile(lambda finder: finder is not self, list(sys.meta_path))
        for finder in itertools.islice(from_us_on, 1, None):
            find = getattr(finder, "find_spec", None)
            spec = find(self.name, path, target) if find else None
            if spec is not None:
                return spec
        return None
