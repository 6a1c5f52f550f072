"""Where users call torch's own Python code, deferred failures leave torch without its frames.

A failed tensor that is read in `forward` raises through torch's own frames, which come into the
traceback as the exception leaves them: after our reader has hidden its own. So the call of a module
hides them again as it lets a deferred failure pass, and so do the other functions below: those that
call the user's code, and those in Python that read tensors themselves. A function around each would
add a frame and 0.1 us to each call, and torch.compile knows them by identity; so their code gets a
`try`, which costs nothing unless something is raised.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import itertools
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils._contextlib import context_decorator
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lazyeng import errors

_HIDE = "_lazyeng_hide"  # what the new code knows our function by: a global of torch's module

# What users call: (torch's function, name of the function in it if that is a decorator).
_CALLS: tuple[tuple[Any, str | None], ...] = (
    # They call the user's code.
    (torch.nn.Module.__call__, None),
    (context_decorator, "decorate_context"),  # @torch.no_grad()
    (torch.autograd.Function.apply.__func__, None),
    (torch.Tensor.backward, None),
    (torch.autograd.backward, None),
    (torch.autograd.grad, None),
    (torch.optim.Optimizer.profile_hook_step, "wrapper"),  # of each optimizer's step
    (torch.utils.checkpoint.checkpoint, None),
    (_BaseDataLoaderIter.__next__, None),
    # They read tensors.
    (torch.unique, None),
    (torch.nn.utils.rnn.pack_padded_sequence, None),
    (torch.optim.lr_scheduler.ReduceLROnPlateau.step, None),
    (torch.save, None),
)


def install() -> None:
    """Gives torch's functions their `try`. Once per process, at import."""
    for function, inner in _CALLS:
        code = _with_boundary(function, inner)
        if code is not None:
            function.__globals__[_HIDE] = errors.hide_in_deferred
            function.__code__ = code


def _with_boundary(function: Any, inner: str | None) -> CodeType | None:
    """The code with its body, or that of the function `inner`, in a `try`, at the same lines.

    None, and its frames are shown, if there is no source, or if somebody has replaced the function.
    """
    if not isinstance(function, FunctionType):
        return None
    old = function.__code__
    lines = _lines(old)
    if not lines:
        return None
    # In something else, so that the columns stay what they are, and names of the surroundings are
    # no globals.
    indented = lines[0][0].isspace()
    around = f"def _({', '.join(old.co_freevars)}):" if indented else ""
    tree = ast.parse(f"{around}\n{''.join(lines)}")
    ast.increment_lineno(tree, old.co_firstlineno - 2)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == (inner or old.co_name):
            _put_into_try(node)
    future = old.co_flags & __future__.annotations.compiler_flag
    compiled = compile(tree, old.co_filename, "exec", flags=future, dont_inherit=True)
    code = next((code for code in _codes(compiled) if code.co_name == old.co_name), None)
    if code is None or _looks(code) != _looks(old):  # not the function that we took it for
        return None
    return code.replace(co_qualname=old.co_qualname, co_flags=old.co_flags)


def _lines(code: CodeType) -> list[str]:
    """Its source; none if there is no file. (What inspect does takes ten times as long.)"""
    ends = (end for part in _codes(code) for _, end, _, _ in part.co_positions() if end)
    return linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : max(ends)]


def _looks(code: CodeType) -> tuple[Any, ...]:
    """What the `try` leaves as it is. (Private names of a class would be others here.)"""
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    names = {name for part in _codes(code) for name in part.co_names} - {_HIDE, "BaseException"}
    return *arguments, code.co_flags & ~inspect.CO_NESTED, code.co_freevars, names


def _put_into_try(function: ast.FunctionDef) -> None:
    statement: Any = ast.parse(
        f"try: ...\nexcept BaseException as {_HIDE}_error: {_HIDE}({_HIDE}_error); raise"
    ).body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, function.body[-1])
    statement.body = function.body
    function.body = [statement]


def _codes(code: CodeType) -> Iterator[CodeType]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return itertools.chain([code], *map(_codes, inner))
