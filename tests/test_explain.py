"""python -m lazyeng.explain, and explain() for the exception at hand."""

import io
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch

from lazyeng import lazy, prefetch, synchronize, wrap
from lazyeng.explain import explain, main
from tests.support.processes import alone


def failed():
    x = wrap(torch.ones(3))
    with lazy("deferred"):
        y = x + 1; return y.take(wrap(torch.tensor([7]))) * 2  # noqa: E702  # fmt: skip


def caught(read=lambda x: x.tolist(), make=failed):
    try:
        read(make())
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


def explained(error=None, color=False):
    out = io.StringIO()
    explain(error, file=out, color=color)
    return out.getvalue()


def test_says_what_failed_from_what_and_how_it_came_here():
    error = caught()
    text = explained(error)
    assert text.startswith("IndexError: out of range: tried to access index 7 on a tensor of 3")
    assert "failed op  aten.take\n" in text
    assert "inputs     float32[3]@cpu, int64[1]@cpu\n" in text
    assert f"path       {' -> '.join(error.path)} (read)\n" in text
    assert text.index("recorded at") < text.index("read at")


def test_shows_the_source_with_the_expression_marked():
    lines = explained(caught()).splitlines()
    (number,) = (i for i, line in enumerate(lines) if line.startswith(">") and "y.take" in line)
    start, end = lines[number + 1].index("^"), lines[number + 1].rindex("^") + 1
    assert lines[number][start:end] == "y.take(wrap(torch.tensor([7])))"
    assert 'with lazy("deferred"):' in lines[number - 1]
    assert any("called from" in line and "in caught" in line for line in lines)


def test_shows_what_raised_within_the_op():
    def rows():
        yield torch.ones(3)
        raise ValueError("too much")

    text = explained(caught(read=list, make=lambda: prefetch(rows())))
    assert "raised at" in text and "| " in text and 'raise ValueError("too much")' in text
    assert text.index("recorded at") < text.index("raised at") < text.index("read at")


def test_the_exception_at_hand():
    try:
        failed().tolist()
    except IndexError:
        assert "aten.take" in explained()
    with pytest.raises(ValueError, match="no exception is given"):
        explained()


@pytest.mark.parametrize("wrong", ["text", ValueError])
def test_what_is_no_exception(wrong):
    with pytest.raises(TypeError, match="explain: expected an exception, got"):
        explain(wrong)


def test_several_at_once():
    def make():
        return [failed(), failed()]

    text = explained(caught(read=lambda _: synchronize(), make=make))
    assert text.startswith("ExceptionGroup: 2 recorded operations failed")
    assert text.count("failed op  aten.take") == 2


def test_an_exception_that_is_not_deferred():
    text = explained(caught(read=lambda _: 1 / 0, make=lambda: None))
    assert "ZeroDivisionError" in text and "not a deferred failure" in text
    assert ">" in text and "1 / 0" in text


@pytest.mark.parametrize("how", ["from", "while handling", "two steps", "a group", "from None"])
def test_an_exception_raised_from_a_deferred_one(how):
    def read(x):
        try:
            x.tolist()
        except IndexError as error:
            if how == "two steps":
                try:
                    raise KeyError("between") from error
                except KeyError as between:
                    raise RuntimeError("outer") from between
            if how == "a group":
                raise RuntimeError("outer") from ExceptionGroup("several", [error])
            if how == "while handling":
                raise RuntimeError("outer")  # noqa: B904
            raise RuntimeError("outer") from (error if how == "from" else None)

    text = explained(caught(read))
    assert text.startswith("RuntimeError: outer\n") and "raised at" in text
    assert ("failed op  aten.take" in text) == (how != "from None")
    assert ("not a deferred failure" in text) == (how == "from None")
    if how != "from None":
        assert text.index("raised at") < text.index("IndexError:") < text.index("recorded at")


def test_a_cycle_of_causes_ends():
    error = caught(read=lambda _: 1 / 0, make=lambda: None)
    error.__cause__ = RuntimeError("its cause")
    error.__cause__.__cause__ = error
    assert "not a deferred failure" in explained(error)


