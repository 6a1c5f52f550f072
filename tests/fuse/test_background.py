"""The thread that compiles: nobody waits, everything is compiled once, failures are told once."""

import multiprocessing
import threading
import warnings

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from lazyeng.fuse.background import BackgroundCompiler, CompileWarning
from lazyeng.fuse.compiler import Compiled, CompileError, Request
from lazyeng.fuse.disk_cache import DiskCache

pytestmark = [pytest.mark.plain_process, pytest.mark.limit(60)]


def request(text="kernel"):
    return Request(text, "group_kernel", {}, {}, (), 90)


class Compiler:
    """Counts what it is asked for; `go` lets it answer."""

    def __init__(self, fails=None):
        self.asked = []
        self.go = threading.Event()
        self.fails = fails

    def __call__(self, requests):
        assert self.go.wait(30)
        self.asked += [r.text for r in requests]
        if self.fails:
            raise self.fails
        return [Compiled(r.text, 0, 4, b"cubin") for r in requests]


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "kernels")


def test_nobody_waits_and_it_is_compiled_once(cache):
    compiler = Compiler()
    background = BackgroundCompiler(cache, compiler)
    assert background.get(request()) is None
    assert background.get(request()) is None
    assert not background.wait(0.01)
    compiler.go.set()
    assert background.wait(30)
    assert background.get(request()) == Compiled("kernel", 0, 4, b"cubin")
    assert compiler.asked == ["kernel"]


def test_the_next_process_finds_it_on_disk(cache):
    compiler = Compiler()
    compiler.go.set()
    BackgroundCompiler(cache, compiler).get(request())
    again = BackgroundCompiler(DiskCache(cache.folder), compiler)
    again.get(request("other"))
    assert again.wait(30)
    first = BackgroundCompiler(DiskCache(cache.folder), Compiler())  # (which would never answer)
    assert first.get(request("other")) is None
    assert first.wait(30)
    assert first.get(request("other")).name == "other"


def test_a_damaged_file_is_compiled_again(cache):
    cache.put(request().key(), b"{}\nnot a kernel")
    compiler = Compiler()
    compiler.go.set()
    background = BackgroundCompiler(cache, compiler)
    background.get(request())
    assert background.wait(30)
    assert background.get(request()).cubin == b"cubin"
    assert cache.get(request().key()) == background.get(request()).to_bytes()


def test_a_failure_is_told_once_and_not_tried_again(cache):
    compiler = Compiler(CompileError("ptxas is missing"))
    compiler.go.set()
    background = BackgroundCompiler(cache, compiler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for text in ("a", "b"):
                assert background.get(request(text)) is None
                assert background.wait(30)
    assert compiler.asked == ["a", "b"]
    (warning,) = caught
    assert warning.category is CompileWarning
    assert "compiled for sm_90 and runs op by op: ptxas is missing" in str(warning.message)


def test_warnings_that_are_errors_do_not_end_the_thread(cache):
    compiler = Compiler(CompileError("no"))
    compiler.go.set()
    background = BackgroundCompiler(cache, compiler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        background.get(request("a"))
        assert background.wait(30)
    compiler.fails = None
    background.get(request("b"))
    assert background.wait(30)
    assert background.get(request("b"))


def _ask(background, answers):
    background.get(request("child"))
    answers.put(background.wait(30) and background.get(request("child")).name)


def test_a_forked_child_has_a_thread_of_its_own(cache):
    compiler = Compiler()
    compiler.go.set()
    background = BackgroundCompiler(cache, compiler)
    background.get(request())
    assert background.wait(30)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_ask, args=(background, answers))
    child.start()
    assert answers.get(timeout=30) == "child"
    child.join()


def test_a_group_from_the_window_to_the_cubin(cache):
    from tests.fuse.programs import plans_of
    from tests.fuse.test_compiler import requests_of

    (wanted,) = requests_of(plans_of(lambda x: x * 2 + 1, torch.ones(9)), (90,))
    background = BackgroundCompiler(cache)
    assert background.get(wanted) is None
    assert background.wait(50)
    kernel = background.get(wanted)
    assert (kernel.name, kernel.num_warps) == ("group_kernel", 4)
    assert kernel.cubin.startswith(b"\x7fELF")
