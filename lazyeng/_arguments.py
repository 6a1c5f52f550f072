"""What functions of the package take where they ask for a number, a path or a function."""

from __future__ import annotations

import operator
import os
from typing import Any


def as_int(expected: str, value: Any) -> int:
    """The value as an int; those of other libraries too, such as numpy's, but no bool.

    Args:
        expected: how the error begins: "f: n must be an int".

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{expected}, got {type(value).__name__}")


def as_path(function: str, path: Any) -> str:
    """The path of a file, in the name of the function that wants it.

    Raises:
        TypeError: it is neither a str nor a path.
    """
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str):
        raise TypeError(f"{function}: path must be a str or a path, got {type(path).__name__}")
    return given


def check_function(decorator: str, function: Any) -> None:
    """Refuses to decorate a class, or what cannot be called.

    Raises:
        TypeError: it is one.
    """
    if isinstance(function, type) or not callable(function):
        got = getattr(function, "__name__", None) or type(function).__name__
        raise TypeError(f"{decorator}: expected a function to decorate, got {got}")
