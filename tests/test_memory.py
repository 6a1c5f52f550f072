"""Nothing leaks, and work that runs ahead is bounded in bytes. In processes of their own: RSS."""

import contextlib
import gc
import itertools
import json
import os
import pathlib
import textwrap
import weakref

import pytest
import torch

import lazyeng
from lazyeng import LazyTensor, lazy, synchronize, wrap

from .support import fresh
from . import out_of_memory, out_of_new

PRELUDE = """
import gc, json, os, sys
import torch, lazyeng
from lazyeng import lazy, synchronize, wrap

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def peak():
    # Not ru_maxrss: that begins at the size of the process that started this one.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))

MB = 1 << 20
"""
SLOWNESS = float(os.environ.get("LAZYENG_TEST_SLOWNESS", "1"))


def measure(body, env=None):
    """Runs the script and returns the dict that it prints as JSON in its last line."""
    script = PRELUDE + textwrap.dedent(body)
    done = fresh.run(script, env=env, timeout=170 * SLOWNESS)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# One round of 10,000 ops, fewer of those that take long; `x` is what it works on.
LOOPS = {
    "chain": "for _ in range(5000): x = (x + 1) * 0.5",
    "in place": "for _ in range(5000): x.add_(1).mul_(0.5)",
    "views": "for _ in range(5000): x[2:4].add_(x[:2])",
    "read each": "for _ in range(5000): y = (x + 1).sum().item()",
    "dropped": "for _ in range(10000): x + 1",
    "new tensors": "for _ in range(5000): y = wrap(torch.ones(8)) * 2",
    "random": "for _ in range(5000): y = torch.rand_like(x) + torch.nn.functional.dropout(x, 0.5)",
    "generators": """
        for _ in range(2000):
            generator = torch.Generator()
            y = torch.empty_like(x).uniform_(generator=generator)
    """,
    "backward": """
        for _ in range(500):
            w = wrap(torch.ones(8)).requires_grad_()
            (w * x + w).relu().sum().backward()
            g = w.grad
    """,
    "plain writes": "p = torch.zeros(8)\n        for _ in range(10000): p.add_(x)",
    "shapes": "for i in range(2000): y = wrap(torch.ones(i % 500 + 1)) + 1",
    "scalars": "for i in range(3000): y = x + i * 0.5",
    "failures": """
        for _ in range(250):
            try: x[wrap(torch.tensor([99]))].wait()
            except IndexError: pass
    """,
}


# In sync mode (ops run at the call, as those do that other loops record first) some of them.
IN_SYNC_MODE = ("chain", "views", "backward", "failures")


@pytest.mark.limit(400)
@pytest.mark.parametrize(
    "name, mode",
    [(name, mode) for name in LOOPS for mode in ("async", "deferred")]
    + [(name, "sync") for name in IN_SYNC_MODE],
)
def test_50000_ops_leak_nothing(name, mode):
    """After two rounds of warm-up, three more: the objects stay as many, the memory as large. Five
    rounds of 10,000 ops; the bound of 8 MB is below 300 bytes for each measured op. (How far the
    program gets ahead of the engine, and so the most that is ever pending, is up to the machine:
    what grows once is measured once more. A leak goes on.)"""
    result = measure(f"""
    def round_():
        x = wrap(torch.ones(8))
        {LOOPS[name]}
        x.wait(); synchronize(); gc.collect()

    def count():
        return len(gc.get_objects()), lazyeng.engine_stats()["stack_table_entries"]

    with lazy("{mode}"):
        for _ in range(2): round_()
        for _ in range(2):
            before, (objects, stacks) = rss(), count()
            for _ in range(3): round_()
            after, (objects2, stacks2) = rss(), count()
            if after - before < 8 << 20: break
    stats = lazyeng.engine_stats()
    print(json.dumps(dict(grown=after - before, objects=objects2 - objects, stacks=stacks2 - stacks,
                          pending=stats["pending_ops"], pending_bytes=stats["pending_bytes"])))
    """)
    assert result["grown"] < 8 << 20, result
    assert abs(result["objects"]) < 100 and abs(result["stacks"]) < 20, result
    assert result["pending"] == 0 and result["pending_bytes"] == 0, result


