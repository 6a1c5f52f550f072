"""Fork, exit, Ctrl-C, DataLoader workers. Each test runs in a process of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.support.processes import PRELUDE, check, finished, printed_by, run, start

IN_CHILD = """
pid = os.fork()
if pid == 0:
    try:
        {child}
        sys.stdout.flush()
        os._exit(0)
    except BaseException as error:
        print("child:", repr(error)); sys.stdout.flush()
        os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
{parent}
print("status", status)
"""


def forked(before, child, parent):
    """`before` in the parent, then fork; one line each for child and parent."""
    body = textwrap.dedent(before).strip("\n") + IN_CHILD.format(child=child, parent=parent)
    return run(body)


def check_forked(before, child, parent, stdout):
    done = forked(before, child, parent)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-3000:]}"
    assert done.stdout.split() == stdout.split(), done.stderr[-3000:]


def test_fork_with_pending_work(mode):
    """The parent's work goes on; the child records anew."""
    check_forked(
        f"""
        with lazy("{mode}"):
            x = wrap(torch.ones(100, 100))
            for _ in range(200): x = x @ torch.eye(100)
        """,
        'print("child", (wrap(torch.ones(3)) + 1).sum().item()); synchronize()',
        'print("parent", x.sum().item())',
        "child 6.0 parent 10000.0 status 0",
    )


def test_fork_with_idle_engine():
    check_forked(
        "(wrap(torch.ones(2)) + 1).wait()",
        'print("child", (wrap(torch.ones(3)) + 1).sum().item())',
        'print("parent", (wrap(torch.ones(2)) + 1).sum().item())',
        "child 6.0 parent 4.0 status 0",
    )


def test_fork_with_a_team_of_openmp():
    """Eager code leaves helper threads to the main thread, which the child has on paper only. What
    a long wait of the child does about them must not wait for them."""
    work = "m = wrap(torch.ones(300, 300))\nfor _ in range(60): m = m @ m / 300\nm.wait()"
    check_forked(
        f"""
        torch.set_num_threads(2)
        torch.ones(1000, 1000).exp_()  # eager, on several threads
        {work.replace(chr(10), chr(10) + " " * 8)}
        torch.ones(1000, 1000).exp_()
        """,
        f"torch.set_num_threads(2); exec({work!r}); print('child', m[0, 0].item())",
        f"exec({work!r}); print('parent', m[0, 0].item())",
        "child 1.0 parent 1.0 status 0",
    )


def test_helpers_of_openmp_are_gone_at_a_fork():
    """As they end they free what MKL keeps for them, under a lock that a child would wait for."""
    printed = printed_by("""
        import contextlib, os
        EXITING = 4  # of the kernel's flags: what a thread does at its end is done
        def look():
            left.append([])
            for i in os.listdir("/proc/self/task"):
                with contextlib.suppress(OSError):  # it is gone
                    name, _, state = open(f"/proc/self/task/{i}/stat").read().rpartition(")")
                    if "(lazyeng" in name and not int(state.split()[6]) & EXITING:
                        left[-1].append(name)
        left = []
        os.register_at_fork(before=look)  # (the first that registers is the last that is called)
        import torch
        from lazyeng import wrap
        torch.set_num_threads(2)
        for _ in range(300):
            m = wrap(torch.ones(300, 300))
            for _ in range(3): m = m @ m / 300
            m.wait()
            pid = os.fork()
            if pid == 0: os._exit(0)
            os.waitpid(pid, 0)
        print(len(left), sum(map(len, left)))
    """)
    assert printed.split() == ["300", "0"]


def test_eager_code_gets_its_cores_back():
    """OpenMP's helpers sleep if there are more than cores, also those of eager kernels: none of the
    engine's stay when nothing is recorded any more."""
    check("""
        torch.set_num_threads(2)
        def threads():  # of two workers and the one that keeps the idle team, and their helpers
            return count_threads("lazyeng-cpu", "lazyeng-openmp")
        def come_to(holds):
            end = time.monotonic() + 20
            while not holds(threads()) and time.monotonic() < end: time.sleep(0.001)
            return holds(threads())
        for _ in range(2):  # they come again
            m = wrap(torch.ones(600, 600))
            for _ in range(100): m = m @ m / 600
            seen = False
            while not m.is_ready(): seen |= threads() > 3
            print(seen, come_to(lambda n: n == 3))
    """, "True True True True", LAZYENG_NUM_WORKERS="2", own=True)  # fmt: skip


