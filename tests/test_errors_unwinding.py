"""Frames of torch around a read: hidden in all functions of torch, by a hook that does not stay."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import traceback
import weakref

import pytest
import torch
import torch.nn.utils.parametrize
import torch.utils._pytree as pytree
import torch.utils.checkpoint

import lazyeng
from lazyeng import _C, LazyError, lazy, synchronize, wrap
from tests.support.failures import failed
from tests.support.processes import alone

TORCH = os.path.dirname(torch.__file__) + os.sep
OWN = os.path.dirname(lazyeng.__file__) + os.sep


def read():
    return failed().item()


class Reading(torch.nn.Module):
    def forward(self, x):
        return read()


@pytest.fixture(autouse=True)
def no_hook_stays():
    yield
    assert hook_is_gone()


def hook_is_gone():
    if sys.version_info >= (3, 12):
        assert "lazyeng" not in [sys.monitoring.get_tool(tool) for tool in range(6)]
    return sys.gettrace() is None and not _C.unwind_hook_is_armed()


def lines_that_torch_adds():
    """Internal entries that an exception of the user's own gets, as nothing hides them."""

    def fails(x):
        raise ValueError("the user's own")

    module = torch.nn.Module()
    module.forward = fails
    with pytest.raises(ValueError, match="the user's own") as caught:
        module(torch.ones(1))
    return len(internal(caught.value.__traceback__))


def entries(tb):
    return traceback.extract_tb(tb)


def names(tb):
    return [entry.name for entry in entries(tb)]


def internal(tb):
    return [entry for entry in entries(tb) if entry.filename.startswith((TORCH, OWN))]


def names_caught(function):
    """Names of the entries between this function and `read`."""
    try:
        function()
    except LazyError as error:
        assert not internal(error.__traceback__)
        assert not internal(sys.exc_info()[2])
        assert TORCH not in "".join(traceback.format_tb(error.__traceback__))
        return names(error.__traceback__)[1:]
    pytest.fail("nothing was raised")


# ---- functions of torch


def by_compiled():
    def traced(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * read()

    torch.compile(traced, backend="eager")(torch.ones(1))


def by_distribution():
    # (asked for, as torch.compile sets the default to False)
    torch.distributions.Normal(torch.zeros(1), failed(), validate_args=True)


def by_generator():
    @torch.no_grad()
    def batches():
        yield torch.ones(1)
        yield read()

    list(batches())


def by_func_grad():
    held = failed()
    torch.func.grad(lambda x: x * held.item())(torch.ones(()))


def by_vmap():
    held = failed()
    torch.vmap(lambda x: x * held.item())(torch.ones(2))


def by_hook():
    module = torch.nn.Linear(1, 1)
    module.register_forward_pre_hook(lambda *_: read())
    torch.nn.Sequential(module)(torch.ones(1, 1))


def by_parametrization():
    class Parametrization(torch.nn.Module):
        def forward(self, weight):
            return weight * read()

    module = torch.nn.Linear(1, 1)
    torch.nn.utils.parametrize.register_parametrization(
        module, "weight", Parametrization(), unsafe=True
    )
    module(torch.ones(1, 1))


def by_pytree():
    pytree.tree_map(lambda x: x * read(), {"a": [1]})


def by_autocast():
    @torch.autocast("cpu")
    def cast():
        return read()

    cast()


def by_backward_of_function():
    held = failed()

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * held.item()

    Function.apply(torch.ones(1, requires_grad=True)).backward()


def by_lambda_schedule():
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: read())


def by_collate():
    list(torch.utils.data.DataLoader([1], collate_fn=lambda batch: read()))


def by_gradcheck():
    torch.autograd.gradcheck(
        lambda x: x * read(), torch.ones(1, requires_grad=True, dtype=torch.double)
    )


def by_checkpointed_module():
    def run(x):
        return Reading()(x)

    torch.utils.checkpoint.checkpoint_sequential(
        [run, run], 2, torch.ones(1, requires_grad=True), use_reentrant=True
    )


# Names of the user's functions down to the one that reads; of "compile", dynamo says what they are.
THROUGH = {
    "compile": (by_compiled, None),
    "distributions": (by_distribution, ["by_distribution"]),
    "generator": (by_generator, ["by_generator", "batches", "read"]),
    "func.grad": (by_func_grad, ["by_func_grad", "<lambda>"]),
    "vmap": (by_vmap, ["by_vmap", "<lambda>"]),
    "hook": (by_hook, ["by_hook", "<lambda>", "read"]),
    "parametrize": (by_parametrization, ["by_parametrization", "forward", "read"]),
    "pytree": (by_pytree, ["by_pytree", "<lambda>", "read"]),
    "autocast": (by_autocast, ["by_autocast", "cast", "read"]),
    "backward": (by_backward_of_function, ["by_backward_of_function", "backward"]),
    "scheduler": (by_lambda_schedule, ["by_lambda_schedule", "<lambda>", "read"]),
    "collate": (by_collate, ["by_collate", "<lambda>", "read"]),
    "gradcheck": (by_gradcheck, ["by_gradcheck", "<lambda>", "read"]),
    "checkpoint": (by_checkpointed_module, ["by_checkpointed_module", "run", "forward", "read"]),
}