@pytest.mark.limit(400)
def test_training_steps_of_many_kinds_leak_nothing():
    """3,000 steps, below 270 bytes for each (0.1 to 0.3 MB are usual), after 3,000 in which plans,
    trials and findings about kinds of calls come together (1.4 MB); `python -m tests.steady` takes
    200,000."""
    result = measure("""
    import warnings
    from tests import steady
    warnings.simplefilter("ignore")  # of failures that are not seen
    steady.run(3000)
    print(json.dumps(dict(grown=steady.run(3000))))
    """)
    assert result["grown"] < 3 << 18, result


@pytest.mark.limit(400)
def test_unread_work_stays_within_the_byte_bound(lazy_mode):
    """20,000 ops on 1 MB tensors, all dropped unread: 20 GB if nothing held them back."""
    bound = 64 << 20
    result = measure(f"""
    x = wrap(torch.ones(1 << 18))
    highest = 0
    start = rss()
    with lazy("{lazy_mode}"):
        for i in range(20000):
            y = x + i
            if i % 50 == 0: highest = max(highest, lazyeng.engine_stats()["pending_bytes"])
        last = y[0].item()
    print(json.dumps(dict(last=last, highest=highest, grown=peak() - start)))
    """, {"LAZYENG_MAX_PENDING_BYTES": str(bound)})  # fmt: skip
    assert result["last"] == 20000.0
    assert result["highest"] <= bound + (4 << 20), result
    # Allocator slack and the pool of reusable buffers come on top.
    assert result["grown"] < 4 * bound, result


@pytest.mark.limit(400)
def test_unread_chain_stays_within_the_byte_bound():
    """The same with each op needing the one before, and all of the mode's default bound."""
    result = measure("""
    x = wrap(torch.zeros(1 << 18))
    start = rss()
    for i in range(20000): x = x + 1
    print(json.dumps(dict(last=x[0].item(), grown=peak() - start)))
    """, {"LAZYENG_MAX_PENDING_BYTES": str(64 << 20)})  # fmt: skip
    assert result["last"] == 20000.0
    assert result["grown"] < 256 << 20, result


@pytest.mark.parametrize("numel", [1, 16, 17, 100, 256, 257])
def test_small_memory_that_others_hold_is_not_used_again(numel):
    """Results of at most 1 KiB come from lists of blocks, which numpy and DLPack must not lose."""
    x = wrap(torch.arange(numel, dtype=torch.float32))
    held = [(i, (x + i).numpy()) for i in range(200)]
    held += [(i, torch.from_dlpack((x + i).detach())) for i in range(200, 300)]
    total = x
    for i in range(2000):
        total = total + i
    synchronize()
    for i, array in held:
        torch.testing.assert_close(
            torch.as_tensor(array), torch.arange(numel) + i, check_dtype=False, rtol=0, atol=0
        )


def test_pending_ops_are_bounded():
    result = measure("""
    x = wrap(torch.zeros(2))
    highest = 0
    with lazy("deferred"):
        for i in range(5000):
            x = x + 1
            highest = max(highest, lazyeng.engine_stats()["pending_ops"])
    print(json.dumps(dict(last=x[0].item(), highest=highest)))
    """, {"LAZYENG_MAX_PENDING_OPS": "100"})  # fmt: skip
    assert result["last"] == 5000.0
    assert result["highest"] <= 110, result


@pytest.mark.limit(400)
def test_kept_results_take_their_own_bytes_only():
    """200 results of 1 MB that the program keeps: 200 MB and little more."""
    result = measure("""
    x = wrap(torch.zeros(1 << 18))
    start = rss()
    kept = [(x + i) * 2 for i in range(200)]
    synchronize()
    print(json.dumps(dict(grown=peak() - start)))
    """)
    assert 180 << 20 < result["grown"] < 320 << 20, result


def test_temporaries_are_freed_before_the_read():
    """A long chain of 4 MB temporaries does not keep them until somebody reads."""
    result = measure("""
    x = wrap(torch.zeros(1 << 20))
    start = rss()
    for i in range(500): x = x + 1
    print(json.dumps(dict(last=x[0].item(), grown=peak() - start)))
    """, {"LAZYENG_MAX_PENDING_BYTES": str(128 << 20)})  # fmt: skip
    assert result["last"] == 500.0 and result["grown"] < 400 << 20, result