def test_who_waits_for_much_has_no_team_beside_that_of_a_worker():
    """With two teams there are more threads in them than cores, and libgomp puts all helpers to
    sleep after each of the many short regions of a recurrent layer. (MKL has helpers for the small
    product that is the gradient of the last weight, which the thread that waits could run.)"""
    check("""
        torch.set_num_threads(2)
        own = open("/proc/self/comm").read()
        before = count_threads(own)
        rnn, last, x = torch.nn.LSTM(32, 64), torch.nn.Linear(64, 5), torch.rand(20, 16, 32)
        labels = torch.randint(5, (16,))
        for _ in range(4):
            with lazyeng.lazy("async"):
                for _ in range(60):
                    out = last(rnn(x)[0][-1])
                    torch.nn.functional.cross_entropy(out, labels).backward()
                lazyeng.synchronize()
            print(count_threads(own) - before)
    """, "0 0 0 0", own=True)  # fmt: skip


def test_helpers_sleep_only_in_a_program_that_never_waits():
    """The sign for it is an idle team. One that reads in each step would wait for it."""
    check("""
        torch.set_num_threads(2)
        def idle_team(): return count_threads("lazyeng-openmp") > 1
        x, w = wrap(torch.ones(16)), wrap(torch.ones(600, 600))
        def recording(step):
            \"""Whether it is there while steps are recorded, after the time that a change takes.\"""
            start, seen = time.monotonic(), []
            while time.monotonic() < start + 1:
                step()
                if time.monotonic() > start + 0.5: seen.append(idle_team())
            # (A process that is not scheduled for 100 ms has not waited lately.)
            return [there for there in (True, False) if seen.count(there) > 0.9 * len(seen)]
        print(recording(lambda: [x + 1 for _ in range(20)]))
        reading = recording(lambda: (w @ w).sum().item())
        # (Beside other programs helpers sleep in any case: the next test.)
        print([False] if lazyeng.engine_stats()["crowded"] else reading)
        print(recording(lambda: [x + 1 for _ in range(20)]))
    """, "[True] [False] [True]", own=True)  # fmt: skip


