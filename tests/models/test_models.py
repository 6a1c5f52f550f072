"""Unmodified models and training code: eager, in lazy(), in deferred mode, and wrapped."""

from __future__ import annotations

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