def test_results_that_get_no_memory_are_no_work_to_bound(lazy_mode):
    """20 results of 8 MB, of which 19 are dead before they are made: still one group."""
    result = measure(f"""
    x = wrap(torch.ones(1 << 21))
    def chain(x):
        with lazy("{lazy_mode}"):
            for i in range(20): x = x * 1.5 if i % 2 else x + 1
            return x.wait()
    chain(x)  # (first calls of some ops run at once)
    lazyeng.reset_stats()
    y = chain(x)
    print(json.dumps(dict(groups=lazyeng.engine_stats()["groups"])))
    """, {"LAZYENG_MAX_PENDING_BYTES": str(64 << 20)})  # fmt: skip
    assert result["groups"] == 1, result


def test_large_results_lie_in_large_pages():
    """Of those that the pool makes; the kernel may have none to give, and may be told not to."""
    setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("no transparent huge pages here")
    result = measure("""
    def large_pages():
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if "AnonHugePages" in line)
    x = wrap(torch.ones(1 << 24))
    before = large_pages()
    y = ((x + 1) * 2).wait()
    print(json.dumps(dict(grown=large_pages() - before)))
    """)
    if result["grown"] == 0:
        pytest.skip("the system has none left")
    assert result["grown"] > 32 << 20


def test_cycles_are_collected():
    """A pending lazy tensor in a reference cycle through its own attributes."""
    with lazy("deferred"):
        y = wrap(torch.ones(2)).requires_grad_() * 2
    y.self, y.pair = y, [y]
    ref = weakref.ref(y)
    del y
    gc.collect()
    assert ref() is None


def test_freed_without_the_collector(mode):
    """No reference cycles of our own: everything goes when its last name goes."""
    gc.collect()
    gc.disable()
    try:
        before = sum(type(o) is LazyTensor for o in gc.get_objects())
        with lazy(mode):
            x = wrap(torch.ones(4)).requires_grad_()
            y = ((x + 1) * x).sum()
            y.backward()
            g = x.grad.tolist()
        del x, y
        synchronize()
        assert g == [3.0] * 4
        assert sum(type(o) is LazyTensor for o in gc.get_objects()) == before
    finally:
        gc.enable()


def test_failed_tensor_keeps_no_input_alive():
    """With the collector off: a failure keeps neither frames nor inputs."""

    class Local:
        pass

    def fail():
        local = Local()
        source = wrap(torch.ones(3))
        bad = source[wrap(torch.tensor([7]))]
        with contextlib.suppress(IndexError):
            bad.wait()
        return bad, weakref.ref(local), weakref.ref(source)

    gc.collect()
    gc.disable()
    try:
        bad, local, source = fail()
        assert local() is None and source() is None
        del bad
    finally:
        gc.enable()


def test_data_of_a_plain_tensor_leaves_nothing_behind():
    """Each `.data` has a version counter of its own, which readers of the memory look at: no longer
    than tensors have it. (Kept, 10,000 took 3.7 MB, and each call looked at all of them.) Any one
    pass may get further ahead of the engine than those before, and then takes more; a leak is in all."""
    result = measure("""
    p = torch.ones(1000)
    def halve(count):
        for _ in range(count): p.data.mul_(0.5)
    def one_pass():
        start = rss()
        halve(10000)
        return p.sum().item(), rss() - start
    with lazy():
        passes = [one_pass() for _ in range(6)]
        print(json.dumps(dict(last=passes[-1][0], grown=min(grown for _, grown in passes))))
    """)
    assert result["last"] == 0.0
    assert result["grown"] < 1 << 20, result


def test_threads_that_end_leave_nothing_behind():
    """What a thread keeps of nodes, values and vars for those it makes next. (It took 7 KiB of each
    thread with it.)"""
    result = measure("""
    import threading
    x = wrap(torch.ones(4))
    def record():
        y = [x + i for i in range(70)]
        synchronize()
    def take_turns(count):
        for _ in range(count):
            thread = threading.Thread(target=record)
            thread.start(); thread.join()
    take_turns(300); start = rss()
    take_turns(1000)
    print(json.dumps(dict(grown=rss() - start)))
    """)
    assert result["grown"] < 2 << 20, result


def test_memory_of_a_dropped_plain_source_is_returned():
    """wrap() keeps the plain tensor's memory only as long as something needs it."""
    result = measure("""
    def use():
        x = wrap(torch.ones(100 * MB // 4))
        return (x + 1).sum().item()
    use(); start = rss()
    for _ in range(10): use()
    print(json.dumps(dict(grown=rss() - start)))
    """)
    assert result["grown"] < 150 << 20, result