CROWDS = {
    "one core for both threads": """
        cores = {min(os.sched_getaffinity(0))}
        import contextlib
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), cores)
        """,
    "other programs": """
        import atexit, subprocess
        busy = "import time; end = time.time() + 50\\nwhile time.time() < end: pass"
        for _ in os.sched_getaffinity(0):
            atexit.register(subprocess.Popen([sys.executable, "-c", busy]).kill)
        """,
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_helpers_that_stand_in_line_sleep(crowd):
    """The sign for sleep is again the idle team."""
    # (By then OpenMP has counted the cores, and the engine has its threads.)
    start = "torch.set_num_threads(2); (wrap(torch.ones(2)) + 1).sum().item()"
    check(start + textwrap.dedent(CROWDS[crowd]) + textwrap.dedent("""
        def idle_team(): return count_threads("lazyeng-openmp") > 1
        w = wrap(torch.ones(200, 200))
        end, crowded = time.monotonic() + 30, False
        while not crowded and time.monotonic() < end:
            (w @ w).relu().sum().item()  # reads in each step: helpers may spin
            crowded = lazyeng.engine_stats()["crowded"] > 0 and idle_team()
        print(crowded)
    """), "True", own=True)  # fmt: skip


def test_fork_before_first_use():
    check_forked(
        "", 'print("child", (wrap(torch.ones(3)) + 1).sum().item())',
        'print("parent", (wrap(torch.ones(2)) + 1).sum().item())',
        "child 6.0 parent 4.0 status 0",
    )  # fmt: skip


def test_fork_with_pending_failure(lazy_mode):
    """A pending error at fork aborted MXNet. The child does not inherit it; the parent keeps it."""
    check_forked(
        f"""
        with lazy("{lazy_mode}"):
            bad = wrap(torch.ones(3))[wrap(torch.tensor([7]))]
        """,
        'synchronize(); print("child", (wrap(torch.ones(3)) + 1).sum().item())',
        """
try: bad.wait()
except IndexError as error: print("parent", type(error).__name__)
""",
        "child 6.0 parent IndexError status 0",
    )


def test_forked_child_reads_what_was_ready():
    check_forked(
        "x = (wrap(torch.ones(3)) + 1).wait()",
        'print("child", x.tolist()[0], (x * 2).tolist()[0])',
        'print("parent", x.tolist()[0])',
        "child 2.0 4.0 parent 2.0 status 0",
    )


def test_forked_child_exits_normally():
    """Through sys.exit and its exit handlers, not os._exit."""
    done = run(
        """
        x = wrap(torch.ones(3)) + 1
        pid = os.fork()
        if pid == 0:
            (wrap(torch.ones(3)) + 1).wait()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), x.sum().item())
    """,
        own=True,
    )
    assert done.returncode == 0 and done.stdout.split() == ["0", "6.0"], done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_of_multiprocessing_that_imports_by_itself(method, tmp_path):
    """It ends without handlers of atexit: what is pending runs, and what has failed is told."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import multiprocessing
        def child():
            import torch
            import lazyeng
            with lazyeng.lazy("deferred"):
                kept.append(torch.linalg.inv(torch.zeros(2, 2)))
        kept = []
        if __name__ == "__main__":
            process = multiprocessing.get_context("{method}").Process(target=child)
            process.start(); process.join()
            print(process.exitcode)
        """)
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "0\n" and "singular" in done.stderr, done.stderr
    assert done.stderr.count("LinAlgError") == 1, done.stderr


LATE = {
    "an exit handler registered before the import": "atexit.register(late)",
    "a destructor": """
        class Late:
            def __init__(self): self.late = late
            def __del__(self): self.late()
        kept = Late()
        kept.itself = kept
        """,
}


@pytest.mark.parametrize("how", LATE)
def test_what_comes_after_our_exit_handler_runs_at_the_call(how):
    """The engine has no threads by then, for which a read would wait for ever."""
    before = """
        import atexit, faulthandler
        faulthandler.enable()
        def late():
            y = x * 2
            print(y.sum().item(), y.tolist())
            with lazy("deferred"): plain.add_(1)
            print(plain.tolist())
            synchronize()
        """
    after = """
        import torch
        from lazyeng import lazy, synchronize, wrap
        x, plain = wrap(torch.ones(2)) + 1, torch.ones(1)
        """
    done = finished(start("".join(map(textwrap.dedent, (before, LATE[how], "\n", after)))))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["8.0", "[4.0,", "4.0]", "[2.0]"], done.stderr[-3000:]


def test_fork_from_a_thread_while_others_record():
    check("""
        import threading
        stop = False
        def work(x=wrap(torch.ones(50))):
            while not stop: x = (x + 1).clamp(-9, 9)
            x.wait()
        # A child of a fork within torch's first call of an operator hangs in that operator, in eager
        # too: a static variable of torch is being made. So the calls of the child are no first ones.
        assert (wrap(torch.ones(3)) + 1).clamp(-9, 9).sum().item() == 6.0
        threads = [threading.Thread(target=work) for _ in range(2)]
        for t in threads: t.start()
        codes = []
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                ok = (wrap(torch.ones(3)) + 1).sum().item() == 6.0
                os._exit(0 if ok else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop = True
        for t in threads: t.join()
        print(codes)
    """, "[0, 0, 0, 0, 0]")  # fmt: skip


