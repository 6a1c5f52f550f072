"""A sample of op_db, module_db and optim_db. All of it: `python -m tests.conformance`."""

import contextlib
import os
import re
import subprocess
import sys

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

import lazyeng

from .conformance import __main__ as conformance
from .conformance import generic, generic_report, log, report
from .conformance.known import CANCELS, DEVICE, GENERIC, KNOWN, METADATA_ONLY, WITH_FUSION_ON
from .conformance.report import row, unexpected
from .conformance.runner import Plan, names_of, run, run_together
from .conformance.variants import SUITES

JOBS = min(2, os.cpu_count() or 1)

# What is run here, sized for a minute or so on two cores together: (plan, one entry of so many).
# Plans of one suite begin at different entries, and each operator is among those of the first.
# LAZYENG_TEST_CONFORMANCE=all: all entries.
SAMPLES = [
    (Plan("op", "async", "wrap", limit=1), 1),
    (Plan("op", "async", "block", limit=1), 14),
    (Plan("op", "deferred", "wrap", limit=2), 12),
    (Plan("op", "sync", "wrap", limit=1), 14),
    (Plan("no_grad", "async", "wrap", limit=1), 14),
    (Plan("foreach", "async", "wrap", limit=4), 3),
    (Plan("foreach", "deferred", "block", limit=4), 4),
    (Plan("module", "async", "wrap", limit=2), 1),
    (Plan("module", "deferred", "block", limit=1), 1),
    (Plan("optim", "async", "wrap", limit=3), 1),
    (Plan("optim", "deferred", "block", limit=3), 1),
    (Plan("offset", "deferred", "block", limit=3), 14),
    (Plan("inplace", "async", "wrap", limit=1), 4),
    (Plan("out", "async", "wrap", limit=1), 12),
    (Plan("error", "async", "wrap", limit=3), 5),
    (Plan("op", "async", "wrap", limit=1, dtype="bfloat16"), 12),
    (Plan("op", "deferred", "block", limit=1, dtype="int64"), 12),
    (Plan("op", "async", "wrap", limit=1, dtype="complex64", fusion="on"), 12),
    (Plan("dtype", "async", "block", limit=2), 14),
    (Plan("inplace_forms", "async", "wrap", limit=4), 12),
    (Plan("out_forms", "async", "wrap", limit=7), 14),
    (Plan("op", "deferred", "wrap", limit=1, fusion="on"), 14),
    (Plan("op", "async", "block", limit=1, fusion="off"), 12),
    (Plan("fused", "deferred", "wrap", limit=1, fusion="on"), 10),
    (Plan("module_error", "async", "wrap"), 1),
    (Plan("optim_error", "deferred", "block"), 1),
    (Plan("op", "async", "wrap", limit=1, dtype="bool"), 14),
    (Plan("op", "deferred", "block", limit=1, dtype="float64"), 14),
    (Plan("out", "deferred", "block", limit=1, fusion="on"), 14),
    (Plan("error", "sync", "block", limit=3), 14),
]

# Entries in which a full run once found a difference: all samples.
FOUND = [
    (Plan("op", "async", dtype="complex64"), ["linalg.lu_solve"]),
    (Plan("op", "async", dtype="int64"), ["tensor_split"]),
    (Plan("op", "async", "block"), ["native_batch_norm"]),
    (Plan("no_grad", "async"), ["nn.functional.max_pool1d", "linalg.norm"]),
    (Plan("no_grad", "async", "block"), ["nn.functional.max_pool1d"]),
    (Plan("error", "async"), ["cat"]),
    (Plan("error", "async", "block"), ["kthvalue", "masked_select", "gather", "take", "cat"]),
    (Plan("error", "deferred"), ["multinomial"]),
    (Plan("dtype", "deferred"), ["grid_sampler_3d", "linalg.ldl_solve"]),
    (Plan("inplace_forms", "async"), ["addmm", "cumsum", "cumprod", "renorm"]),
    (Plan("out_forms", "deferred", dtype="int64"), ["sort"]),
    (Plan("optim", "deferred", "block", dtype="bfloat16"), ["Adafactor"]),
    (Plan("out_forms", "async"), ["lu_unpack", "sort", "slice_scatter", "unbind_copy"]),
]


@pytest.fixture(scope="module")
def names():
    return names_of(list(SUITES))


@pytest.mark.limit(600)
@pytest.mark.parametrize(
    "plan, every",
    SAMPLES,
    ids=lambda p: getattr(p, "suite", None) and f"{p.suite}-{p.mode}-{p.how}",
)
def test_sample(plan, every, names):
    entries = names[plan.suite]
    if os.environ.get("LAZYENG_TEST_CONFORMANCE") != "all":
        entries = entries[SAMPLES.index((plan, every)) % every :: every]
    results = run(plan, entries, JOBS, lambda result: None)
    wrong = unexpected(results)
    assert not wrong, "\n".join(row(result) for result in wrong)