def test_statistics_of_pending_work():
    lazyeng.reset_stats()
    with lazy("deferred"):
        x = (wrap(torch.ones(1 << 18)) + 1) * 2  # a group: its result comes from the pool
        stats = lazyeng.engine_stats()
        assert stats["pending_ops"] >= 1 and stats["pending_bytes"] >= 1 << 20
        x.wait()
    synchronize()
    stats = lazyeng.engine_stats()
    assert stats["pending_ops"] == 0 and stats["pending_bytes"] == 0
    assert stats["peak_bytes"] >= 1 << 20


def engine_allocates(function):
    """Bytes that the pool keeps once what an engine thread made is gone."""
    for _ in range(2):  # (at first there are trials, which allocate on the program's thread)
        lazyeng._C.empty_buffer_pool()
        with lazy("deferred"):
            result = function()
            synchronize()
        del result
    return lazyeng.engine_stats()["pool_bytes"]


def test_kernels_of_torch_allocate_from_the_pool():
    """Results, and the scratch memory of oneDNN: memory fresh from the system costs page faults."""
    a, image, weight = torch.rand(512, 512), torch.rand(2, 16, 32, 32), torch.rand(16, 16, 3, 3)
    assert 1 << 20 <= engine_allocates(lambda: torch.mm(wrap(a), a)) < 2 << 20
    conv = torch.nn.functional.conv2d
    assert engine_allocates(lambda: conv(wrap(image), weight)) >= 2 * 16 * 30 * 30 * 4
    assert engine_allocates(lambda: wrap(a)[:64, :64].abs()) == 0  # (16 KiB: malloc's)


def test_what_the_program_allocates_outside_of_blocks_does_not_come_from_the_pool():
    lazyeng._C.empty_buffer_pool()
    with lazy():
        torch.rand(512, 512)
    assert lazyeng.engine_stats()["pool_bytes"] >= 1 << 20
    lazyeng._C.empty_buffer_pool()
    a = torch.rand(512, 512)
    del a
    assert lazyeng.engine_stats()["pool_bytes"] == 0


def test_plain_temporaries_of_a_block_are_used_again():
    """An engine thread frees them. (In malloc's heap the process grew by one a step.)"""
    result = measure(
        """
        total = torch.zeros(1 << 22)
        with lazy():
            for _ in range(10): total += torch.rand(1 << 22)
            before = rss()
            for _ in range(40): total += torch.rand(1 << 22)
        print(json.dumps(dict(grown=rss() - before)))
        """,
        env={"LAZYENG_MAX_PENDING_BYTES": str(64 << 20)},
    )
    assert result["grown"] < 250 << 20, result  # (16 MiB each)


def test_what_waits_for_its_reader_counts_as_pending():
    """Also plain tensors that the program has let go of meanwhile."""
    lazyeng.reset_stats()
    with lazy("deferred"):
        total = wrap(torch.zeros(1 << 18))
        for _ in range(5):
            total += torch.rand(1 << 18)
        held = torch.rand(1 << 18)
        for _ in range(5):
            total += held  # (once)
        assert 6 << 20 <= lazyeng.engine_stats()["pending_bytes"] < 8 << 20
        total.wait()
    synchronize()
    assert lazyeng.engine_stats()["pending_bytes"] == 0


def test_buffers_of_sizes_that_are_not_asked_for_again_are_let_go_of():
    """A cache that grows leaves one of each size behind."""
    lazyeng._C.empty_buffer_pool()
    with lazy("deferred"), torch.no_grad():
        keys = wrap(torch.rand(16, 4096))
        for _ in range(300):
            keys = torch.cat([keys, keys[:1]])
            keys.wait()
    assert keys.shape[0] == 316
    assert lazyeng.engine_stats()["pool_bytes"] < 60 << 20  # (108 MiB without such a bound)


def test_memory_from_the_pool_is_as_any_other():
    """It may be resized, shared, pickled, read by numpy, kept beyond the engine's use of it."""
    with lazy("deferred"):
        x = lazyeng.unwrap(torch.mm(wrap(torch.rand(300, 300)), torch.eye(300)))
    expected = x.clone()
    x.resize_(400, 400)
    assert torch.equal(x.flatten()[: 300 * 300].view(300, 300), expected)
    x.untyped_storage().resize_(expected.nbytes)
    array = x.set_(x.untyped_storage(), 0, (300, 300)).numpy()
    del x
    assert torch.equal(torch.from_numpy(array), expected)
    shared = torch.from_numpy(array).share_memory_()
    assert shared.is_shared() and torch.equal(shared, expected)