def test_fork_while_others_leave_blocks_that_have_failed():
    """They push what makes their plain tensors forget it."""
    check("""
        import threading, contextlib
        stop = False
        def fails():
            while not stop:
                plain = [torch.zeros(3) for _ in range(20)]
                with contextlib.suppress(Exception), lazy("deferred"):
                    for p in plain: p.add_(torch.ones(3).gather(0, torch.tensor([5])).sum())
        threads = [threading.Thread(target=fails) for _ in range(2)]
        for t in threads: t.start()
        codes = set()
        for _ in range(150):
            pid = os.fork()
            if pid == 0:
                ok = (wrap(torch.ones(3)) + 1).sum().item() == 6.0
                os._exit(0 if ok else 1)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop = True
        for t in threads: t.join()
        synchronize()
        print(codes)
    """, "{0}")  # fmt: skip


def test_child_leaves_the_blocks_of_threads_that_it_has_not():
    """A plain tensor counts as failed until the block that failed to write it is left."""
    check("""
        import threading
        p, failed, go = torch.zeros(3), threading.Event(), threading.Event()
        def other():
            try:
                with lazy():
                    p.add_(torch.ones(3).gather(0, torch.tensor([5])).sum())
                    try: synchronize()
                    except RuntimeError: pass
                    failed.set(); go.wait()
            except RuntimeError: pass
        thread = threading.Thread(target=other)
        thread.start(); failed.wait()
        pid = os.fork()
        if pid == 0:
            with lazy(): print((p + 1).tolist()[0], flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        with lazy():
            try: print((p + 1).tolist())
            except RuntimeError: print("failed")
        go.set(); thread.join()
        with lazy(): print((p + 1).tolist()[0])
    """, "1.0 failed 1.0")  # fmt: skip


def test_ops_run_in_parallel_right_after_a_fork():
    """torch's own thread pool has to be made anew, and cannot be in two threads at once."""
    check("""
        torch.set_num_threads(3)
        def child():
            ones = [wrap(torch.ones(4)) * k for k in range(60)]
            return all(x.sum().item() == 4 * k for k, x in enumerate(ones))
        assert child()
        codes = []
        for _ in range(150):
            pid = os.fork()
            if pid == 0: os._exit(0 if child() else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(codes.count(0))
    """, "150", LAZYENG_NUM_WORKERS="8")  # fmt: skip


FORK_STORM = """
import threading, traceback
stop = threading.Event()
def chain():  # the direct way: operators and methods of lazy tensors
    x = wrap(torch.ones(50))
    while not stop.is_set(): x = (x + 1).clamp(-9, 9)
    x.wait()
def read():
    while not stop.is_set(): assert (wrap(torch.ones(3)) + 1).sum().item() == 6.0
def block():  # the dispatcher, plain tensors, generators, waits for plain writes
    plain = torch.zeros(20)
    while not stop.is_set():
        with lazy(): plain.add_(torch.randn(20)).mul_(0.5); torch.linalg.inv_ex(torch.eye(3))
def at_the_call():  # ops that run at the call, and autograd without the GIL
    while not stop.is_set():
        with lazy("sync"): torch.ones(5).nonzero()
        w = wrap(torch.ones(8, 8)).requires_grad_()
        (w @ w).relu().sum().backward()
        assert w.grad.sum().item() == 8 * 8 * 16
def child():
    x = wrap(torch.ones(3, requires_grad=True))
    (x * 2).sum().backward()
    with lazy(): y = torch.ones(4).add_(1); z = torch.rand(3) < 2
    return (x.grad.tolist(), y.sum().item(), z.all().item()) == ([2.0] * 3, 8.0, True)
# What torch sets up at the first call of an op or of backward() is not made for forks: a child made
# meanwhile would wait for it for ever, with eager tensors too.
stop.is_set = iter([False, True] * 4).__next__
for work in (chain, read, block, at_the_call): work()
child()
del stop.is_set
def exit_child():  # by any means: a thread that forked and merely returns leaves engine threads behind
    try: os._exit(0 if child() else 1)
    except BaseException: traceback.print_exc(); os._exit(2)
statuses = []
def fork_once():
    pid = os.fork()
    if pid == 0: exit_child()
    statuses.append(os.waitpid(pid, 0)[1])
threads = [threading.Thread(target=work) for work in (chain, read, block, at_the_call)]
for t in threads: t.start()
{forks}
stop.set()
for t in threads: t.join()
assert len(statuses) >= 10 and not any(statuses), statuses
print("end")
"""

