"""Unmodified models and training code: eager, in lazy() in each mode, and wrapped."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.models.compare import check
from tests.models.features import PROGRAMS as FEATURES
from tests.models.programs import PROGRAMS as MODELS
from tests.models.training import WAYS

PROGRAMS = MODELS | FEATURES


@pytest.mark.limit(60)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_model(name, way):
    check(PROGRAMS[name], way)


def test_the_page_has_every_program():
    """docs/models.md; the names of the third table can be read without transformers."""
    folder = Path(__file__).parent
    page = (folder.parents[1] / "docs" / "models.md").read_text().partition("## Arch")[2]
    rows = re.findall(r"^\| (`.*?`) \|", page, re.M)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    tree = ast.parse((folder / "hf.py").read_text())
    (table,) = (node.value for node in tree.body if isinstance(node, ast.AugAssign))
    assert isinstance(table, ast.Dict)
    hugging_face = [ast.literal_eval(key) for key in table.keys if key]
    assert sorted(named) == sorted([*PROGRAMS, *hugging_face])