@pytest.mark.limit(300)
@pytest.mark.parametrize("plan, names", FOUND, ids=lambda p: getattr(p, "suite", None))
def test_what_a_full_run_has_found(plan, names):
    results = run(plan, names, 1, lambda result: None)
    assert {r["name"] for r in results} == set(names) and all(r["samples"] for r in results)
    wrong = unexpected(results)
    assert not wrong, "\n".join(row(result) for result in wrong)


def test_the_data_bases_are_complete(names):
    """702 operators in torch 2.13; another torch has some more or fewer, but not half."""
    assert len(names["op"]) > 600 and len(names["module"]) > 100 and len(names["optim"]) >= 14


def test_exceptions_name_entries_that_exist(names):
    present = {f"{suite}:{name}" for suite, found in names.items() for name in found}
    with_fusion = {entry for entry, _ in WITH_FUSION_ON}
    assert KNOWN.keys() | METADATA_ONLY.keys() | with_fusion <= present
    reasons = [*KNOWN.values(), *METADATA_ONLY.values(), *WITH_FUSION_ON.values()]
    assert all(len(reason) > 10 for reason in reasons)
    # Where in PyTorch's source it comes from.
    differing = [*KNOWN.values(), *WITH_FUSION_ON.values()] if DEVICE == "cpu" else []
    assert all(re.search(r"\w/?\w+\.(cpp|h|py|yaml)\b", reason) for reason in differing)


def test_at_most_twelve_operators_are_excepted():
    """At least 690 of 702 are equal; three have nothing to run on a CPU."""
    assert sum(key.startswith("op:") for key in KNOWN) <= 3


def result(name, status="equal", suite="op", **changed):
    plan = Plan(suite, "async", dtype="int64")
    measured = {"samples": 2, "different": int(status != "equal"), "seconds": 0.5, "detail": ""}
    return {"name": name, "status": status} | measured | plan.what | log.stamp() | changed


def test_what_may_differ_with_fusion_on_may_not_without():
    found = {"suite": "op", "dtype": "bfloat16"}
    results = [
        result("rsqrt", "different", fusion=fusion, **found) for fusion in ("on", "off", "auto")
    ]
    assert [r["fusion"] for r in report.unexpected(results)] == ["off", "auto"]


def test_settings_that_share_a_process_give_what_each_gives_alone():
    plans = tuple(
        Plan("fused", mode, limit=3, fusion=fusion)
        for mode in ("async", "deferred", "sync")
        for fusion in ("on", "off")
    )
    results = run_together(plans, ["exp", "add", "var"], 1, lambda _: None)
    assert [(r["mode"], r["fusion"], r["name"]) for r in results] == [
        (p.mode, p.fusion, name) for p in plans for name in ("exp", "add", "var")
    ]
    assert {r["status"] for r in results} == {"equal"} and {r["samples"] for r in results} == {3}


def test_each_setting_gets_a_process_where_that_of_all_was_lost():
    """An entry that does not exist ends the worker; what comes after it is run."""
    plans = (Plan("optim", "async", limit=1), Plan("optim", "sync", limit=1))
    results = run_together(plans, ["no such entry", "SGD"], 1, lambda _: None)
    assert [(r["mode"], r["name"], r["status"]) for r in results] == [
        (p.mode, name, status)
        for p in plans
        for name, status in (("no such entry", "crash"), ("SGD", "equal"))
    ]


def test_the_latest_of_the_logs_counts_and_parts_are_left_out(tmp_path):
    paths = [str(tmp_path / name) for name in ("first", "second", "none")]
    for found in (result("add"), result("mul", "different"), result("sub", "n/a", samples=0)):
        log.append(paths[0], found)
    log.append(paths[1], result("mul"))
    log.append(paths[1], result("mul", mode="sync"))
    with open(paths[1], "a") as file:
        file.write('{"name": "cut o')
    results = log.read(paths)
    assert [r["name"] for r in results] == ["add", "mul", "sub", "mul"]
    assert not report.unexpected(results)
    page = report.docs_page(results)
    assert "| op | int64 | auto | async | wrap | 2 | 2 | 1 | 4 | 2 |" in page
    assert "| sync |" not in page and "| entry |" not in page.partition("## Metadata")[0]