FORKS = {
    "os.fork": "for _ in range(20): fork_once()",
    "two threads": """
def fork_often():
    for _ in range(10): fork_once()
forkers = [threading.Thread(target=fork_often) for _ in range(2)]
for t in forkers: t.start()
for t in forkers: t.join()
""",
    "subprocess": """
import subprocess
for _ in range(10):
    ended = subprocess.run(["true"], preexec_fn=lambda: child() or os._exit(1))
    statuses.append(ended.returncode)
""",
    "multiprocessing": """
import multiprocessing
def exit_well(): sys.exit(0 if child() else 1)
def start_children():
    for _ in range(10):
        process = multiprocessing.get_context("fork").Process(target=exit_well)
        process.start(); process.join()
        statuses.append(process.exitcode)
t = threading.Thread(target=start_children); t.start(); t.join()
""",
}


@pytest.mark.parametrize("how", FORKS)
def test_fork_storm(how):
    """Children of a process whose other threads record, read and run ops at the call all work."""
    check(FORK_STORM.replace("{forks}", FORKS[how]), "end", LAZYENG_MAX_PENDING_OPS="500")


def test_fork_waits_for_a_kernel_that_waits_for_a_recording_thread():
    """The gate opens again for the thread that holds the lock which the Python kernel wants."""
    check("""
        import threading
        lock, holds, go = threading.Lock(), threading.Event(), threading.Event()
        @torch.library.custom_op("lazyeng_fork::locks", mutates_args=())
        def locks(x: torch.Tensor) -> torch.Tensor:
            with lock: return x + 1
        locks.register_fake(lambda x: torch.empty_like(x))
        def work():
            global y
            with lock:
                holds.set()
                for _ in range(20000): y = torch.sigmoid(wrap(torch.ones(2)))
        t = threading.Thread(target=work); t.start(); holds.wait()
        x = locks(wrap(torch.ones(2)))
        pid = os.fork()
        if pid == 0: os._exit(0 if x.tolist() == [2.0, 2.0] else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), x.tolist())
        t.join()
    """, "0 [2.0, 2.0]")  # fmt: skip


def test_fork_from_within_an_op():
    """The op cannot be finished first: the child is told so instead of hanging."""
    check("""
        @torch.library.custom_op("lazyeng_fork::forks", mutates_args=())
        def forks(x: torch.Tensor) -> torch.Tensor:
            pid = os.fork()
            if pid == 0:
                try: (wrap(torch.ones(2)) + 1).item()
                except RuntimeError as error: os._exit(7 * ("forked from within" in str(error)))
                os._exit(1)
            return x + os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        forks.register_fake(lambda x: torch.empty_like(x))
        x = wrap(torch.ones(2))
        print(forks(x).tolist())
        with lazy("sync"): print(forks(x).tolist())
    """, "[8.0, 8.0] [8.0, 8.0]")  # fmt: skip


HOOKED = """
import faulthandler, os, signal
faulthandler.enable()
import torch
x = None

def say(*words):  # in one piece: the child speaks at the same time
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def hook():
    if x is None: return
    {what}
    say({kind!r}, x.mean().item(), (x * 2).sum().item())

def fork():
    pid = os.fork()
    if pid == 0: os._exit(3)
    say("inner", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

forks = [fork]
os.register_at_fork(**{{{kind!r}: hook}})  # before lazyeng does: it runs while the engine stands
signal.signal(signal.SIGUSR1, lambda *_: say("handler", (x + x).sum().item()))
import lazyeng
with lazyeng.lazy({mode!r}):
    x = torch.ones(100, 100) @ torch.ones(100, 100)
    before = (x - 99)
    pid = os.fork()
    if pid == 0:
        say("child", before.sum().item(), (torch.ones(9, 9) @ torch.ones(9, 9)).sum().item())
        os._exit(0)
    say("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    say("parent", before.sum().item(), (torch.ones(9, 9) @ torch.ones(9, 9)).sum().item())
"""