@pytest.mark.parametrize("name", THROUGH)
def test_functions_of_torch_leave_no_frame(name):
    function, expected = THROUGH[name]
    found = names_caught(function)
    assert found == expected or (expected is None and found[-1] == "read")


def test_all_frames_if_asked(monkeypatch):
    monkeypatch.setenv("LAZYENG_TRACEBACK", "full")
    with pytest.raises(LazyError) as caught:
        by_pytree()
    assert internal(caught.value.__traceback__)


def test_group_of_failures():
    class Synchronizing(torch.nn.Module):
        def forward(self, held):
            synchronize()

    held = [failed(), failed()]
    with pytest.raises(ExceptionGroup) as caught:
        pytree.tree_map(Synchronizing(), [held[0]])
    assert not internal(caught.value.__traceback__)


@torch.library.custom_op("lazyeng_unwinding::interrupted", mutates_args=())
def interrupted(x: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


interrupted.register_fake(torch.empty_like)


def test_keyboard_interrupt_of_a_kernel():
    with lazy("deferred"):
        x = interrupted(wrap(torch.ones(1)))
    with pytest.raises(KeyboardInterrupt) as caught:
        pytree.tree_map(lambda _: x.item(), [1])
    assert caught.value.op
    assert not internal(caught.value.__traceback__)


def test_what_torch_makes_of_a_failure_in_a_worker():
    class Failing(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, i):
            return read()

    with pytest.raises(LazyError) as caught:
        list(torch.utils.data.DataLoader(Failing(), num_workers=1))
    assert not internal(caught.value.__traceback__)


def test_other_exceptions_keep_their_frames():
    assert lines_that_torch_adds() == 2
    error = kept_by_torch()[0]
    assert lines_that_torch_adds() == 2
    del error


# ---- who shows it


@pytest.mark.parametrize(
    "ending", ["by()", "sys.excepthook = show; by()", "threading.Thread(target=by).start()"]
)
def test_uncaught(ending):
    script = f"""
        import sys, threading, torch, lazyeng
        from torch.utils._pytree import tree_map

        def show(cls, error, tb):
            import traceback
            traceback.print_exception(cls, error, tb)

        def reads(x):
            return x.item()

        def by():
            tree_map(reads, [lazyeng.wrap(torch.ones(1)).take(lazyeng.wrap(torch.tensor([7])))])

        {ending}
    """
    done = alone(script)
    assert ", in by" in done.stderr and ", in reads" in done.stderr
    assert TORCH not in done.stderr and OWN not in done.stderr
    assert done.stderr.rstrip().endswith(":13") and "IndexError" in done.stderr


def test_logging_and_context_managers(caplog):
    @contextlib.contextmanager
    def logged():
        try:
            yield
        except LazyError:
            logging.exception("failed")
            raise

    with pytest.raises(LazyError) as caught, logged():
        pytree.tree_map(lambda _: read(), [1])
    assert "in read" in caplog.text and TORCH not in caplog.text
    assert not internal(caught.value.__traceback__)


# ---- handled and raised again


def through_torch(function, *args):
    return pytree.tree_map(lambda _: function(*args), [1])


def raises_again(explicitly):
    try:
        read()
    except LazyError as error:
        with contextlib.suppress(ValueError):  # another is raised and handled meanwhile
            int("x")
        assert not internal(error.__traceback__)
        if explicitly:
            raise error
        raise
    finally:
        with contextlib.suppress(KeyError):
            {}["x"]


@pytest.mark.parametrize("explicitly", [False, True])
def test_user_between_frames_of_torch_raises_again(explicitly):
    found = names_caught(lambda: through_torch(through_torch, raises_again, explicitly))
    again = ["raises_again"] * (1 + explicitly)
    assert found == ["<lambda>", *["through_torch", "<lambda>"] * 2, *again, "read"]


def swallows():
    try:
        return through_torch(read)
    except LazyError:
        return None


def test_handled_below_frames_of_torch_ends_the_hook():
    through_torch(lambda: (swallows(), still_gone()))


def still_gone():
    assert hook_is_gone()


kept = []


def keeps():
    try:
        through_torch(read)
    except LazyError as error:
        kept.append(error)


def kept_by_torch():
    through_torch(keeps)
    return [kept.pop()]


def test_kept_exception_ends_the_hook_at_the_next_one():
    def keeps_and_goes_on():
        keeps()
        assert not internal(kept[0].__traceback__)
        assert lines_that_torch_adds() == 2
        assert hook_is_gone()

    through_torch(keeps_and_goes_on)
    kept.clear()


def test_hook_is_there_until_the_outermost_frame_of_torch_is_left():
    armed = []

    def reads_and_raises_again():
        assert not _C.unwind_hook_is_armed()
        try:
            read()
        finally:
            armed.append(_C.unwind_hook_is_armed())

    try:
        through_torch(reads_and_raises_again)
    except LazyError:
        armed.append(_C.unwind_hook_is_armed())
    assert armed == [True, False]


def test_read_in_a_handler_of_another():
    def inner():
        try:
            read()
        except LazyError:
            through_torch(read)

    with pytest.raises(LazyError) as caught:
        through_torch(inner)
    assert not internal(caught.value.__traceback__)
    assert not internal(caught.value.__context__.__traceback__)


def test_destructor_that_handles_an_exception_on_the_way():
    class Noisy:
        def __del__(self):
            with contextlib.suppress(ValueError):
                int("x")

    def noisy():
        held = Noisy()
        through_torch(read)
        return held

    found = names_caught(lambda: through_torch(lambda: through_torch(noisy)))
    assert found[-1] == "read"


def test_deep_recursion():
    def down(n):
        return read() if n == 0 else pytree.tree_map(lambda _: down(n - 1), [1])

    assert names_caught(lambda: down(40))[-1] == "read"


# ---- threads, tasks, processes


def test_two_threads_at_once():
    found, barrier = {}, threading.Barrier(4)

    def run(i):
        def waits_and_reads():
            barrier.wait()
            return read()

        for _ in range(20):
            try:
                through_torch(through_torch, waits_and_reads)
            except LazyError as error:
                found.setdefault(i, []).append(internal(error.__traceback__))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(map(len, found[i])) for i in range(4)] == [0] * 4
    assert [len(found[i]) for i in range(4)] == [20] * 4