def test_a_page_keeps_the_lines_of_what_was_not_run_again():
    page = report.docs_page([result("add"), result("mul"), result("add", suite="offset")])
    again = report.docs_page([result("add", seconds=7.0), result("mul")], page)
    assert "| op | int64 | auto | async | wrap | 2 | 2 | 0 | 4 | 8 |\n| offset | int64 |" in again
    assert report.docs_page([], again) == again


def test_a_page_keeps_the_line_of_what_was_run_again_in_part():
    page = report.docs_page([result("add"), result("mul")])
    assert report.docs_page([result("add", seconds=7.0)], page) == page
    other = report.docs_page([result("add", torch="9.0", seconds=1.0)], page)
    assert "| op | int64 | auto | async | wrap | 1 | 1 | 0 | 2 | 1 |" in other


def test_a_page_keeps_the_reasons_of_what_was_not_run_again():
    late = {"late": ["IndexError: a"]}
    page = report.docs_page([result("mul", "different"), result("take", suite="error", **late)])
    mul = "| `op:mul, int64, fusion auto` | unexplained"
    for results in ([], [result("add")], [result("mul", dtype="bool")]):
        again = report.docs_page(results, page)
        assert mul in again and "| `error:take` | IndexError: a |" in again
    mended = report.docs_page([result("mul"), result("take", suite="error")], page)
    assert "op:mul" not in mended and "error:take" not in mended


def test_a_page_keeps_the_reasons_of_what_was_run_again_in_some_lines_only():
    """In which it may be equal, as in mode sync, though not in those that were not run."""
    page = report.docs_page([result("mul", "different"), result("mul", mode="sync")])
    some = report.docs_page([result("mul", mode="sync")], page)
    assert "| `op:mul, int64, fusion auto` | unexplained" in some
    assert report.docs_page([result("mul", limit=1)], page).count("| `op:mul") == 1
    mended = report.docs_page([result("mul"), result("mul", mode="sync")], page)
    assert "op:mul" not in mended


def test_a_page_keeps_the_reason_of_a_row_that_stays():
    """What was run in part leaves the row as it is, and with it what the row counts."""
    page = report.docs_page([result("mul", "different"), result("add")])
    again = report.docs_page([result("mul")], page)
    assert "| op | int64 | auto | async | wrap | 1 | 2 |" in again and "`op:mul, int64" in again


def the_page() -> str:
    return report.DOCS.read_text().partition(report.GENERIC_HEADING)[0].rstrip("\n") + "\n"


def test_the_page_is_what_its_generator_writes():
    assert report.docs_page([], the_page()) == the_page()


def test_each_row_of_the_page_that_counts_less_has_its_reasons():
    """Some count less still: what may differ need not in each mode."""
    page = the_page()
    section = page.partition("\n## Not equal\n")[2].partition("\n## ")[0]
    entries = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    lines = [report.lines_of(entry, page) for entry in entries]
    for cells in report.rows(page):
        row = dict(zip(report.COLUMNS, cells, strict=True))
        reasons = sum(cells[:5] in of_entry for of_entry in lines)
        assert int(row["of"]) - int(row["equal"]) <= reasons, row


def test_the_documented_command_runs_every_row():
    plans = [*conformance.plans(conformance.arguments(["--full"]))]
    assert len(plans) == report.FULL_LINES
    lines = {(p.suite, p.dtype, p.fusion, p.mode, p.how) for p in plans}
    named = {cells[:5] for cells in report.rows(the_page())}
    assert not {cells for cells in named if cells[1] != "float16" and cells[2] != "exact"} - lines


