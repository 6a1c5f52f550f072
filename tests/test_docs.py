"""The pages of docs/: examples run, what they show is printed, links lead somewhere.

Blocks marked `python` run one after the other, as a reader would type them, one process a page; one
that is marked `python program` is a program of its own, train.py. (`python setup` belongs to
tests/test_sync_points.py.) A `text` block right after one is what it prints, "..." standing for
anything.
"""

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
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
    done = run(["-c", RUN_PAGE], tmp_path, json.dumps([f"docs/{page.name}", sources]))
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


def anchor(heading):
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES, *ROOT.glob("docs/*/README.md")],
                         ids=lambda page: f"{page.parent.name}-{page.stem}")  # fmt: skip
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        target, _, section = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), link
        if section:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert section in map(anchor, headings), link


def test_the_index_has_every_page():
    linked = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / "README.md").read_text()))
    assert {page.name for page in PAGES} - {"README.md"} <= linked
    assert "docs/README.md" in (ROOT / "README.md").read_text()


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