def test_colour():
    assert "\033[1;31mIndexError" in explained(caught(), color=True)
    assert "\033[" not in explained(caught())


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False),
])  # fmt: skip
def test_colour_on_a_terminal(environment, expected, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    explain(caught(), file=out)
    assert ("\033[" in out.getvalue()) == expected


def test_pickled(tmp_path, capsys):
    error = caught()
    (tmp_path / "error.pkl").write_bytes(pickle.dumps(error))
    assert main([str(tmp_path / "error.pkl")]) == 1
    text = capsys.readouterr().out
    assert "failed op  aten.take" in text and "> " in text and "y.take" in text
    (tmp_path / "other.pkl").write_bytes(pickle.dumps(3))
    assert main([str(tmp_path / "other.pkl")]) == 2
    assert "expected a pickled exception, got int" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pkl", None, "No such file or directory"),
        ("missing.py", None, "No such file or directory"),
        ("empty.pkl", b"", "cannot be unpickled: EOFError: Ran out of input"),
        ("text.pkl", b"some text", "cannot be unpickled: UnpicklingError"),
        ("module.pkl", b"cno_such_module\nName\n.", "cannot be unpickled: ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(name, content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main([str(tmp_path / name)]) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"{tmp_path / name}: {message}") and text.count("\n") == 1


PROGRAM = """
import sys, torch
from lazyeng import wrap

def forward(x, i):
    return x.take(i)

def main():
    y = forward(wrap(torch.ones(3)), wrap(torch.tensor([int(sys.argv[1])])))
    print((y + 1).tolist())

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("index", "status"), [("7", 1), ("1", 0)])
def test_of_a_program(index, status, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "lazyeng.explain", "--color", "never", str(program), index],
        capture_output=True, text=True, timeout=60, cwd=os.getcwd(),
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    if status == 0:
        assert done.stdout == "[2.0]\nthe program ended without an error\n"
        return
    assert "failed op  aten.take" in done.stdout and "add#" in done.stdout
    assert f"called from {program}:9, in main: y = forward(" in done.stdout
    assert "runpy" not in done.stdout and "explain.py" not in done.stdout


def test_letters_that_the_terminal_does_not_have(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("forward", "größe"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "lazyeng.explain", str(program), "7"], cwd=os.getcwd(),
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 1 and r"in gr\xf6\xdfe" in done.stdout, done.stderr


class OwnNamesError(Exception):
    op, inputs = 7, None

    def __init__(self):
        super().__init__("own")
        self.path = "/usr"

    def __len__(self):
        return 0


def test_an_exception_with_attributes_of_the_same_names():
    def function(x):
        raise OwnNamesError

    def make():
        with lazy("deferred"):
            return raising(wrap(torch.ones(3)))

    raising = torch.library.custom_op("lazyeng_explain::raising", function, mutates_args=(),
                                      schema="(Tensor x) -> Tensor")  # fmt: skip
    raising.register_fake(torch.empty_like)
    error = caught(make=make)
    assert type(error).__name__ == "OwnNamesError"
    text = explained(error)
    assert "failed op  lazyeng_explain.raising" in text and "float32" in text
    assert "/ -> u" not in text


def test_of_a_program_that_ends_itself(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\nfrom lazyeng import wrap\n"
        "y = wrap(torch.ones(3)).take(wrap(torch.tensor([int(sys.argv[1])])))\nsys.exit(3)\n"
    )
    for index, status in (("7", 1), ("1", 3)):
        done = subprocess.run(
            [sys.executable, "-m", "lazyeng.explain", "--color", "never", str(program), index],
            capture_output=True, text=True, timeout=60, cwd=os.getcwd(),
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert ("failed op  aten.take" in done.stdout) == (status == 1)


def test_it_is_there_after_import_lazyeng():
    body = """
    print("lazyeng.explain" in sys.modules)
    print(callable(lazyeng.explain.explain), lazyeng.report.__name__)
    try: lazyeng.explian
    except AttributeError as error: print(error)
    """
    done = alone("import sys, lazyeng\n" + textwrap.dedent(body))
    wanted = "False\nTrue lazyeng.report\nmodule 'lazyeng' has no attribute 'explian'\n"
    assert done.stdout == wanted, done.stderr