def gradients(op, sample, dtype, mode):
    """Of a sample in this dtype, in float64, for the same gradients of the results."""
    wanted = sample.transform(
        lambda x: (
            x.detach().to(dtype).requires_grad_(x.requires_grad)
            if isinstance(x, torch.Tensor) and x.is_floating_point()
            else x
        )
    )
    leaves = [
        x
        for x in tree_leaves((wanted.input, wanted.args, wanted.kwargs))
        if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    with lazyeng.lazy(mode) if mode else contextlib.nullcontext():
        result = op(wanted.input, *wanted.args, **wanted.kwargs)
        ones = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
        found = torch.autograd.grad(result, leaves, ones.to(dtype), allow_unused=True)
    return [lazyeng.unwrap(x).double() for x in found if x is not None]


@pytest.mark.limit(120)
@pytest.mark.usefixtures("inexact")
@pytest.mark.parametrize("name", CANCELS)
def test_what_cancels_out_is_no_further_from_float64(name):
    """What known.py says of these groups in bfloat16, where their gradients differ from eager's."""
    (op,) = [op for op in op_db if op.name == name and not op.variant_test_name]
    compared = 0
    for sample in op.sample_inputs("cpu", torch.bfloat16, requires_grad=True):
        eager = gradients(op, sample, torch.bfloat16, None)
        group = gradients(op, sample, torch.bfloat16, "deferred")
        exact = gradients(op, sample, torch.float64, None)
        for a, b, c in zip(eager, group, exact, strict=True):
            finite = torch.isfinite(a) & torch.isfinite(b) & torch.isfinite(c)
            if torch.equal(a, b) or not finite.any():
                continue
            compared += 1
            furthest = (a - c)[finite].abs().max()
            tolerance = 1.6e-2 * c[finite].abs().max() + 1e-5  # assert_close's, of bfloat16
            assert (b - c)[finite].abs().max() <= torch.maximum(furthest * 1.01, tolerance)
    assert compared


def test_the_full_run_is_the_product_of_all():
    plans = [*conformance.plans(conformance.arguments(["--full"]))]
    assert len({*plans}) == len(plans) == (11 * 6 + 4) * 3 * 3 * 2
    assert {plan.suite for plan in plans} == {*SUITES}
    less = conformance.arguments(["--full", "--mode", "sync", "--suite", "op", "dtype"])
    assert {plan.mode for plan in conformance.plans(less)} == {"sync"}
    assert len([*conformance.plans(less)]) == (6 + 1) * 3 * 2


@pytest.mark.limit(300)
def test_a_full_run_goes_on_where_it_was(tmp_path, capsys):
    """Begun by the command, and gone on with here, by another process."""
    path = tmp_path / "log" / "run.jsonl"
    words = ["--full", "--log", str(path), "--suite", "optim", "--dtype", "default", "--limit", "2"]
    words += ["--mode", "deferred", "--fusion", "on", "--how", "wrap", "--op", "SGD", "Adam"]
    command = [sys.executable, "-m", "tests.conformance", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "1/1 optim_db, default: 2 of 2 equal" in done.stderr
    logged = path.read_text()
    assert len(logged.splitlines()) == 2
    assert conformance.main(words) == 0
    assert path.read_text() == logged
    again = capsys.readouterr().out
    assert "| optim, 2 samples | default | on | deferred | wrap | 2 | 2 | 0 | 4 |" in again


def test_errors_that_come_with_the_read_are_listed():
    """Each once, however many runs have seen it; and what has none is not there."""
    late = {"late": ["IndexError: a | b"]}
    results = [result("take", suite="error", **late), result("take", suite="error", **late)]
    page = report.docs_page([*results, result("add", suite="error")])
    section = page.partition("## Raised at the read")[2].partition("##")[0]
    assert section.count("\n| `error:") == 1
    assert "| `error:take` | IndexError: a / b |" in section


TINY = """
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestTiny(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_add(self, device, dtype):
        x = torch.ones(3, device=device, dtype=dtype)
        assert type(x).__name__ == ("Tensor" if device == "cpu" else "LazyTensor")
        self.assertEqual((x + x).tolist(), [2, 2, 2])

    def test_no_tensor(self, device):
        if device != "cpu":
            raise ValueError("not on 12 device")

    def test_device_name(self, device):
        self.assertEqual(torch.ones(3, device=device).device.type, torch.device(device).type)

    def test_skipped(self, device):
        self.skipTest("no reason")

    def test_wrong(self, device):
        self.assertEqual(torch.ones(3, device=device), torch.zeros(3))

instantiate_device_type_tests(TestTiny, globals())
"""


def test_device_generic_tests_of_a_file(tmp_path, capsys):
    path = tmp_path / "test_tiny.py"
    path.write_text(TINY)
    results = [
        result | {"file": path.name, "device": device, "mode": "async"}
        for device in ("lazyeng", "cpu")
        for result in generic.run_file(generic.FileJob(path, device, "async", 60), 60)
    ]
    assert len(results) == 12
    row = generic_report.rows(results)[path.name]
    assert row == {
        "run": 5, "passed": 2, "skipped": 1, "failed": 3, "failed on cpu too": 1, "explained": 1,
        "without a reason": 1,
    }  # fmt: skip
    (failure,) = generic_report.unexplained(results)
    assert failure["name"].endswith(".test_no_tensor_lazyeng")
    generic_report.show(results)
    shown = capsys.readouterr().out
    assert "1 x ValueError: not on N device" in shown and "test_wrong" not in shown
    assert "| test_tiny.py | 5 | 2 | 1 | 3 | 1 | 1 | 1 |" in generic_report.section(results)


def test_reasons_of_device_generic_failures_are_words():
    assert all(len(reason) > 20 for reason in GENERIC.values())
