"""torch.compile: the border of a compiled function is a place where lazy tensors are waited for.

What is compiled reads memory directly. So a compiled function is called as if outside of blocks,
once everything recorded is complete, with plain tensors; its results are lazy again if it was
called in a block or with lazy tensors. Gradients cross the border in the other direction.
`torch.cond` and its like compile a function too, and so take lazy predicates.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lazyeng import _C
from lazyeng.tensor import LazyTensor
from lazyeng.wrapping import wrap

# What needs no look inside.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, bool, int, float, str, type(None)))


def install() -> None:
    """Has torch's compiler changed when it is imported, which takes seconds. Once per process."""
    _when_imported("torch._dynamo", _change_dynamo)
    _when_imported("torch._inductor.output_code", _change_inductor)


def _change_dynamo(dynamo: Any) -> None:
    # It need not try to trace lazyeng's own frames, such as that around backward().
    dynamo.trace_rules.add("lazyeng")
    context = dynamo.eval_frame.OptimizeContext
    original = context.__call__

    @functools.wraps(original)
    def compiled(self: Any, fn: Any) -> Any:
        result = original(self, fn)
        # (A module comes back here with its forward function, a class with its methods.)
        return _with_border(result) if inspect.isfunction(result) else result

    context.__call__ = compiled
    find_backend = dynamo.eval_frame.get_compiler_fn

    @functools.wraps(find_backend)
    def get_compiler_fn(name: Any) -> Any:
        return _with_graph_border(find_backend(name))

    dynamo.eval_frame.get_compiler_fn = get_compiler_fn


def _with_graph_border(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Parameters of a module, and what else a function finds by itself, come to its graphs past
    the border."""

    @functools.wraps(backend)
    def compile_graph(*args: Any, **kwargs: Any) -> Any:
        graph = backend(*args, **kwargs)

        # (With the attributes of `graph`, dynamo would go by them to what it is a wrapper of.)
        def run(*inputs: Any) -> Any:
            if not any(_is_lazy(x) for x in inputs):
                return graph(*inputs)
            _C.wait_for_all()
            return graph(*_to_plain(inputs))

        return run

    return compile_graph


def _with_border(compiled: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def border(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and all(type(arg) in _PLAIN for arg in args) and not _inside():
            return compiled(*args)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if not _inside() and not any(_is_lazy(leaf) for leaf in leaves):
            return compiled(*args, **kwargs)
        _C.wait_for_all()
        return _C.call_outside(_call, (compiled, leaves, structure), {})

    return border


def _call(compiled: Callable[..., Any], leaves: list[Any], structure: pytree.TreeSpec) -> Any:
    args, kwargs = pytree.tree_unflatten(_to_plain(leaves), structure)
    results, structure = pytree.tree_flatten(compiled(*args, **kwargs))
    return pytree.tree_unflatten(_to_lazy(results), structure)


def _to_plain(leaves: Sequence[Any]) -> list[Any]:
    return _replaced(leaves, _is_lazy, _C.plain, _ToPlain)


def _to_lazy(leaves: Sequence[Any]) -> list[Any]:
    return _replaced(leaves, lambda leaf: type(leaf) is torch.Tensor, wrap, _ToLazy)


def _replaced(
    leaves: Sequence[Any],
    chosen: Callable[[Any], bool],
    convert: Callable[[Any], Any],
    crossing: type[torch.autograd.Function],
) -> list[Any]:
    """Those that are chosen, converted; with `crossing` those that autograd follows."""
    replaced = list(leaves)
    followed = []
    for i, leaf in enumerate(leaves):
        if not chosen(leaf):
            continue
        if leaf.requires_grad and torch.is_grad_enabled():
            followed.append(i)
        else:
            replaced[i] = convert(leaf)
    if followed:
        crossed: Any = crossing.apply(*(leaves[i] for i in followed))
        for i, new in zip(followed, crossed, strict=True):
            replaced[i] = new
    return replaced


class _ToPlain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(_C.plain(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(grad if grad is None else wrap(grad) for grad in grads)


class _ToLazy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(wrap(tensor.detach()) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(_plain(grad) for grad in grads)


def _change_inductor(output_code: Any) -> None:
    """Backward passes run graphs too, perhaps in a block, and with lazy gradients."""
    graph = output_code.CompiledFxGraph
    original = graph.__call__

    @functools.wraps(original)
    def run(self: Any, inputs: Any) -> Any:
        some_lazy = any(_is_lazy(x) for x in inputs)
        if not some_lazy and not _inside():
            return original(self, inputs)
        _C.wait_for_all()
        if some_lazy:
            inputs[:] = [_plain(x) for x in inputs]  # (the list is the callee's, which empties it)
        return _C.call_outside(original, (self, inputs), {})

    graph.__call__ = run


def _plain(value: Any) -> Any:
    return _C.plain(value) if _is_lazy(value) else value


def _is_lazy(value: Any) -> bool:
    return isinstance(value, LazyTensor)


def _inside() -> bool:
    return _C.thread_mode()[1] != 0


def _when_imported(name: str, change: Callable[[Any], None]) -> None:
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
        spec = self._spec_of_others(path, target)
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

    def _spec_of_others(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(self.name, path, target) if find else None
            if spec is not None:
                return spec
        return None
