# tools/check_imports.py: fails when a file imports or includes against the direction of layers.
"""Usage: python tools/check_imports.py [root]. Prints `file:line: what`, exit status 1 if any.

Python: __init__ -> setup_core -> tensor, mode, data -> errors, config -> _C; never upward, and no
cycles within a layer. C++: bindings -> record -> run, fuse -> engine; engine uses the standard
library only, stacks Python only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# A module of lazyeng that is not named here is of the layer of tensor, mode and data: wrapping,
# lagged, stats, and what setup_core installs (torch_patches, device, sharing, ...).
PYTHON_LAYERS = {
    "_C": 0, "_build_info": 0, "_check_torch": 0, "_machine": 0, "triton_kernels": 0,
    "errors": 1, "_exception_data": 1, "_fresh_copies": 1, "_dual": 1, "_device_loss": 1,
    "_traceback": 1, "config": 1, "fuse": 1,
    "setup_core": 3,
    "__init__": 4,
}  # fmt: skip
DEFAULT_LAYER = 2
# Of these packages each module counts by itself.
FOLDERS = {"torch_patches"}

# Folder of csrc/ -> the folders its files may include from.
CPP_LAYERS = {
    "engine": {"engine"},
    "stacks": {"stacks"},
    "run": {"run", "engine", "stacks"},
    "fuse": {"run", "fuse", "engine", "stacks"},
    "record": {"record", "run", "fuse", "engine", "stacks"},
}
FOREIGN_TO_STACKS = re.compile(r"(ATen|c10|torch|pybind11|cuda)[/.]")
STANDARD_HEADER = re.compile(r"[a-z_]+$")  # <vector>, not <vector.h>
POSIX_HEADER = re.compile(r"(pthread|sched|semaphore|signal|unistd|sys/\w+)\.h$")

Fault = tuple[Path, int, str]


def imported_modules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module of lazyeng, line) of each import; those for type checkers only do not count."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                parts = alias.name.split(".")
                if parts[0] == "lazyeng" and len(parts) > 1:
                    yield module_of(parts), child.lineno
        elif isinstance(child, ast.ImportFrom):
            module = ("lazyeng." if child.level else "") + (child.module or "")
            parts = module.rstrip(".").split(".")
            if parts[0] == "lazyeng":
                names = [a.name for a in child.names]
                if len(parts) > 1 and (parts[1] not in FOLDERS or len(parts) > 2):
                    names = names[:1]  # (they are of one module)
                for name in names:
                    yield module_of([*parts, name]), child.lineno
        else:
            yield from imported_modules(child)


def module_of(parts: Sequence[str]) -> str:
    """Of a dotted name that begins with lazyeng."""
    return ".".join(parts[1:3]) if parts[1] in FOLDERS else parts[1]


def python_faults(root: Path) -> Iterator[Fault]:
    package = root / "lazyeng"
    edges: dict[str, dict[str, tuple[Path, int]]] = {}
    for path in sorted(package.rglob("*.py")):
        own = module_of(["lazyeng", *path.relative_to(package).with_suffix("").parts])
        for target, line in imported_modules(ast.parse(path.read_text(), str(path))):
            layers = [PYTHON_LAYERS.get(name, DEFAULT_LAYER) for name in (own, target)]
            if layers[1] > layers[0]:
                yield path, line, f"lazyeng.{own} imports lazyeng.{target}, which is a layer above"
            elif layers[0] == layers[1] and own != target:
                edges.setdefault(own, {}).setdefault(target, (path, line))
    yield from cycle_faults(edges)


def cycle_faults(edges: dict[str, dict[str, tuple[Path, int]]]) -> Iterator[Fault]:
    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        if start == goal:
            return True
        seen.add(start)
        return any(reaches(n, goal, seen) for n in edges.get(start, {}) if n not in seen)

    for own, targets in edges.items():
        for target, (path, line) in targets.items():
            if reaches(target, own, set()):
                yield path, line, f"lazyeng.{own} and lazyeng.{target} import each other"


def cpp_faults(root: Path) -> Iterator[Fault]:
    csrc = root / "csrc"
    for path in sorted(path for kind in ("h", "cpp", "inc") for path in csrc.rglob(f"*.{kind}")):
        folder = path.relative_to(csrc).parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line):
                quote, header = match.groups()
                check = own_include_fault if quote == '"' else system_include_fault
                if fault := check(root, folder, header):
                    yield path, number, fault


def own_include_fault(root: Path, folder: str, header: str) -> str | None:
    if not header.startswith("csrc/") or not (root / header).is_file():
        return f'"{header}" is not a file relative to the repository root'
    target = header.split("/")[1]
    if folder in CPP_LAYERS and target not in CPP_LAYERS[folder]:
        return f"csrc/{folder} may not include csrc/{target}"
    return None


def system_include_fault(root: Path, folder: str, header: str) -> str | None:
    del root
    if folder == "engine" and not (STANDARD_HEADER.match(header) or POSIX_HEADER.match(header)):
        return f"csrc/engine includes <{header}>: only the standard library is allowed there"
    if folder == "stacks" and FOREIGN_TO_STACKS.match(header):
        return f"csrc/stacks includes <{header}>: only Python's headers are allowed there"
    return None


def main(root: Path) -> int:
    faults = [*python_faults(root), *cpp_faults(root)]
    for path, line, text in faults:
        print(f"{path.relative_to(root)}:{line}: {text}")
    print(f"import rules: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
