"""Ops of some size in programs that read soon run on the program's thread (record/at_once.h, as
guests), with eager's bits, whatever cores they have."""

import contextlib
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import lazy, wrap
from tests.support.processes import printed_by
from tests.support.threads import threads_of_torch

SIZES = (8, 32, 64, 97, 250)  # in 1,024 elements
READS = 5


@pytest.fixture(autouse=True)
def two_threads():
    with threads_of_torch(2):
        yield


def bits(tensor):
    return lazyeng.unwrap(tensor).contiguous().reshape(-1).view(torch.uint8)


def programs(draw):
    """By name, each with its arguments."""
    rows = draw.choice(SIZES)
    x, y, narrow = torch.randn(rows, 1024), torch.rand(rows, 1024), torch.randn(1024, 48)
    index = torch.randint(rows, (rows, 1024))
    images, layer = torch.randn(rows // 4, 3, 16, 16), torch.randn(8, 3, 3, 3)
    yield "exp", torch.exp, x
    yield "sum", torch.sum, x
    yield "mean of rows", lambda x: x.mean(1), x
    yield "sum of columns", lambda x: x.sum(0), x
    yield "sum of bfloat16", lambda x: x.bfloat16().sum(), x
    yield "softmax", lambda x: x.softmax(-1), x
    yield "layer_norm", lambda x: F.layer_norm(x, (1024,)), x
    yield "gelu", F.gelu, x
    yield "argmax", lambda x: x.argmax(1), x
    yield "sort", lambda x: x.sort().indices, x
    yield "cumsum", lambda x: x.cumsum(1), x
    yield "gather", lambda x, index: x.gather(0, index), x, index
    yield "where", lambda x, y: torch.where(x > 0, x, y), x, y
    yield "cat", lambda x, y: torch.cat([x, y]), x, y
    yield "clone", torch.clone, x
    yield "in place", lambda x, y: x.clone().mul_(y).add_(x), x, y
    yield "mm", torch.mm, x, narrow
    yield "mm of bfloat16", lambda x, w: x.bfloat16() @ w.bfloat16(), x, narrow
    yield "linear", lambda x, w: F.linear(x, w.t()), x, narrow
    yield "conv2d", F.conv2d, images, layer
    yield "max_pool2d", lambda images: F.max_pool2d(images, 2), images
    yield "squared error", lambda x, y: (x - y).square().mean(), x, y
    yield "chain", lambda x, y: ((x * 2 + y).relu() - x) * y, x, y
    yield "gate", lambda x, y: (x * y + x).sigmoid(), x, y
    yield "views", lambda x: (x[1:, ::2] * 2).t(), x


@pytest.mark.parametrize("way", ["async", "deferred", "wrap"])
@pytest.mark.parametrize("seed", range(6))
def test_bits_are_those_of_eager(seed, way):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    calls = {name: (function, arguments) for name, function, *arguments in programs(draw)}
    expected = {name: bits(function(*arguments)) for name, (function, arguments) in calls.items()}
    block = contextlib.nullcontext() if way == "wrap" else lazy(way)
    given = wrap if way == "wrap" else lambda x: x
    calls = {
        name: (function, [given(argument) for argument in arguments])
        for name, (function, arguments) in calls.items()
    }
    with block:
        for _ in range(40):  # few programs, again and again, or many
            names = draw.sample(list(calls), draw.choice((1, 1, 2, 3, 12)))
            for _ in range(READS):
                made = {name: calls[name][0](*calls[name][1]) for name in names}
                for name, result in made.items():
                    assert torch.equal(bits(result), expected[name]), name


def read_often(x):
    for _ in range(READS):
        x.exp()[0, 0].item()


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_kernels_that_ask_for_the_grad_mode_have_that_of_the_caller(grad_mode):
    """oneDNN's recurrent layers have other last bits where nothing is kept for a gradient."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 8, batch_first=True)
    for _ in range(8):
        x = torch.rand(1, 4, 4)
        with grad_mode():
            expected = layer(x)[0].tolist()
            with lazy():
                assert layer(x)[0].tolist() == expected


def test_what_is_soon_done_is_done_at_the_call():
    x = torch.rand(64, 1024)
    with lazy("async"):
        read_often(x)
        y = x.exp()
        assert y.is_ready()


@pytest.mark.limit(60)
def test_what_ops_take_that_are_in_no_table_is_learned(tmp_path):
    """(A busy machine may make them look long for a while.)"""
    path = tmp_path / "trace.json"

    def threads(x):
        with lazyeng.profile(str(path)):
            x.cummax(1).values[0, 0].item()
        events = json.loads(path.read_text())["traceEvents"]
        runs = [e for e in events if e.get("cat") == "run" and e["name"] == "aten::cummax"]
        here = [e for e in events if e.get("cat") == "record" and e["name"] == "aten::cummax"]
        return [e["tid"] for e in runs], [e["tid"] for e in here]

    x = torch.rand(64, 1024)
    with lazy("async"):
        read_often(x)
        run = here = None
        while not run or run != here:
            x.cummax(1).values[0, 0].item()
            run, here = threads(x)


LONG_READS = 10


def thread_of_products(path, between):
    """Where the last of some products ran that take milliseconds: "here" or "there"."""
    x = torch.rand(512, 512)
    with lazy("async"):
        for _ in range(LONG_READS):
            y = x @ x
            between()
            y[0, 0].item()
        with lazyeng.profile(str(path)):
            y = x @ x
            between()
            y[0, 0].item()
    events = json.loads(path.read_text())["traceEvents"]
    ran, recorded = (
        {e["tid"] for e in events if e.get("cat") == what and e["name"] == "aten::mm"}
        for what in ("run", "record")
    )
    assert ran and recorded
    return "here" if ran == recorded else "there"


IN_GROUPS = """
import json, os, torch, lazyeng
x, labels, path = torch.randn(4, 65536), torch.arange(4), os.environ["TRACE"]
def read():
    return torch.nn.functional.cross_entropy(x * 0.5 + 0.1, labels).item()
def threads(what):
    return {e["tid"] for e in json.load(open(path))["traceEvents"] if e.get("cat") == what}
with lazyeng.lazy("async"):
    for _ in range(20):  # (on a busy machine a worker may be there first)
        for _ in range(20): read()
        with lazyeng.profile(path): read()
        if threads("group") == threads("record"):
            print("here")
            break
"""


def test_what_only_runs_in_groups_takes_no_longer_than_they_do(tmp_path):
    """`nll_loss` is in no table of costs, and never runs by itself there."""
    path = tmp_path / "trace.json"
    assert printed_by(IN_GROUPS, LAZYENG_FUSION="on", TRACE=str(path)) == "here\n"


def until(condition):
    """(A busy machine may make the time between a call and its read look long for a while.)"""
    while not condition():
        pass


@pytest.mark.limit(60)
def test_a_program_that_has_nothing_else_to_do_runs_what_takes_milliseconds(tmp_path):
    path = tmp_path / "trace.json"
    until(lambda: thread_of_products(path, lambda: None) == "here")


@pytest.mark.limit(60)
def test_what_takes_milliseconds_runs_while_the_program_does_something_else(tmp_path):
    path = tmp_path / "trace.json"
    until(lambda: thread_of_products(path, lambda: None) == "here")
    assert thread_of_products(path, lambda: time.sleep(0.002)) == "there"


@pytest.mark.limit(60)
def test_threads_hand_over_what_takes_milliseconds(tmp_path):
    """All cores for each of several threads would be too many; a worker takes one after another."""
    path, over = tmp_path / "trace.json", threading.Event()

    def other():
        x = torch.rand(512, 512)
        while not over.is_set():
            with lazy("async"):
                (x @ x)[0, 0].item()

    def all_there():
        return all(thread_of_products(path, lambda: None) == "there" for _ in range(10))

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(other)
        try:
            until(all_there)
        finally:
            over.set()
        done.result()


def test_what_takes_long_is_not_done_at_the_call():
    x = torch.rand(2048, 2048)
    recorded = lazyeng.engine_stats()["recorded"]
    with lazy("deferred"):  # (in async a worker may be faster than the question)
        for _ in range(READS):
            (x @ x).sum().item()
        y = x @ x
        assert not y.is_ready()
    assert lazyeng.engine_stats()["recorded"] > recorded


def test_what_fails_at_the_call_fails_where_it_is_read():
    x, index = torch.rand(64, 1024), torch.full((64, 1024), 64)
    with lazy("async"):
        for _ in range(READS):
            x.gather(0, index - 1).sum().item()
        y = x.gather(0, index) + 1
        with pytest.raises(RuntimeError, match="index 64 is out of bounds") as caught:
            y.sum().item()
    assert caught.value.op == "aten.gather"


def test_threads_that_read_side_by_side():
    x, w = torch.rand(64, 1024), torch.rand(1024, 64)
    expected = [x.exp().sum().item(), (x @ w).amax().item(), x.argmax(1).sum().item()]

    def reads(_):
        with lazy("async"):
            for _ in range(60):
                found = [x.exp().sum().item(), (x @ w).amax().item(), x.argmax(1).sum().item()]
                assert found == expected
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(reads, range(6)))


@pytest.mark.limit(120)
def test_forks_while_a_thread_reads():
    """The child has no team of OpenMP, and nobody holds a lock there."""
    assert printed_by(
        """
import os, threading, torch, lazyeng
torch.set_num_threads(2)
x, w, over = torch.rand(64, 1024), torch.rand(1024, 64), threading.Event()
def read():
    with lazyeng.lazy():
        return x.exp().sum().item(), (x @ w).amax().item()
def reads():
    while not over.is_set(): read()
expected = read()
thread = threading.Thread(target=reads)
thread.start()
for _ in range(20):
    for _ in range(4): read()
    pid = os.fork()
    if pid == 0:
        found = [read() for _ in range(6)]
        os._exit(0 if found == [expected] * 6 else 1)
    assert os.waitpid(pid, 0)[1] == 0
over.set()
thread.join()
print("done")
""",
        "-W", "ignore::DeprecationWarning", timeout=100,
    ) == "done\n"  # fmt: skip


def test_the_number_of_threads_may_change_in_between():
    x, w = torch.randn(64, 1024), torch.randn(1024, 64)
    for threads in (1, 2, 3, 1, 2):
        with threads_of_torch(threads):
            expected = bits(x @ w), bits(x.sum()), bits(x.softmax(1))
            with lazy("async"):
                for _ in range(8):
                    found = bits(x @ w), bits(x.sum()), bits(x.softmax(1))
                    assert all(map(torch.equal, found, expected)), threads


FIRST_LOOKUPS = """
import os, time, torch, lazyeng

def threads_of_program():
    own, names = open("/proc/self/comm").read(), []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm").read())
        except FileNotFoundError:  # (ended meanwhile)
            pass
    return names.count(own)

torch.set_num_threads(2)
table, rows, square = torch.randn(1000, 128), torch.arange(256), torch.randn(1000, 1000)
more = []
with lazyeng.lazy():
    for _ in range(8):
        for _ in range(10):
            product = square @ square
        lazyeng.synchronize()  # a thread that waits for long has no team
        time.sleep(0.1)
        for _ in range(3):
            (table[0] + 1).sum().item()
        before = threads_of_program()
        looked_up = table.index_select(0, rows)
        more.append(threads_of_program() - before)
print(max(more) <= 0, more)
"""


def test_a_thread_without_helpers_gets_none_for_one_op():
    """Helpers cost more than a lookup where steps begin with one, and the worker does the rest."""
    assert printed_by(FIRST_LOOKUPS).startswith("True")
