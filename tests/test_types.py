"""The types of the public API: values are what tests/typed/public_api.py tells a checker.

That file and tests/typed/mistakes.py, and the programs of the documentation, are checked by pyright
in `make lint`, whose environment has it.
"""

import ast
import inspect
import re
import runpy
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest
import torch

import lazyeng

ROOT = Path(__file__).parents[1]
PUBLIC_API = ROOT / "tests" / "typed" / "public_api.py"


def really_assert_type(value, expected):
    if isinstance(expected, types.UnionType):
        assert isinstance(value, expected)
    elif expected is not typing.Any:
        assert isinstance(value, typing.get_origin(expected) or expected)
    return value


@pytest.mark.parametrize("name", re.findall(r"^def (\w+)", PUBLIC_API.read_text(), re.M))
def test_values_are_what_a_checker_is_told(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typing, "assert_type", really_assert_type)
    runpy.run_path(str(PUBLIC_API))[name]()


def test_declarations_for_checkers_change_nothing():
    assert lazyeng.LazyTensor.__bases__ == (torch.Tensor,)
    assert {"__init__", "__getitem__", "__matmul__"}.isdisjoint(vars(lazyeng.LazyTensor))


def test_help_has_the_names_of_the_modes():
    assert "Literal" in str(inspect.signature(lazyeng.lazy))
    assert "Literal" in str(inspect.signature(lazyeng.set_sync_debug_mode))
    assert str(inspect.signature(lazyeng.wrap)) == "(obj: 'T') -> 'T'"


def test_checkers_see_the_arguments_that_torchs_loader_has():
    source = ast.parse(inspect.getsource(inspect.getmodule(lazyeng.DataLoader)))
    declared, _ = (
        node.args for node in ast.walk(source)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )  # fmt: skip
    for signature in map(inspect.signature, (torch.utils.data.DataLoader, lazyeng.DataLoader)):
        in_place = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        assert ["self", *in_place] == [argument.arg for argument in declared.args]
    assert [*signature.parameters] == [a.arg for a in (*declared.args[1:], *declared.kwonlyargs)]


def test_programs_of_the_documentation_keep_their_lines(tmp_path):
    subprocess.run(
        [sys.executable, ROOT / "tools" / "documented_programs.py", tmp_path], check=True
    )
    for page in ("README.md", "docs/lazy.md"):
        lines = (ROOT / page).read_text().split("\n")
        program = (tmp_path / f"{re.sub(r'[/.]', '_', page)}.py").read_text().split("\n")
        code = {number for number, line in enumerate(program[1:], 1) if line}
        assert all(program[number] == lines[number] for number in code)
        starts = {number for number, line in enumerate(lines, 1) if line == "```python"}
        assert starts and starts <= code