def test_threads_that_end_with_a_kept_exception():
    thread = threading.Thread(target=through_torch, args=(keeps,))
    thread.start()
    thread.join()
    del thread
    assert len(kept) == 1
    assert lines_that_torch_adds() == 2
    assert hook_is_gone()
    kept.clear()


def test_tasks():
    async def reads():
        await asyncio.sleep(0)
        return through_torch(read)

    async def gathers():
        return await asyncio.gather(reads(), reads(), return_exceptions=True)

    def run():
        return asyncio.run(gathers())

    for error in through_torch(run)[0]:
        assert isinstance(error, LazyError) and not internal(error.__traceback__)
    assert lines_that_torch_adds() == 2


def test_fork_while_one_is_handled():
    script = """
        import os, sys, torch, lazyeng
        from torch.utils._pytree import tree_map
        from tests.test_errors_unwinding import hook_is_gone, internal, read, through_torch

        def forks():
            try:
                through_torch(read)
            except lazyeng.LazyError:
                pid = os.fork()
                if pid:
                    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                raise

        try:
            through_torch(forks)
        except lazyeng.LazyError as error:
            assert not internal(error.__traceback__)
        assert hook_is_gone()
        try:
            through_torch(read)
        except lazyeng.LazyError as error:
            assert not internal(error.__traceback__)
    """
    # (later versions of Python warn of any fork beside threads)
    done = alone(script, "-W", "ignore::DeprecationWarning")
    assert (done.returncode, done.stderr) == (0, "")


# ---- others' tools


def test_tracer_of_others_stays():
    seen = []

    def tracer(frame, event, arg):
        seen.append(event)
        return tracer

    sys.settrace(tracer)
    try:
        with pytest.raises(LazyError) as caught:
            through_torch(read)
        assert sys.gettrace() is tracer
        before = len(seen)
        through_torch(lambda: None)
        assert len(seen) > before  # it still hears of lines
    finally:
        sys.settrace(None)
    assert "exception" in seen
    assert not internal(caught.value.__traceback__)


def test_tracer_set_while_one_is_handled_wins():
    def tracer(frame, event, arg):
        return None

    def sets():
        try:
            read()
        except LazyError:
            sys.settrace(tracer)
            raise

    try:
        with pytest.raises(LazyError):
            through_torch(sets)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("stops", [False, True])
def test_profiler_of_others(stops):
    events = []

    def reads():
        try:
            read()
        except LazyError:
            if stops:
                sys.setprofile(None)
            raise

    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        with pytest.raises(LazyError):
            through_torch(reads)
    finally:
        sys.setprofile(None)
    assert events


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no sys.monitoring")
def test_without_a_free_tool():
    for tool in (3, 4):
        sys.monitoring.use_tool_id(tool, "another")
    try:
        with pytest.raises(LazyError) as caught:
            through_torch(read)
    finally:
        for tool in (3, 4):
            sys.monitoring.free_tool_id(tool)
    assert internal(caught.value.__traceback__)


# ---- what it keeps


def test_no_frame_and_no_exception_is_kept():
    class Local:
        pass

    alive = []

    def reads():
        local = Local()
        alive.append(weakref.ref(local))
        return read()

    gc.disable()
    try:
        try:
            through_torch(through_torch, reads)
        except LazyError as error:
            alive.append(weakref.ref(error))
        assert [reference() for reference in alive] == [None, None]
    finally:
        gc.enable()
