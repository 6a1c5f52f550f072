# lazyeng/_check_torch.py: can this interpreter load lazyeng._C? Asked before that is touched:
# loading one that was built for another torch ends in undefined symbols or in a crash.
"""Checks of the installed PyTorch, when lazyeng is built (setup.py) and when it is imported.

Nothing here imports lazyeng: setup.py runs this file on its own, before the package exists.
"""

from __future__ import annotations

import importlib
import re
from importlib.machinery import PathFinder
from pathlib import Path

OLDEST = (2, 11)
NEWEST = (2, 15)
TORCH_RANGE = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
REQUIREMENT = f"torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
BUILD_COMMAND = "pip install --no-build-isolation --no-deps --force-reinstall"
AGAIN = f"build it again with `{BUILD_COMMAND} <the lazyeng source folder>`"
MISSING = (
    f"lazyeng needs PyTorch {TORCH_RANGE}, and no torch is installed: pip install '{REQUIREMENT}'"
)


def minor(version: str) -> tuple[int, int]:
    """(major, minor) of a version such as "2.13.0+cpu"; ValueError for anything else."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    return int(match[1]), int(match[2])


def unsupported(version: str) -> str | None:
    """Why this version of torch cannot be used, or None if it can."""
    if OLDEST <= minor(version) <= NEWEST:
        return None
    return (
        f"lazyeng supports PyTorch {TORCH_RANGE}, and torch {version} is installed: "
        f"pip install '{REQUIREMENT}'"
    )


def check() -> None:
    """Raises ImportError, saying what to do, unless _C was built for this torch and this Python.

    Called by lazyeng/__init__.py before anything else is imported. Importing torch here runs
    torch's own search for plugins, whose lazyeng_autoload.py finds lazyeng half imported.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(MISSING, name="torch") from None
    version = str(torch.__version__)
    if reason := unsupported(version):
        raise ImportError(reason, name="torch")

    # Looked for here only: the finder of an editable install would lend those of another checkout.
    # The suffix of _C names the Python it was built for: another Python does not find it.
    here = Path(__file__).parent
    if not all(
        PathFinder.find_spec(f"lazyeng.{name}", [str(here)]) for name in ("_C", "_build_info")
    ):
        if (here.parent / "setup.py").exists():
            raise _unusable(
                f"{here.parent} is lazyeng's source folder, and has no build for this Python in "
                "it: run the program elsewhere, if lazyeng is installed, or build here: "
                "`pip install --no-build-isolation --no-deps --editable .`"
            )
        raise _unusable(
            "lazyeng._C is not built for this Python: "
            f"run `{BUILD_COMMAND} <the lazyeng source folder>`"
        )
    built_for = str(getattr(importlib.import_module("lazyeng._build_info"), "TORCH_VERSION", ""))
    if not re.match(r"\d+\.\d+", built_for) or minor(built_for) != minor(version):
        raise _unusable(
            f"lazyeng was built for torch {built_for or '(unknown)'}, and torch {version} is "
            f"installed (the C++ interface differs in each minor version): {AGAIN}"
        )
    try:
        importlib.import_module("lazyeng._C")
    except ImportError as error:
        raise _unusable(f"lazyeng._C cannot be loaded ({error}): {AGAIN}") from error


def _unusable(why: str) -> ImportError:
    return ImportError(why, name="lazyeng._C")
