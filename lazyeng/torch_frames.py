"""Where torch calls the user's code, deferred failures leave torch without its frames.

A failed tensor that is read in `forward` raises through torch's own frames, which come into the
traceback as the exception leaves them: after our reader has hidden its own. So the call of a module
hides them again as it lets a deferred failure pass. A function around it would add a frame and
0.1 us to each call, and torch.compile knows the function by identity; so its code gets a `try`,
which costs nothing unless something is raised.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils._contextlib import context_decorator

from lazyeng import errors

_HIDE = "_lazyeng_hide"  # what the new code knows our function by: a global of torch's module

# Where torch calls the user's code: (its function, name of the function in it if it makes one).
_CALLS: tuple[tuple[Any, str | None], ...] = (
    (torch.nn.Module.__call__, None),
    (context_decorator, "decorate_context"),  # @torch.no_grad()
)


def install() -> None:
    """Gives torch's functions their `try`. Once per process, at import."""
    for function, inner in _CALLS:
        code = _with_boundary(function, inner or function.__name__)
        if code is not None:
            function.__globals__[_HIDE] = errors.hide_in_deferred
            function.__code__ = code


def _with_boundary(function: Any, name: str) -> CodeType | None:
    """The code with the body of function `name` in a `try`, at the same lines.

    None, and its frames are shown, if there is no source, or if somebody has replaced the function.
    """
    if not isinstance(function, FunctionType) or function.__closure__:
        return None
    try:
        lines, first = inspect.getsourcelines(function.__code__)
    except OSError:
        return None
    # As the body of a class, so that the columns stay what they are.
    indented = lines[0][0].isspace()
    tree = ast.parse("class _:\n" + "".join(lines) if indented else "\n" + "".join(lines))
    ast.increment_lineno(tree, first - 2)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            _put_into_try(node)
    compiled = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    old = function.__code__
    code = next((code for code in _codes(compiled) if code.co_name == old.co_name), None)
    if code is None or _interface(code) != _interface(old):  # not the function that we took it for
        return None
    return code.replace(co_qualname=old.co_qualname)


def _interface(code: CodeType) -> tuple[Any, ...]:
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    return *arguments, code.co_flags, code.co_freevars


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