def hooked(**words):
    return finished(start(HOOKED.format(**words), TORCH_DEVICE_BACKEND_AUTOLOAD="0"))


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("kind", ["before", "after_in_parent", "after_in_child"])
def test_hooks_of_a_fork_read(kind, mode):
    done = hooked(kind=kind, mode=mode, what="")
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.splitlines()) == sorted([
        f"{kind} 100.0 2000000.0", "child 10000.0 729.0", "parent 10000.0 729.0", "status 0",
    ]), done.stderr[-3000:]  # fmt: skip


HOOK_BESIDE_A_FAILED_BLOCK = """
import os, threading
work = []
os.register_at_fork(after_in_child=lambda: print("hook", [each() for each in work], flush=True))
import torch, lazyeng
x, p = lazyeng.wrap(torch.arange(4.0)), torch.zeros(4)
failed, over = threading.Event(), threading.Event()

def other():
    try:
        with lazyeng.lazy():
            p.copy_(torch.linalg.inv(torch.zeros(2, 2)).flatten())
            failed.set()
            over.wait()
    except RuntimeError:
        print("told")

thread = threading.Thread(target=other)
thread.start()
failed.wait()
try: lazyeng.synchronize()
except RuntimeError: pass
work.append(lambda: torch.nonzero(x * 2).flatten().tolist())  # runs at the call
pid = os.fork()
if pid == 0: os._exit(0)
print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
over.set()
thread.join()
"""


def test_a_hook_of_a_fork_runs_an_op_while_the_block_of_another_thread_has_failed():
    done = finished(start(HOOK_BESIDE_A_FAILED_BLOCK, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))
    assert done.stdout.splitlines() == ["hook [[1, 2, 3]]", "status 0", "told"], done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["before", "after_in_parent", "after_in_child"])
def test_handlers_of_signals_read_within_a_fork(kind):
    what = "signal.raise_signal(signal.SIGUSR1)"
    done = hooked(kind=kind, mode="async", what=what)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "handler 2000000.0" in done.stdout and "parent 10000.0 729.0" in done.stdout
    assert "child 10000.0 729.0" in done.stdout and "status 0" in done.stdout, done.stderr[-3000:]


def test_a_hook_of_a_fork_forks():
    done = hooked(kind="before", mode="async", what="forks and forks.pop()()")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "inner 3" in done.stdout and "child 10000.0 729.0" in done.stdout
    assert "parent 10000.0 729.0" in done.stdout and "status 0" in done.stdout


INTERRUPTED = """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
began, release = threading.Event(), threading.Event()
@torch.library.custom_op("lazyeng_sigint::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    began.set()
    {kernel}
    return x + 1
slow.register_fake(lambda x: torch.empty_like(x))
x = slow(wrap(torch.ones(1)))
y = x * 2
assert not x.is_ready() and began.wait(40)
"""
SAYS_WHEN_IT_ENDS = """
import atexit
atexit.register(lambda: print("waiting", flush=True))
"""
WAITS = "while not release.is_set(): time.sleep(0.01)"


def interrupted(kernel, script):
    """Ctrl-C half a second after the script says that it waits for the kernel."""
    process = start(PRELUDE + INTERRUPTED.format(kernel=kernel) + textwrap.dedent(script))
    assert process.stdout.readline() == "waiting\n", finished(process).stderr
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    return finished(process)


