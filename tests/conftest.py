"""Shared by all tests: a time limit for each, and no work left over from one test to the next."""

import contextlib
import faulthandler
import gc
import os
import signal
import warnings

import pytest
import torch

import lazyeng
from lazyeng import _C

# What tests share checks, too, and tells by the same words what it has found.
pytest.register_assert_rewrite("tests.support", "tests.fuse.compiling", "tests.fuse.replay")

# Seconds. The engine waits; a wait that never ends must show where, instead of blocking the run.
DEFAULT_LIMIT = 180


# Ops that join groups if they give eager's bits are tried at once: tests are short.
_C.set_ops_before_trials(0)
# One process runs thousands of tests: the first few would take the time that trials may take.
_C.set_trials_bounded(False)


# What a shell runs in the background ignores Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def limit(request):
    """`@pytest.mark.limit(seconds)` sets another limit. When it is over, all stacks are printed and
    the whole run ends: a thread that hangs in C++ cannot be interrupted."""
    marker = request.node.get_closest_marker("limit")
    seconds = marker.args[0] if marker else DEFAULT_LIMIT
    seconds *= float(os.environ.get("LAZYENG_TEST_SLOWNESS", "1"))  # sanitizers, busy machines
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    yield
    faulthandler.cancel_dump_traceback_later()


# pytest replaces sys.stderr by one without a file descriptor; this copy of it stays.
_STDERR = os.fdopen(os.dup(2), "w")


@pytest.fixture(autouse=True)
def clean():
    """The same seed for each test, and every failure reported before the next one begins."""
    torch.manual_seed(0)
    yield
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazyeng.synchronize()


def _our_variables():
    return {name: value for name, value in os.environ.items() if name.startswith("LAZYENG_")}


@pytest.fixture(autouse=True)
def environment():
    """No test leaves variables to the next, whose programs would run with them."""
    before = _our_variables()
    yield
    assert _our_variables() == before


@pytest.fixture
def no_gc():
    """What dies in the test dies by its reference count: there is no cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["async", "deferred", "sync"])
def mode(request):
    return request.param


@pytest.fixture(params=["async", "deferred"])
def lazy_mode(request):
    """The modes in which a failure comes later than its call."""
    return request.param


def pytest_configure(config):
    config.addinivalue_line("markers", "limit(seconds): time limit of this test")


@pytest.fixture
def groups():
    """Counts the groups that ran since it was asked last."""
    before = 0

    def count():
        nonlocal before
        now = lazyeng.engine_stats()["groups"]
        before, new = now, now - before
        return new

    count()
    return count


@pytest.fixture
def inexact():
    """All that can be fused is, as with LAZYENG_FUSION=on."""
    _C.set_inexact_fusion(True)
    yield
    _C.set_inexact_fusion(False)


@pytest.fixture
def unfused():
    _C.set_fusion(False)
    yield
    _C.set_fusion(True)
