"""What is compiled, kept and told of. The thread itself: tests/programs/cuda_programs.py."""

import warnings

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from lazyeng.fuse import background
from lazyeng.fuse.background import CompileWarning, KernelMaker, Service
from lazyeng.fuse.compiler import Compiled, CompileError, NoAnswerError, Request
from lazyeng.fuse.disk_cache import DiskCache

pytestmark = [pytest.mark.plain_process, pytest.mark.limit(60)]


def request(text="kernel"):
    return Request(text, "group_kernel", {}, {}, (), 90, 4)


class Compiler:
    """Counts what it is asked for."""

    def __init__(self, fails=None):
        self.asked = []
        self.fails = fails

    def __call__(self, requests):
        self.asked += [r.text for r in requests]
        if self.fails:
            raise self.fails
        return [Compiled(r.text, 0, 4, b"cubin") for r in requests]


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "kernels")


def test_it_is_compiled_once(cache):
    compiler = Compiler()
    maker = KernelMaker(cache, compiler)
    assert maker.make(request()) == maker.make(request()) == Compiled("kernel", 0, 4, b"cubin")
    assert compiler.asked == ["kernel"]


def test_what_got_no_answer_is_asked_for_again(cache):
    """A compiler that was ended, for want of memory say, may do it another time."""
    compiler = Compiler(NoAnswerError("it did not answer"))
    maker = KernelMaker(cache, compiler)
    with pytest.raises(NoAnswerError):
        maker.make(request())
    compiler.fails = None
    assert maker.make(request()).name == "kernel"
    compiler.fails = CompileError("refused")
    for _ in range(2):
        with pytest.raises(CompileError):
            maker.make(request("another"))
    assert compiler.asked == ["kernel", "kernel", "another"]


def test_memory_holds_the_last_few(cache, monkeypatch):
    monkeypatch.setattr(background, "_KEPT", 3)
    compiler = Compiler()
    maker = KernelMaker(cache, compiler)
    for name in "abcabcde":
        maker.make(request(name))
    assert [kernel.name for kernel in maker._known.values()] == ["c", "d", "e"]
    assert maker.make(request("a")).name == "a" and compiler.asked == [*"abcde"]  # from the disk


def test_the_next_process_finds_it_on_disk(cache):
    KernelMaker(cache, Compiler()).make(request())
    again = KernelMaker(DiskCache(cache.folder), Compiler(CompileError("not asked for")))
    assert again.make(request()).name == "kernel"


def test_a_damaged_file_is_compiled_again(cache):
    cache.put(request().key(), b"{}\nnot a kernel")
    made = KernelMaker(cache, Compiler()).make(request())
    assert made.cubin == b"cubin"
    assert cache.get(request().key()) == made.to_bytes()


def test_a_failure_is_not_tried_again(cache):
    compiler = Compiler(CompileError("ptxas is missing"))
    maker = KernelMaker(cache, compiler)
    for text in ("a", "b", "a"):
        with pytest.raises(CompileError, match="ptxas is missing"):
            maker.make(request(text))
    assert compiler.asked == ["a", "b"]


class Core:
    """In place of the functions of lazyeng._C: hands out requests, keeps the answers."""

    def __init__(self, monkeypatch, *requests):
        self.requests = list(requests)
        self.answers = []
        monkeypatch.setattr("lazyeng.fuse.background._C", self)

    def next_kernel_request(self):
        return self.requests.pop(0) if self.requests else None

    def answer_kernel_request(self, *answer):
        self.answers.append(answer)


def described(function, *tensors):
    """The program of the one group of function(*tensors), and its ops, as the core gives them."""
    from lazyeng import _C
    from tests.fuse.programs import recording

    with recording():
        results = function(*tensors)
        ((calls, program, _, _),) = _C.planned()[0]
        del results
    return program, [call[0] for call in calls]


def test_failures_are_told_once(cache, monkeypatch):
    """And filters that make warnings errors do not end the thread."""
    program, ops = described(lambda x: x * 2 + 1, torch.ones(9))
    aligned = (True,) * 2
    for strict in (False, True):
        core = Core(
            monkeypatch, (1, 90, program, ops, aligned), (2, 80, program, ops, aligned),
            (3, 0, program, ops, aligned),
        )  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("error" if strict else "always")
            Service(KernelMaker(cache, Compiler(CompileError("no")))).run()
        assert core.answers == [(1,), (2,), (3,)]
        if not strict:
            assert [w.category for w in caught] == [CompileWarning] * 2
            assert "compiled, its ops run one by one: no" in str(caught[0].message)
            assert "the driver does not say" in str(caught[1].message)


def test_what_the_core_is_told(cache, monkeypatch):
    """Arguments in the order of the kernel's; numbers of the plan are numbers."""
    program, ops = described(lambda x: (x * 2).mean(), torch.ones(40_000))
    core = Core(monkeypatch, (7, 90, program, ops, (True, True)))
    Service(KernelMaker(cache, Compiler())).run()
    ((number, partial_bytes, kernels),) = core.answers
    assert (number, partial_bytes) == (7, [40 * 4])
    (_, _, _, _, _, grid, arguments), (_, _, _, _, _, finishing, last) = kernels
    assert (grid, finishing) == ((40, 1, 1), (1, 1, 1))
    assert sorted(kind for kind, *_ in arguments) == ["number", "parameter", "partial", "tensor"]
    assert ("number", "i32", 0, 40_000) in arguments
    assert ("number", "fp32", 0, 40_000.0) in last and ("number", "i32", 0, 40) in last


def test_a_group_from_the_window_to_the_cubin(cache):
    from tests.fuse.compiling import requests_of
    from tests.fuse.programs import plans_of

    (wanted,) = requests_of(plans_of(lambda x: x * 2 + 1, torch.ones(9)), (90,))
    kernel = KernelMaker(cache).make(wanted)
    assert (kernel.name, kernel.num_warps) == ("group_kernel", 4)
    assert kernel.cubin.startswith(b"\x7fELF")
