"""What a person reads: carets, pytest, IPython, pdb, logging, rich; of five kinds of programs."""

import io
import linecache
import logging
import os
import re
import subprocess
import sys
import textwrap
import traceback

import pytest
import torch

from lazyeng import lazy, synchronize, wrap
from tests.support.failures import raised_by


def x_and_i():
    return wrap(torch.ones(3)), wrap(torch.tensor([7]))


def two_on_a_line():
    x, i = x_and_i()
    y = x + 1; return y[i]  # noqa: E702  # fmt: skip


def operator_of_two():
    x, i = x_and_i()
    return x + x.take(i) * 2


def comprehension():
    x, i = x_and_i()
    return [x.take(j) for j in (i,)][0]  # noqa: RUF015


def in_lambda():
    return (lambda x, i: x.index_select(0, i))(*x_and_i())  # noqa: PLC3002


def generator():
    x, i = x_and_i()
    return next(x.take(j) + 1 for j in [i])


def decorated():
    def decorator(function):
        def wrapper(*args):
            return function(*args)

        return wrapper

    @decorator
    def inner(x, i):
        return x[i]

    return inner(*x_and_i())


def several_lines():
    x, i = x_and_i()
    return torch.index_select(
        x,
        0,
        i,
    )  # fmt: skip


MARKED = {
    two_on_a_line: "y[i]",
    operator_of_two: "x.take(i)",
    comprehension: "x.take(j)",
    in_lambda: "x.index_select(0, i)",
    generator: "x.take(j)",
    decorated: "x[i]",
}


def error_of(program, mode="deferred"):
    with lazy(mode):
        x = program()
    try:
        x.tolist()
    except IndexError as error:
        return error
    pytest.fail("nothing was raised")


def of_eager(program, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "wrap", lambda x: x)
        return raised_by(program)


@pytest.mark.parametrize("program", [*MARKED, several_lines])
def test_as_the_traceback_of_eager(program, lazy_mode, monkeypatch):
    """Below the frame that called the program, the text is eager's, carets and all."""
    expected = traceback.format_tb(of_eager(program, monkeypatch).__traceback__)[1:]
    got = traceback.format_tb(error_of(program, lazy_mode).__cause__.__traceback__)
    assert expected and got[-len(expected) :] == expected


@pytest.mark.parametrize("program", MARKED)
def test_carets_are_under_the_expression(program):
    frame = traceback.extract_tb(error_of(program).__cause__.__traceback__)[-1]
    full = linecache.getline(frame.filename, frame.lineno)
    assert full.encode()[frame.colno : frame.end_colno].decode() == MARKED[program]


def test_source_that_is_gone(tmp_path):
    path = tmp_path / "gone.py"
    path.write_text("def f(x, i):\n    return x.take(i)\n")
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    exec(compile("def g(x, i):\n    return f(x, i)", "<made>", "exec"), scope)
    path.unlink()
    error = error_of(lambda: scope["g"](*x_and_i()))
    lines = traceback.format_tb(error.__cause__.__traceback__)
    assert lines[-2:] == [
        '  File "<made>", line 2, in g\n', f'  File "{path}", line 2, in f\n',
    ]  # fmt: skip


def test_whole_text():
    """Cause first, then the reader: one chain of two, each with the frames of its own place."""
    text = "".join(traceback.format_exception(error_of(two_on_a_line)))
    first, second = text.split(
        "\nThe above exception was the direct cause of the following exception:\n"
    )
    assert "two_on_a_line" in first and "in error_of" in second and "x.tolist()" in second
    assert second.rstrip().splitlines()[-1].startswith("lazyeng: aten.index.Tensor(float32[3]@cpu")
    assert text.count("Traceback (most recent call last)") == 2


def test_logging():
    out = io.StringIO()
    logger = logging.getLogger("lazyeng.tests")
    handler = logging.StreamHandler(out)
    logger.addHandler(handler)
    try:
        with lazy("deferred"):
            x = two_on_a_line()
        try:
            x.tolist()
        except IndexError:
            logger.exception("the step failed")
    finally:
        logger.removeHandler(handler)
    text = out.getvalue()
    assert text.startswith("the step failed\nTraceback") and "return y[i]" in text
    assert "IndexError: index 7 is out of bounds" in text


