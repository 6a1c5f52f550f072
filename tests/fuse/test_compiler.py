"""Compiling generated kernels without a device, in the worker's process."""

import functools
import os
import re
import resource
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from lazyeng.fuse import compiler, compiler_process
from lazyeng.fuse.compiler import Compiled, CompileError
from lazyeng.fuse.compiler_process import ProcessError
from tests.fuse.compiling import ARCHES, compile_all, requests_for, requests_of
from tests.fuse.programs import PARTS, SAMPLES, plans_of
from tests.support.processes import alone

pytestmark = pytest.mark.plain_process


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left():
    yield
    compiler.end_compiler()


# Groups to compile for each: those that test_source.py interprets, and more by the variable.
GROUPS = int(os.environ.get("LAZYENG_TEST_COMPILED_GROUPS", "200"))
MOST_BYTES = 1 << 20  # of a kernel's ptx, and of its cubin


@functools.cache
def groups_of_sample(name):
    return [one for _, new in SAMPLES[name].plans(GROUPS) for one in new]


@pytest.mark.limit(180 + GROUPS)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "name, part", [(name, i) for name, sample in SAMPLES.items() for i in range(sample.share)]
)
def test_random_groups_compile(name, part, arch, tmp_path):
    """Into small files; those of one architecture are the interpreted groups, all of them."""
    share = GROUPS // PARTS
    groups = groups_of_sample(name)[part * share : (part + 1) * share]
    assert len(groups) == share
    compile_all(list(requests_for(groups, (arch,))), tmp_path)
    files = list(tmp_path.iterdir())
    assert len(files) >= 2 * share
    assert max(file.stat().st_size for file in files) < MOST_BYTES
    for file in files:  # (pytest keeps the folders of three runs)
        file.unlink()


def test_a_group_with_folds_of_rows_and_of_all_compiles(tmp_path):
    x = torch.randn(40, 3000)

    def program(x):
        return torch.softmax(x, -1).to(torch.bfloat16), x.double().sum(-1), (x > 0).any(), x.mean()

    compile_all(list(requests_of(plans_of(program, x))), tmp_path)


def test_each_dtype_and_fold_compiles(tmp_path):
    dtypes = (torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.bool)

    def program(*tensors):
        results = [x for t in tensors for x in (t * t, (t * t).amax(), (t == t).sum())]
        results += [t * torch.ones_like(t) for t in tensors]  # a number that is part of the op
        floats = [t for t in tensors if t.is_floating_point()]
        return *results, *(torch.tanh(t).mean() for t in floats[1:])

    plans = plans_of(program, *(torch.ones(40_000).to(dtype) for dtype in dtypes))
    requests = list(requests_of(plans, (90,)))
    assert {request.kernel for request in requests} == {"group_kernel", "finish_kernel"}
    compile_all(requests, tmp_path)


def test_powers_of_integers_and_nans_compile(tmp_path):
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    plans = plans_of(
        lambda *xs: [(x * 1) ** 3 for x in xs], *(torch.ones(99).to(d) for d in integers)
    )
    compile_all(list(requests_of(plans, (90,))), tmp_path)
    plans = plans_of(lambda x: (x * 2).nan_to_num(nan=float("nan")) + 1, torch.ones(99))
    compile_all(list(requests_of(plans, (90,))), tmp_path)


def test_arithmetic_rounds_as_in_eager(tmp_path):
    """No product is merged into a sum, and float32 is divided with correct rounding."""
    plans = plans_of(lambda x, y: (x * y + 1) / y, torch.ones(9, 9), torch.ones(9, 9))
    (answer,) = compile_all(list(requests_of(plans, (90,))), tmp_path)
    assert "div.rn.f32" in answer["ptx"]
    assert not re.search(r"\bfma\.", answer["ptx"])
    assert re.search(r"ld\.global.*v4", answer["ptx"])  # four elements at a time


def test_what_the_compiler_refuses_is_an_error():
    plans = plans_of(lambda x: x * 2 + 1, torch.ones(9))
    (request,) = requests_of(plans, (90,))
    wrong = replace(request, text=request.text.replace("tl.load", "tl.lod"))
    with pytest.raises(CompileError, match="lod"):
        compiler.compile_kernels([wrong])


def a_request():
    (request,) = requests_of(plans_of(lambda x: x * 2 + 1, torch.ones(9)), (90,))
    return request


@pytest.fixture
def process():
    made = compiler_process.CompilerProcess()
    yield made
    made.end()