def test_the_pool_gives_way_to_what_the_program_allocates():
    """There is room for it only without what the pool keeps."""
    code = """
        import os, resource, torch, lazyeng
        from lazyeng import lazy
        x = torch.ones(1 << 26, dtype=torch.uint8)
        with lazy():
            for _ in range(2): (x.cumsum(0, dtype=torch.uint8) + 1).sum().item()
        lazyeng.synchronize()
        kept = lazyeng.engine_stats()["pool_bytes"]
        assert kept >= 1 << 26, kept
        used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = used + (50 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        y = torch.ones(1 << 26, dtype=torch.uint8)
        print(y[-1].item(), lazyeng.engine_stats()["pool_bytes"])
        try: torch.ones(1 << 30, dtype=torch.uint8)
        except RuntimeError as error: print("memory" in str(error))
    """
    env = {"LAZYENG_MAX_POOL_BYTES": str(1 << 30)}
    done = fresh.run(textwrap.dedent(code), env=env, timeout=150 * SLOWNESS)
    assert done.stdout == "1 0\nTrue\n", done.stderr


def test_a_bound_of_the_pool_is_kept():
    result = measure(
        """
        with lazy("deferred"):
            x = torch.mm(wrap(torch.rand(512, 512)), torch.rand(512, 512)); synchronize()
        del x
        print(json.dumps(dict(kept=lazyeng.engine_stats()["pool_bytes"])))
        """,
        env={"LAZYENG_MAX_POOL_BYTES": "1000"},
    )
    assert result["kept"] == 0


def test_steps_cause_no_page_faults():
    """What a step frees the next one takes. (In eager it is the main thread that frees, whose heap
    glibc keeps; what other threads free goes back to the system.)"""
    result = measure("""
    import resource
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3))
    x = torch.rand(8, 3, 64, 64)
    def step():
        model(x).square().mean().backward()
        model.zero_grad()
    def faults(steps):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(steps): step()
        synchronize()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    with lazy():
        faults(8)
        print(json.dumps(dict(faults=faults(16))))
    """)
    # One buffer of such a step alone is 900 pages of 4 KiB, 8 x 32 x 62 x 62 x 4 bytes.
    assert result["faults"] < 16 * 300, result


def test_a_pool_that_keeps_nothing_keeps_no_small_memory():
    """Each result is an allocation of torch's, on whichever thread."""
    code = """
        import ctypes, torch, lazyeng
        x, memory = lazyeng.wrap(torch.ones(64)), ctypes.CDLL(None)
        def small_results():
            for _ in range(50): x.cumsum(0).wait()
        small_results()
        memory.fail_allocations(ctypes.c_long(1 << 40), ctypes.c_long(0))  # (counts)
        small_results()
        print(memory.seen_allocations())
    """
    shim = out_of_memory.built(out_of_memory.SHIM, "cc")
    for bound in "0", "1":
        env = {"LAZYENG_MAX_POOL_BYTES": bound, "LAZYENG_MODE": "deferred"}
        arguments = "-c", textwrap.dedent(code)
        printed = out_of_memory.run_preloaded(shim, *arguments, seconds=100 * SLOWNESS, **env)
        assert int(printed) >= 50


@pytest.mark.limit(400)
@pytest.mark.parametrize(
    "mode, pool",
    [("sync", "no"), *itertools.product(("async", "deferred"), out_of_memory.POOLS)],
)
def test_a_step_whose_allocations_fail(mode, pool):
    """Every third of them; tests/out_of_memory.py says what is checked."""
    out_of_memory.run(mode, every=3, pool=pool, seconds=170 * SLOWNESS)


@pytest.mark.parametrize("mode", out_of_new.MODES)
def test_allocations_of_our_own_tables_fail(mode):
    """Of a training step, a sample: an error at the call or the read, or a right result; nothing
    corrupt, the next step works. `python -m tests.out_of_new` takes more places."""
    printed = out_of_new.run(mode, 30)
    assert printed.count("right") == 2 and "graph(): " in printed


@pytest.mark.parametrize("count", [10**15, 2**63 - 1])
def test_the_error_names_the_bytes_that_were_asked_for(count, lazy_mode):
    """Not those of the pool's buffer."""
    with pytest.raises(RuntimeError) as expected:
        torch.empty(count, dtype=torch.uint8)
    with lazyeng.lazy(lazy_mode), pytest.raises(RuntimeError) as found:
        torch.empty(count, dtype=torch.uint8)
    assert str(found.value) == str(expected.value)
