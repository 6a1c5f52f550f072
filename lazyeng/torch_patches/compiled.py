"""torch.compile: the border of a compiled function is a place where lazy tensors are waited for.

What is compiled reads memory directly. So a compiled function is called as if outside of blocks,
once everything recorded is complete, with plain tensors; its results are lazy again if it was
called in a block or with lazy tensors. Gradients cross the border in the other direction.
`torch.cond` and its like compile a function too, and so take lazy predicates.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lazyeng import _C
from lazyeng.errors import LazyError
from lazyeng.tensor import LazyTensor
from lazyeng.torch_patches._crossing import Crossing, plain, to_plain, to_twins
from lazyeng.torch_patches._patching import inside_block, is_lazy, when_imported

# What needs no look inside.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, bool, int, float, str, type(None)))


def install() -> None:
    """Has torch's compiler changed when it is imported, which takes seconds. Once per process."""
    when_imported("torch._dynamo", _change_dynamo)
    when_imported("torch._dynamo.variables.torch_function", _change_attributes)
    when_imported("torch._inductor.output_code", _change_inductor)
    when_imported("torch._functorch._aot_autograd.runtime_wrappers", _change_tangents)


def _change_dynamo(dynamo: Any) -> None:
    # It need not try to trace lazyeng's own frames, such as that around backward().
    dynamo.trace_rules.add("lazyeng")
    failed = dynamo.exc.InternalTorchDynamoError
    context = dynamo.eval_frame.OptimizeContext
    original = context.__call__

    @functools.wraps(original)
    def compiled(self: Any, fn: Any) -> Any:
        result = original(self, fn)
        # (A module comes back here with its forward function, a class with its methods.)
        return _with_border(result, failed) if inspect.isfunction(result) else result

    context.__call__ = compiled
    find_backend = dynamo.eval_frame.get_compiler_fn

    @functools.wraps(find_backend)
    def get_compiler_fn(name: Any) -> Any:
        return _with_graph_border(find_backend(name))

    dynamo.eval_frame.get_compiler_fn = get_compiler_fn


def _change_attributes(variables: Any) -> None:
    """Methods of lazy tensors are torch's, so far as a graph is concerned, which has plain ones."""
    original = getattr(variables, "_is_attr_overridden", None)
    if original is None:  # (another torch: then methods break graphs)
        return

    @functools.wraps(original)
    def is_overridden(tx: Any, var: Any, name: str) -> bool:
        overridden: bool = original(tx, var, name)
        return overridden and not issubclass(var.python_type(), LazyTensor)

    variables._is_attr_overridden = is_overridden


def _with_graph_border(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Parameters of a module, and what else a function finds by itself, come to its graphs past
    the border."""

    @functools.wraps(backend)
    def compile_graph(*args: Any, **kwargs: Any) -> Any:
        graph = backend(*args, **kwargs)

        # (With the attributes of `graph`, dynamo would go by them to what it is a wrapper of.)
        def run(*inputs: Any) -> Any:
            if _of_a_block.called:
                _raise_what_failed(inputs)
            if not any(is_lazy(x) for x in inputs):
                return graph(*inputs)
            _C.wait_for_all()
            return graph(*to_twins(inputs))

        return run

    return compile_graph


def _with_border(
    compiled: Callable[..., Any], failed_in_compiler: type[Exception]
) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def border(*args: Any, **kwargs: Any) -> Any:
        try:
            return cross(args, kwargs)
        except failed_in_compiler as error:
            # (A parameter, or what else dynamo finds by itself, has failed.)
            failed = error.__cause__ or error.__context__
            if not isinstance(failed, LazyError):
                raise
        raise failed

    def cross(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs and all(type(arg) in _PLAIN for arg in args) and not inside_block():
            return compiled(*args)
        leaves = pytree.tree_leaves((args, kwargs))
        if not inside_block() and not any(is_lazy(leaf) for leaf in leaves):
            return compiled(*args, **kwargs)
        _C.wait_for_all()
        _raise_what_failed(leaves)
        in_block = inside_block()
        return _C.call_outside(_call, (compiled, args, kwargs, leaves, in_block), {})

    return border


def _call(
    compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any],
    in_block: bool,
) -> Any:  # fmt: skip
    before = _of_a_block.called
    _of_a_block.called = in_block
    try:
        return Crossing(args, kwargs, leaves).call(compiled)
    finally:
        _of_a_block.called = before


class _OfABlock(threading.local):
    """Whether the compiled function that the thread is in was called in a block."""

    called = False


_of_a_block = _OfABlock()


def _raise_what_failed(tensors: Iterable[Any]) -> None:
    """Of plain tensors that a block writes: a lazy one raises as it is replaced."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not is_lazy(tensor):
            _C.call_eagerly(_look, tensor, (), {}, True)


def _look(_tensor: torch.Tensor) -> None: ...


def _change_inductor(output_code: Any) -> None:
    """Backward passes run graphs too, perhaps in a block, and with lazy gradients."""
    graph = output_code.CompiledFxGraph
    original = graph.__call__

    @functools.wraps(original)
    def run(self: Any, inputs: Any) -> Any:
        some_lazy = any(is_lazy(x) for x in inputs)
        if not some_lazy and not inside_block():
            return original(self, inputs)
        _C.wait_for_all()
        if some_lazy:
            inputs[:] = [plain(x) for x in inputs]  # (the list is the callee's, which empties it)
        return _C.call_outside(original, (self, inputs), {})

    graph.__call__ = run


def _change_tangents(runtime_wrappers: Any) -> None:
    """Gradients of graphs' outputs: what nobody used has zeros, which are lazy in a backward pass
    of lazy tensors."""
    graph = runtime_wrappers.AOTDispatchAutograd
    original = graph.process_runtime_tangent

    @functools.wraps(original)
    def process(x: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*to_plain([x]), *args, **kwargs)

    graph.process_runtime_tangent = staticmethod(process)
