"""Processes of multiprocessing: what they record has run when they end, and their blocks are
their own. Each test is a program of its own."""

import pytest

from tests.support.processes import check, run

CHILDREN = """
    import contextlib, threading
    import torch.multiprocessing as mp
    def writes(w, x):
        torch.set_num_threads(1)
        for _ in range(20):
            w.copy_((x @ x).sum(0))
            x = x.sin()
        w.fill_(7)
    def fails(x):
        lazyeng.wrap(x)[torch.tensor([9])] + 1
    def kind(x):
        return type(x * 2) is torch.Tensor
    def receives(given, taken, mode):
        torch.set_num_threads(1)
        with lazyeng.lazy(mode):
            for _ in range(4):
                buffer, i = given.get()  # the same memory each time
                buffer.copy_((buffer @ buffer).clamp(0, 1) + i)
                taken.put(i)
"""


@pytest.mark.parametrize("where", ["wrap", "async", "deferred"])
def test_what_a_process_records_runs(where):
    check(CHILDREN + f"""
    w, x = torch.zeros(300).share_memory_(), torch.rand(300, 300)
    if {where!r} == "wrap": w, x = wrap((w, x))
    with contextlib.nullcontext() if {where!r} == "wrap" else lazy({where!r}):
        process = mp.get_context("fork").Process(target=writes, args=(w, x * 2))
        process.start()
        process.join(30)
        print(process.exitcode, *set(w.tolist()))
    """, "0 7.0")  # fmt: skip


def test_a_process_reports_what_failed_unseen():
    done = run(CHILDREN + """
    process = mp.get_context("fork").Process(target=fails, args=(torch.ones(3),))
    process.start()
    process.join(30)
    print(process.exitcode)
    """)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert "UnseenFailureWarning: aten.index" in done.stderr and "IndexError" in done.stderr


def test_pools_that_are_started_in_a_block(lazy_mode):
    check(CHILDREN + f"""
    with lazy({lazy_mode!r}), mp.get_context("fork").Pool(2) as pool:
        print(pool.map(kind, [torch.ones(3)] * 4))
        print(lazyeng._C.thread_mode()[1])
    """, "[True, True, True, True]\n1")  # fmt: skip


def test_memory_that_arrives_more_than_once(mode):
    check(CHILDREN + f"""
    context = mp.get_context("fork")
    given, taken = context.Queue(), context.Queue()
    buffer = torch.zeros(200, 200).share_memory_()
    process = context.Process(target=receives, args=(given, taken, {mode!r}))
    process.start()
    for i in range(4): given.put((buffer, i))
    process.join(30)
    print(process.exitcode, buffer[0, 0].item())
    """, "0 4.0")  # fmt: skip
