"""The pages of docs/: examples run, what they show is printed, links lead somewhere, and names of
classes and files in the pages for developers exist.

Blocks marked `python` run one after the other, as a reader would type them, one process a page; one
that is marked `python program` is a program of its own, train.py. (`python setup` belongs to
tests/test_sync_points.py.) A `text` block right after one is what it prints, "..." standing for
anything.
"""

import doctest
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "internals").glob("*.md")])
GENERATED = {"api.md", "conformance.md"}
# For people who change lazyeng: they name classes and files.
INTERNALS = [page for page in PAGES if page.parent.name == "internals"]
INTERNALS += [ROOT / "docs" / name for name in ("architecture.md", "verified.md", "backlog.md")]
WIDTH = 100
# In backticks: a path, or the name of a source.
FILE = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]*|[\w*-]+\.(?:cpp|h|inc|py))`")
# Of torch, Python and builds.
NOT_OURS = {"std::terminate", "build/sanitize", "multiprocessing/queues.py"}
# Its kernels run in Triton's interpreter: tests/kernels/test_docs.py
ELSEWHERE = {"kernels.md"}
BLOCK = re.compile(r"^```python( \w+)?\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.M | re.S)
# A program's traceback has the carets and messages of these.
AS_SHOWN = sys.version_info[:2] == (3, 11) and torch.__version__.startswith("2.13.")
OPTIONS = doctest.ELLIPSIS | doctest.REPORT_UDIFF

