"""docs/errors/README.md shows what lazyeng prints: run again, and compared to the letter."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parent.parent / "tools" / "error_texts.py"
spec = importlib.util.spec_from_file_location("error_texts", PATH)
error_texts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(error_texts)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11) or not torch.__version__.startswith("2.13."),
    reason="other versions of Python and torch print other carets and messages",
)
@pytest.mark.parametrize("program", error_texts.PROGRAMS)
def test_text_is_as_shown(program):
    shown = error_texts.block(error_texts.PAGE.read_text(), program, "lazyeng")
    assert shown and error_texts.output(program, "lazyeng") == shown