def test_ctrl_c_while_a_fork_waits():
    """It is raised in the parent, which goes on; its child has no engine, and says so."""
    done = interrupted(WAITS, """
        print("waiting", flush=True)
        pid = None
        try:
            pid = os.fork()
            if pid == 0:
                try: (wrap(torch.ones(2)) + 1).item()
                except RuntimeError as error: print(f"child {'has no engine' in str(error)}")
                sys.stdout.flush()
                os._exit(0)
            said = "not interrupted"
        except KeyboardInterrupt:
            said = f"interrupted {x.is_ready()}"
        os.wait()
        print(said)
        release.set()
        print(y.item(), (wrap(torch.ones(3)) + 1).sum().item(), flush=True)
        if os.fork() == 0:
            print("child", (wrap(torch.ones(3)) + 1).sum().item(), flush=True)
            os._exit(0)
        os.wait()
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "child True", "interrupted False", "4.0 6.0", "child 6.0",
    ], done.stderr  # fmt: skip
    assert "ignored" not in done.stderr


def test_ctrl_c_at_the_end_of_a_program():
    """What is pending is left, with a word about it, and a kernel in Python is interrupted."""
    done = interrupted(WAITS, SAYS_WHEN_IT_ENDS)
    assert done.returncode == 0, done.stderr
    assert "KeyboardInterrupt while the program waited, at its end" in done.stderr
    assert "terminate" not in done.stderr and "Fatal" not in done.stderr, done.stderr


def test_ctrl_c_at_the_end_of_a_program_whose_kernel_sleeps():
    """It does not notice, so the process ends as if by Ctrl-C."""
    done = interrupted("time.sleep(300)", SAYS_WHEN_IT_ENDS)
    assert done.returncode == -signal.SIGINT, (done.returncode, done.stderr)
    assert "KeyboardInterrupt while the program waited, at its end" in done.stderr
    assert "terminate" not in done.stderr and "Fatal" not in done.stderr, done.stderr


def test_exit_with_pending_work(lazy_mode):
    done = check(f"""
        with lazy("{lazy_mode}"):
            x = wrap(torch.ones(300, 300))
            for _ in range(300): x = x @ torch.eye(300)
        print("end")
    """, "end", own=True)  # fmt: skip
    assert done.stderr == ""


def test_exit_with_pending_python_kernel():
    """A kernel that needs the GIL while the interpreter shuts down."""
    check("""
        @torch.library.custom_op("lazyeng_exit::slow", mutates_args=())
        def slow(x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.05)
            return x + 1
        slow.register_fake(lambda x: torch.empty_like(x))
        xs = [slow(wrap(torch.ones(2))) for _ in range(10)]
        print("end")
    """, "end", own=True)  # fmt: skip


def test_exit_status_is_kept():
    done = run("x = wrap(torch.ones(3)) + 1\nsys.exit(3)", own=True)
    assert (done.returncode, done.stderr) == (3, "")


def test_exit_from_a_block_and_from_a_thread():
    check("""
        import threading
        def work():
            with lazy("deferred"):
                global kept
                kept = torch.ones(100) + 1
        t = threading.Thread(target=work); t.start(); t.join()
        lazy("deferred").__enter__()
        y = torch.ones(3) + 1
        print("end")
    """, "end", own=True)  # fmt: skip


def test_handlers_of_signals_that_read(lazy_mode):
    """While the program waits, as a guest of the engine: the handler runs, and leaves, the
    program's own modes."""
    check(f"""
        import signal
        w, b, x = torch.nn.Parameter(torch.zeros(8)), torch.rand(1500, 1500), torch.rand(8)
        seen = []
        def handler(*_):
            with torch.no_grad():
                for _ in range(3): (x * 2).cumsum(0).sin().sum().item()
            seen.append((torch.is_grad_enabled(), type(x + 1).__name__))
        signal.signal(signal.SIGALRM, handler)
        with lazy({lazy_mode!r}):
            z = b
            for _ in range(12): z = (z @ b) / 1000
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            z.sum().item()
            print(seen, torch.is_grad_enabled(), (w * 2).requires_grad, type(x + 1).__name__)
        print(torch.is_grad_enabled())
    """, "[(True, 'LazyTensor')] True True LazyTensor\nTrue")  # fmt: skip


def test_ctrl_c_during_a_wait():
    """KeyboardInterrupt at once, and the engine stays usable."""
    script = PRELUDE + textwrap.dedent("""
        import signal
        from tests.support.gate import Gate
        # A shell starts background jobs with SIGINT ignored, and Python keeps that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gate = Gate()
        for wait in (lambda: x.item(), synchronize, lambda: x.wait(), lambda: lazyeng.unwrap(x)):
            gate.close()
            x = gate(wrap(torch.ones(1)))
            assert not x.is_ready(), "the op ran at the call: there is nothing to wait for"
            print("waiting", flush=True)
            try:
                wait()
                said = "not interrupted"
            except KeyboardInterrupt:
                said = f"interrupted {not x.is_ready()}"
            gate.open()
            print(said, (wrap(torch.ones(3)) + 1).sum().item(), x.item(), flush=True)
    """)
    process = start(script)
    for _ in range(4):
        assert process.stdout.readline() == "waiting\n", finished(process).stderr
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted True 6.0 1.0\n", finished(process).stderr
    done = finished(process)
    assert done.returncode == 0, done.stderr


LOADER = """
class Data(torch.utils.data.Dataset):
    def __init__(self): self.x = wrap(torch.arange(8.0)) * 2
    def __len__(self): return 8
    def __getitem__(self, i): return (self.x[i] + 1){end}
if __name__ == "__main__":
    data = Data()
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2,
                                         multiprocessing_context="{start}")
    rows = sorted(v for batch in loader for v in batch.tolist())
    print(rows == [1.0 + 2 * i for i in range(8)])
"""


@pytest.mark.parametrize("end", ["", ".item()"])
def test_data_loader_workers_fork(end):
    """The dataset holds a pending tensor and computes with it in the forked workers."""
    check(LOADER.format(end=end, start="fork").replace("\n", "\n        "), "True")


def test_data_loader_workers_spawn(tmp_path):
    file = tmp_path / "loader.py"
    file.write_text(PRELUDE + LOADER.format(end="", start="spawn"))
    # A script finds modules beside itself, not in the working directory.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120, env=env
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_failure_in_a_data_loader_worker():
    check("""
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 2
            def __getitem__(self, i): return wrap(torch.ones(3))[wrap(torch.tensor([7]))].item()
        try:
            list(torch.utils.data.DataLoader(Data(), num_workers=1))
        except IndexError as error:
            print("IndexError", "index 7 is out of bounds" in str(error))
    """, "IndexError True")  # fmt: skip


def test_import_starts_no_python_thread():
    """Importing must be cheap and safe in programs that fork later (web servers, test runners)."""
    check("""
        import threading
        print(threading.active_count())
    """, "1", own=True)  # fmt: skip


def test_a_program_with_a_subinterpreter():
    """CPython then says of every thread that it holds the GIL, if it is asked in the usual way."""
    check("""
        try: import _interpreters as interpreters
        except ImportError: import _xxsubinterpreters as interpreters
        interpreters.destroy(interpreters.create())
        x = wrap(torch.eye(3))
        print(len(torch.nonzero(x)), (x + 1).sum().item())
        with lazy("sync"): print((x * 2).sum().item())
        with lazy("deferred"): y = torch.ones(300, 300) @ torch.ones(300, 300)
        print(y[0, 0].item(), x.max().item())
    """, "3 12.0 6.0 300.0 1.0", own=True)  # fmt: skip


def test_daemon_threads_that_wait_at_exit():
    """The interpreter ends them where they come back from a wait, and nothing of ours may mind. (They
    let go of no tensor: torch's own code for that aborts the process there, also in eager.)"""
    check("""
        import threading
        def waits():
            while True: lazyeng.synchronize()
        for _ in range(8): threading.Thread(target=waits, daemon=True).start()
        time.sleep(0.2)
        print("end")
    """, "end", own=True)  # fmt: skip


def test_daemon_threads_with_open_blocks_at_exit(mode):
    """What they record once the engine's threads have ended runs at the call. (Python may abort as
    it ends a thread within torch, also in eager.)"""
    done = run(
        f"""
        import threading, time
        def loop():
            with lazy("{mode}"):
                x = torch.ones(64, 64)
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    x = (x @ x).tanh()
                    time.sleep(0.0005)
        threading.Thread(target=loop, daemon=True).start()
        time.sleep(0.5)
        print("end", flush=True)
        """,
        own=True,
    )
    assert done.stdout == "end\n" and "hangs" not in done.stderr
    assert done.returncode in (0, -signal.SIGABRT)
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr
