"""docs/errors/README.md shows programs and what lazyeng prints: compared to the letter with the
files, and with what they print when they run again."""

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


@pytest.mark.parametrize("program", error_texts.PROGRAMS)
def test_program_is_the_file_that_runs(program):
    _, shown, _ = error_texts.parts(error_texts.PAGE.read_text(), program)
    assert shown == (error_texts.PAGE.parent / f"{program}.py").read_text()
