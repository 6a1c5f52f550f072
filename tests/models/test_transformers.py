"""Hugging Face models: trained and generating, eager against lazy()."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="not among what the tests install: large, and optional")

from tests.models.compare import check
from tests.models.hf import PROGRAMS
from tests.models.training import WAYS


@pytest.mark.limit(120)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_model(name, way):
    check(PROGRAMS[name], way)