def test_group():
    with lazy("deferred"):
        kept = [two_on_a_line(), comprehension()]
    try:
        synchronize()
    except ExceptionGroup as error:
        text = "".join(traceback.format_exception(error))
    assert len(kept) == 2 and "2 recorded operations failed (2 sub-exceptions)" in text
    assert "return y[i]" in text and "x.take(j)" in text


# ---- other programs' views, each in a process of its own

PROGRAM = """
import torch
from lazyeng import lazy, wrap

def make(x, i):
    y = x + 1
    return y[i]

def test_it():
    with lazy("deferred"):
        z = make(wrap(torch.ones(3)), wrap(torch.tensor([7])))
    z.tolist()
"""


def run(*arguments, cwd, stdin=""):
    path = os.pathsep.join([os.getcwd(), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, input=stdin, capture_output=True, text=True,
        timeout=100, env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "TERM": "dumb"},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture
def program(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize("style", ["long", "short"])
def test_pytest_output(style, program):
    text = run("-m", "pytest", "-q", f"--tb={style}", "-p", "no:cacheprovider", cwd=program)
    assert "1 failed" in text
    for part in ("return y[i]", "z.tolist()", "IndexError: index 7 is out of bounds"):
        assert part in text, text
    assert "test_program.py:7: " in text and "test_program.py:12: " in text
    assert "tensor.py" not in text and "errors.py" not in text and "<stub" not in text
    if style == "long":
        assert "def make(x, i):" in text and ">       return y[i]" in text
    assert "lazyeng: aten.index.Tensor(" in text


def test_ipython(program):
    pytest.importorskip("IPython", reason="shown only where the extra `test` is installed")
    cell = "import test_program\ntest_program.test_it()\n%tb\n%xmode Verbose\n%tb\n"
    text = run("-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor",
               "--ipython-dir=.", cwd=program, stdin=cell)  # fmt: skip
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    # Shown when raised, by %tb, and by %tb in Verbose mode.
    assert text.count("IndexError: index 7 is out of bounds") >= 6, text
    assert re.search(r"----> 7 +return y\[i\]", text) and "in make" in text
    assert "direct cause" in text and "tensor.py" not in text


def test_creation_stacks_begin_at_the_cell_of_a_notebook(program):
    pytest.importorskip("IPython", reason="shown only where the extra `test` is installed")
    cell = """
import test_program, lazyeng
try:
    test_program.test_it()
except IndexError as error:
    print([frame.name for frame in error.creation_stack])
    lazyeng.explain.explain()
"""
    (program / "kernel.py").write_text(f"""
from IPython.core.interactiveshell import InteractiveShell
def kernel():
    InteractiveShell.instance().run_cell({cell!r})
kernel()
""")
    text = run("kernel.py", cwd=program)
    assert "['<module>', 'test_it', 'make']" in text, text
    assert "interactiveshell.py" not in text and "in kernel" not in text


def test_pdb(program):
    body = textwrap.dedent("""
        import pdb, sys, test_program
        try:
            test_program.test_it()
        except IndexError as error:
            pdb.post_mortem(error.__cause__.__traceback__)
    """)
    (program / "debug.py").write_text(body)
    text = run("debug.py", cwd=program, stdin="up\np __name__\ndown\nlist\nargs\nwhere\nquit\n")
    assert "> " in text and "test_program.py(7)make()" in text
    assert "test_program.py(11)test_it()" in text and "'test_program'" in text
    assert "->" in text and "return y[i]" in text


def test_rich(program):
    pytest.importorskip("rich", reason="shown only where the extra `test` is installed")
    body = textwrap.dedent("""
        import rich.console, rich.traceback, test_program
        console = rich.console.Console(width=120, force_terminal=False)
        for show_locals in (False, True):
            try:
                test_program.test_it()
            except IndexError:
                console.print_exception(show_locals=show_locals)
    """)
    (program / "rich_program.py").write_text(body)
    text = run("rich_program.py", cwd=program)
    assert text.count("IndexError: index 7 is out of bounds") == 4, text
    assert re.search(r"❱ +7 +(│ )? *return y\[i\]", text) and "direct cause" in text