def test_one_process_for_many_requests(process):
    request = asdict(a_request())
    assert process.answer(request)["name"] == "group_kernel"
    pid = process._process.pid
    wrong = request | {"text": request["text"].replace("tl.load", "tl.lod")}
    assert "lod" in process.answer(wrong)["error"]
    assert process.answer(request | {"arch": 80})["name"] == "group_kernel"
    assert process._process.pid == pid


def test_a_process_that_has_nothing_to_do_ends(process, monkeypatch):
    monkeypatch.setattr(compiler_process, "IDLE", 0.1)
    request = asdict(a_request())
    for _ in range(2):
        assert process.answer(request)["name"] == "group_kernel"
        until = time.monotonic() + 20
        while process._process is not None:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_process_that_is_gone_is_replaced(process):
    request = asdict(a_request())
    process.answer(request)
    process._process.kill()
    process._process.wait()
    assert process.answer(request)["name"] == "group_kernel"


def test_nothing_is_left_on_disk(process, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_process.tempfile, "tempdir", str(tmp_path))
    for end in (process.end, lambda: process._process.kill()):
        assert process.answer(asdict(a_request()))["name"] == "group_kernel"
        assert len(list(tmp_path.iterdir())) == 1
        end()
        process.end()
        assert not list(tmp_path.iterdir())


def test_many_open_files(process):
    """Descriptors above 1,023, which select() does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1500:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert process.answer(asdict(a_request()))["name"] == "group_kernel"
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_settings_of_triton_are_part_of_the_key(process, monkeypatch):
    """And are those of the request, also in a process that runs already."""
    usual = a_request()
    sizes = [len(process.answer(asdict(usual))["cubin"])]
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    unoptimised = a_request()
    sizes += [len(process.answer(asdict(r))["cubin"]) for r in (unoptimised, usual)]
    assert unoptimised.key() != usual.key() and sizes[0] == sizes[2] != sizes[1]
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")  # that is the process's own
    assert a_request().key() == unoptimised.key()


def test_a_child_of_a_fork_has_a_process_of_its_own(process):
    request = asdict(a_request())
    process.answer(request)
    pid = process._process.pid
    child = os.fork()
    if child == 0:
        answered = process.answer(request)["name"] == "group_kernel"
        other = process._process.pid != pid
        process.end()
        os._exit(7 if answered and other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert process.answer(request)["name"] == "group_kernel"
    assert process._process.pid == pid


def test_the_process_ends_with_the_program(tmp_path):
    """Also if that is killed."""
    program = f"""
import os, sys
from lazyeng.fuse.compiler_process import CompilerProcess
process = CompilerProcess()
process.answer({asdict(a_request())!r})
print(process._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = alone(program, timeout=50)
    pid = int(done.stdout)
    for _ in range(200):
        if not Path(f"/proc/{pid}/stat").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.1)
    raise AssertionError("it lives on")


def test_a_compiler_that_dies_is_an_error(tmp_path, monkeypatch, process):
    worker = tmp_path / "worker.py"
    worker.write_text("import os, sys; print('no memory', file=sys.stderr); os._exit(3)")
    monkeypatch.setattr(compiler_process, "WORKER", worker)
    for _ in range(2):
        with pytest.raises(ProcessError, match="ended with status 3: no memory"):
            process.answer({})
    worker.write_text("import time; time.sleep(100)")
    monkeypatch.setattr(compiler_process, "SECONDS", 0.3)
    with pytest.raises(ProcessError, match="did not answer within"):
        process.answer({})
    monkeypatch.setattr(compiler_process.sys, "executable", str(tmp_path / "none"))
    with pytest.raises(ProcessError, match="did not run"):
        process.answer({})


def test_a_key_says_what_decides_the_kernel(monkeypatch):
    plans = plans_of(lambda x: x * 2 + 1, torch.ones(9))
    (request,) = requests_of(plans, (90,))
    others = [
        replace(request, **change)
        for change in (
            {"text": request.text + "\n"}, {"arch": 80}, {"divisible_by_16": ()},
            {"num_warps": 8}, {"constants": {"BLOCK_SIZE": 512}}, {"kernel": "finish_kernel"},
            {"signature": request.signature | {"n_elements": "i64"}},
        )
    ]  # fmt: skip
    keys = {r.key() for r in (request, *others)}
    assert len(keys) == 8
    monkeypatch.setattr(compiler, "triton_version", lambda: "0.0")
    assert request.key() not in keys


def test_bytes_and_back():
    kernel = Compiled("k", 1024, 4, b"\x7fELF\n\x00\n")
    assert Compiled.from_bytes(kernel.to_bytes()) == kernel