# Runs in a process of its own: a page that leaves something undone warns at its exit.
RUN_PAGE = """
import io, contextlib, json, sys
page, blocks = json.load(sys.stdin)
namespace, printed = {"__name__": "__main__"}, []
for line, source in blocks:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile("\\n" * line + source, page, "exec"), namespace)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def run(arguments, folder, stdin=None):
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        cwd=folder, input=stdin, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def compare(shown, printed, where):
    if shown is not None and not doctest.OutputChecker().check_output(shown, printed, OPTIONS):
        example = doctest.Example("", shown)
        difference = doctest.OutputChecker().output_difference(example, printed, OPTIONS)
        pytest.fail(f"{where} does not print what it shows\n{difference}", pytrace=False)


def with_python(page):
    return page.name not in ELSEWHERE and "```python\n" in page.read_text()


@pytest.mark.parametrize("page", [*filter(with_python, PAGES)], ids=lambda page: page.stem)
def test_examples_of_a_page(page, tmp_path):
    text = page.read_text()
    blocks = [b for b in BLOCK.finditer(text) if b[1] is None]
    lines = [text[: block.start(2)].count("\n") for block in blocks]
    sources = [[line, block[2]] for line, block in zip(lines, blocks, strict=True)]
    # (From torch 2.15 on, of which an example of docs/errors.md is.)
    deprecated = "ignore:`torch.jit.script` is deprecated:FutureWarning"
    arguments = ["-W", deprecated, "-c", RUN_PAGE]
    done = run(arguments, tmp_path, json.dumps([f"docs/{page.name}", sources]))
    assert (done.returncode, done.stderr) == (0, "")
    for line, block, printed in zip(lines, blocks, json.loads(done.stdout), strict=True):
        compare(block[3], printed, f"docs/{page.name}:{line + 1}")


PROGRAMS = [
    (page, block)
    for page in PAGES
    for block in BLOCK.finditer(page.read_text())
    if block[1] == " program"
]


@pytest.mark.parametrize("page, block", PROGRAMS, ids=lambda value: getattr(value, "stem", ""))
def test_programs_of_a_page(page, block, tmp_path):
    (tmp_path / "train.py").write_text(block[2])
    done = run(["train.py"], tmp_path)
    printed = (done.stdout + done.stderr).replace(f"{tmp_path}/", "")
    assert "Error" in block[3] or (done.returncode, done.stderr) == (0, "")
    if AS_SHOWN:
        compare(block[3], printed, f"docs/{page.name}")
    else:  # other versions of Python and torch print other carets and messages
        assert printed.splitlines()[-1].split(":")[0] == block[3].splitlines()[-1].split(":")[0]


def without_code_blocks(text):
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)


def name_of(page):
    return f"{page.parent.name}-{page.stem}"


def anchor(heading):
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES, *ROOT.glob("docs/*/README.md")],
                         ids=name_of)  # fmt: skip
def test_links_lead_somewhere(page):
    text = without_code_blocks(page.read_text())
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        target, _, section = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), link
        if section:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert section in map(anchor, headings), link


def test_the_index_has_every_page():
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([^)#]+)\)", (docs / "README.md").read_text()))
    assert {str(page.relative_to(docs)) for page in PAGES} - {"README.md"} <= linked
    assert "docs/README.md" in (ROOT / "README.md").read_text()


# ---- lines and names


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in GENERATED], ids=name_of
)
def test_lines_are_no_wider_than_an_editor(page):
    """Tables have lines as long as they need. What a link leads to cannot be broken."""
    for line in without_code_blocks(page.read_text()).splitlines():
        without_targets = re.sub(r"\]\([^)]*\)", "]", line)
        assert line.startswith("|") or len(without_targets) <= WIDTH, line


@functools.cache
def texts_of_csrc():
    files = [file for file in (ROOT / "csrc").rglob("*") if file.suffix in (".h", ".cpp", ".inc")]
    return [file.read_text() for file in files]


def occurs(name):
    """`Class::name` as it is written, or `name` in a file that defines `Class`."""
    *_, owner, last = name.split("::")
    defines = re.compile(rf"\b(class|struct|namespace) (\w+::)*{owner}\b[^;=]*{{")
    word = re.compile(rf"(?<!\w){re.escape(last)}\b")
    return any(
        name in text or (word.search(text) and defines.search(text)) for text in texts_of_csrc()
    )


@pytest.mark.parametrize("page", INTERNALS, ids=name_of)
def test_names_of_classes_occur_in_the_code(page):
    names = set(re.findall(r"`(\w+(?:::~?\w+)+)`", without_code_blocks(page.read_text())))
    assert [name for name in sorted(names - NOT_OURS) if not occurs(name)] == []


@functools.cache
def file_names():
    folders = ("csrc", "lazyeng", "tests", "benchmarks", "triton_kernels", "tools", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*")]
    return {file.name for file in [*files, *ROOT.glob("*.py")]}


def file_exists(name):
    """From the root of the repository or from csrc, with or without the ending of a source; or a
    name alone, anywhere."""
    if "/" not in name:
        return name in file_names()
    endings = ("", ".cpp", ".h", ".inc", ".py")
    paths = [base / f"{name}{end}" for base in (ROOT, ROOT / "csrc") for end in endings]
    return any([*path.parent.glob(path.name)] for path in paths)


@pytest.mark.parametrize("page", INTERNALS, ids=name_of)
def test_files_that_are_named_exist(page):
    named = set(FILE.findall(without_code_blocks(page.read_text())))
    assert [name for name in sorted(named - NOT_OURS) if not file_exists(name)] == []


# ---- what is generated


def test_the_api_reference_is_up_to_date():
    done = run([ROOT / "tools" / "api_reference.py", "--check"], ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_environment_variables_are_those_that_are_read():
    """The table is generated from lazyeng/config.py, the one file that reads them. (Those of the
    tests themselves stand where they are read.)"""
    from lazyeng.config import VARIABLES

    files = [*(ROOT / "lazyeng").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    mentioned = {
        name
        for file in files
        for name in re.findall(r"LAZYENG_(?!TEST_)[A-Z_]+\b", file.read_text())
    }
    assert mentioned == {variable.name for variable in VARIABLES}


# ---- the programs in examples/ that are about data


def output(name, *arguments):
    done = run([ROOT / "examples" / name, *arguments], ROOT)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_csv_with_too_few_labels(workers):
    """The case of MXNet's tutorial: all batches before the bad one, then its error."""
    batches, _, error = output("csv_labels.py", "--workers", workers).partition("Traceback")
    assert re.findall(r"^batch (\d+): loss", batches, re.M) == ["0", "1", "2", "3", "4"]
    for expected in (
        "MissingLabelError: labels.csv has no label for row 43\n",
        "in __getitem__\n    raise MissingLabelError(self.labels, index)\n",
        "in train\n    for images, labels in loader:\n",
        "lazyeng: DataLoader(batch 5), created at csv_labels.py:",
        "(a LazyError: True)\n",
        "with all labels: 8 batches\n",
    ):
        assert expected in error


def test_losses_read_one_step_late_are_the_same():
    assert "the same 30 losses: True" in output("loss_buffer.py", "--steps", "30")
