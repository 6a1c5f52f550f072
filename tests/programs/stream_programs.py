"""Programs for a simulated device "cuda" that are about its streams and its memory.

The device holds streams back (`hold`: the default one; `hold_others`: those of copies, and what a
program selects), so that a wait that is missing is seen: memory that was not written yet, or was
freed, is full of 0xfb.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import lazyeng
from tests.programs import random_programs
from tests.programs.cuda_programs import (
    DRAWS,
    MODES,
    chain,
    eventually,
    outcome_on_device,
    slow,
)
from tests.simulated_cuda import kernels
from tests.support.failures import raised_by

simulated = torch.ops.simulated_cuda


@contextlib.contextmanager
def held(*, others: bool) -> Iterator[None]:
    (simulated.hold_others if others else simulated.hold)(0)
    try:
        yield
    finally:
        simulated.let_go()


LARGE = 100_000  # elements: the values of small plain tensors are kept when an op is recorded


def pinned(value: float, size: int = 4) -> torch.Tensor:
    return torch.full((size,), value).pin_memory()


def warmed_up() -> torch.Tensor:
    """A lazy tensor on the device; the ops that the checks record are known, so none waits."""
    x = lazyeng.wrap(torch.ones(4, device="cuda"))
    for host in (torch.ones(4), pinned(1.0)):
        y = lazyeng.wrap(host).to("cuda", non_blocking=True)
        y.copy_(host)
        (y + 1).add_(1)
        y.to("cpu", non_blocking=True).wait()
    lazyeng.synchronize()
    return x


# ---- copies


def check_a_copy_is_complete_when_it_is_launched() -> None:
    """So is what uses its result, and later copies are launched behind it."""
    warmed_up()
    for host in (torch.full((4,), 3.0), pinned(3.0)):
        waits = simulated.host_waits()
        with held(others=True):
            copied = [lazyeng.wrap(host).to("cuda") for _ in range(3)]
            sums = [x + 1 for x in copied]
            eventually(lambda copied=copied, sums=sums: all(x.is_ready() for x in copied + sums))
            assert simulated.host_waits() == waits
        assert [x.tolist() for x in sums] == [[4.0] * 4] * 3


def check_kernels_wait_for_the_copy_that_they_read() -> None:
    """The default stream is free meanwhile."""
    warmed_up()
    with held(others=True):
        copied = lazyeng.wrap(pinned(3.0)).to("cuda", non_blocking=True)
        after = copied * 2
        eventually(after.is_ready)
        time.sleep(0.02)
    assert after.tolist() == [6.0] * 4


def check_kernels_wait_for_the_copy_that_overwrites() -> None:
    x = warmed_up()
    with held(others=True):
        before = x + 1
        x.copy_(pinned(7.0), non_blocking=True)
        after = x * 2
        eventually(after.is_ready)
        time.sleep(0.02)
    assert (before.tolist(), after.tolist()) == ([2.0] * 4, [14.0] * 4)


def check_kernels_do_not_overwrite_what_is_being_copied_to_the_host() -> None:
    x = warmed_up()
    with held(others=True):
        host = x.to("cpu", non_blocking=True)
        x.add_(5)
        eventually(x.is_ready)
        time.sleep(0.02)
        assert not host.is_ready()
    assert (host.tolist(), x.tolist()) == ([1.0] * 4, [6.0] * 4)


def check_a_pinned_source_is_not_written_before_it_is_copied() -> None:
    warmed_up()
    source = lazyeng.wrap(pinned(3.0, LARGE))
    with held(others=True):
        copied = source.to("cuda", non_blocking=True)
        source.add_(1)
        eventually(copied.is_ready)
        time.sleep(0.02)
        assert not source.is_ready()
    assert (copied.unique().tolist(), source.unique().tolist()) == ([3.0], [4.0])


def check_memory_of_a_copy_that_was_waited_for_is_not_reused_while_it_is_read() -> None:
    """The first call that makes such a tensor waits, to find out what the op returns."""
    warmed_up()
    (lazyeng.wrap(torch.ones(70, device="cuda")) * 2).wait()
    waited_for = lazyeng.engine_stats()["fallbacks"]
    copied = lazyeng.wrap(torch.full((70, 1), 3.0)).to("cuda")
    assert lazyeng.engine_stats()["fallbacks"] == waited_for + 1
    with held(others=False):
        y = copied.view(70) * 2
        eventually(y.is_ready)
        del copied
        time.sleep(0.02)
    assert y.unique().tolist() == [6.0]


def check_what_is_asked_of_a_copy_waits_for_it() -> None:
    x = warmed_up()
    assert torch.equal(x, x)
    with held(others=True):
        copied = lazyeng.wrap(pinned(1.0)).to("cuda", non_blocking=True)
        eventually(copied.is_ready)
        threading.Timer(0.05, simulated.let_go).start()
        assert torch.equal(copied, x)


def check_both_sides_live_until_the_copy_is_done() -> None:
    warmed_up()
    with held(others=True):
        kept = lazyeng.wrap(pinned(3.0, LARGE)).to("cuda", non_blocking=True)  # its source dies
        lazyeng.wrap(pinned(8.0, LARGE)).to("cuda", non_blocking=True)  # so does this one's result
        later = [
            lazyeng.wrap(pinned(float(i), LARGE)).to("cuda", non_blocking=True) for i in range(5)
        ]
        eventually(later[-1].is_ready)
        time.sleep(0.02)
    assert [x.unique().tolist() for x in [kept, *later]] == [[3.0], *([float(i)] for i in range(5))]


def check_synchronize_waits_for_copies() -> None:
    warmed_up()
    slow(20000)
    copied = lazyeng.wrap(pinned(3.0)).to("cuda", non_blocking=True)
    copied.wait()
    assert simulated.finished() == simulated.launches()
    lazyeng.wrap(pinned(3.0)).to("cuda", non_blocking=True)
    lazyeng.synchronize()
    assert simulated.finished() == simulated.launches()


def check_a_plain_source_that_changes_in_flight_is_reported() -> None:
    warmed_up()
    source = pinned(3.0, LARGE)
    with held(others=True):
        with lazyeng.lazy():
            copied = source.to("cuda", non_blocking=True)
        eventually(copied.is_ready)
        source.add_(1)
    assert "was changed in place" in str(raised_by(lazyeng.synchronize))


def check_the_engine_bounds_what_is_being_copied() -> None:
    """Bytes of copies count as pending until the device has done them."""
    warmed_up()
    with held(others=True):
        copied = [lazyeng.wrap(pinned(1.0, 1000)).to("cuda", non_blocking=True) for _ in range(5)]
        eventually(copied[-1].is_ready)
        assert lazyeng.engine_stats()["pending_bytes"] >= 5 * 4000
    lazyeng.synchronize()
    assert lazyeng.engine_stats()["pending_bytes"] == 0


# ---- the stream that the program has selected


class _Scattered(TorchFunctionMode):
    """Each call on a stream of its own choice, which waits for the others as eager code demands."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._streams = [torch.Stream("cuda:0") for _ in range(3)]
        self._streams.append(torch.accelerator.current_stream())
        # (Eager code would have to tell the allocator of each stream that uses a tensor.)
        self._kept: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stream = self._random.choice(self._streams)
        for other in self._streams:
            stream.wait_stream(other)
        with stream:
            result = func(*args, **(kwargs or {}))
        self._kept.append((args, kwargs, result))
        return result


def check_ops_run_on_the_selected_stream() -> None:
    x = warmed_up()
    side = torch.Stream("cuda:0")
    for mode in MODES:
        before = [simulated.launches_on(0, i) for i in (0, side.stream_id)]
        with lazyeng.lazy(mode):
            with side:
                y = x + 1
            z = y + 1
        assert z.tolist() == [3.0] * 4
        after = [simulated.launches_on(0, i) for i in (0, side.stream_id)]
        assert after[1] == before[1] + 1, (mode, before, after)
        assert after[0] > before[0]


def check_streams_wait_for_each_other() -> None:
    x = warmed_up()
    side = torch.Stream("cuda:0")
    with held(others=True):  # written there, read here
        with side:
            y = x + 1
        z = y * 2
        eventually(z.is_ready)
        time.sleep(0.02)
    assert z.tolist() == [4.0] * 4
    with held(others=False):  # the other way round
        y = x + 2
        with side:
            z = y * 2
        eventually(z.is_ready)
        time.sleep(0.02)
    assert z.tolist() == [6.0] * 4
    with held(others=True):  # read there, overwritten here
        with side:
            y = x + 3
        x.add_(5)
        eventually(x.is_ready)
        time.sleep(0.02)
    assert (y.tolist(), x.tolist()) == ([4.0] * 4, [6.0] * 4)


def check_memory_of_one_stream_is_not_reused_while_another_reads_it() -> None:
    x = warmed_up()
    side = torch.Stream("cuda:0")
    with side:
        y = x + 1
    lazyeng.synchronize()
    with held(others=False):
        z = y * 2
        eventually(z.is_ready)
        del y
        with side:
            others = [x + i for i in range(4)]
        eventually(others[-1].is_ready)
        time.sleep(0.02)
    assert z.tolist() == [4.0] * 4


def check_what_an_op_launched_before_it_raised_is_waited_for() -> None:
    """By what overwrites its memory, and by whoever gets that."""
    warmed_up()

    @torch.library.custom_op(
        "lazyeng_streams::raises_late", mutates_args=("x",), device_types="cuda"
    )
    def raises_late(x: torch.Tensor) -> None:
        x.add_(1)
        raise ValueError("after the launch")

    side = torch.Stream("cuda:0")

    def failed() -> torch.Tensor:
        x = lazyeng.wrap(torch.zeros(8, device="cuda"))
        with contextlib.suppress(ValueError, ExceptionGroup):
            lazyeng.synchronize()
        simulated.synchronize()
        simulated.hold_others(0)
        with side, contextlib.suppress(ValueError):  # (its first call finds out, and raises there)
            raises_late(x)
        torch.accelerator.current_stream().wait_stream(side)
        return x

    for _ in range(2):  # (the first call of an op waits)
        x = failed()
        try:
            x.fill_(7.0)
            eventually(x.is_ready)
            time.sleep(0.02)
        finally:
            simulated.let_go()
        assert x.tolist() == [7.0] * 8
        x = failed()
        try:
            eventually(x.is_ready)
            del x
            others = [torch.full((8,), 5.0, device="cuda") for _ in range(4)]
            time.sleep(0.02)
        finally:
            simulated.let_go()
        assert [other.tolist() for other in others] == [[5.0] * 8] * 4
    with contextlib.suppress(ValueError, ExceptionGroup):
        lazyeng.synchronize()


def check_what_is_given_out_is_ready_for_the_current_stream() -> None:
    x = warmed_up()
    side = torch.Stream("cuda:0")
    with held(others=True):
        with side:
            y = x + 1
        plain = lazyeng.unwrap(y)
        total = plain + 1  # (eager)
        time.sleep(0.02)
    assert total.tolist() == [3.0] * 4
    plain = torch.ones(4, device="cuda")
    with held(others=True):
        with lazyeng.lazy(), side:
            plain.add_(1)
        total = plain + 1
        time.sleep(0.02)
    assert total.tolist() == [3.0] * 4


def check_plain_tensors_remember_what_other_streams_do() -> None:
    """Also when their vars are gone, as they are with the launch of the last op."""
    warmed_up()
    side = torch.Stream("cuda:0")
    plain = torch.ones(4, device="cuda")
    with lazyeng.lazy():
        read = plain + 1
        read = plain * 2
        plain.add_(1)
    lazyeng.synchronize()

    def launch() -> None:
        before = simulated.launches_on(0, side.stream_id)
        lazyeng._C.flush()
        eventually(lambda: simulated.launches_on(0, side.stream_id) > before)
        time.sleep(0.02)

    with held(others=True):  # written there, read here by eager code
        with lazyeng.lazy(), side:
            plain.add_(1)
            launch()
        read = plain + 1
        time.sleep(0.02)
    assert read.tolist() == [4.0] * 4
    with held(others=True):  # by an op of the block
        with lazyeng.lazy():
            with side:
                plain.add_(1)
                launch()
            read = plain * 2
            eventually(read.is_ready)
            time.sleep(0.02)
    assert read.tolist() == [8.0] * 4
    with held(others=True):  # by the program, in the block
        with lazyeng.lazy():
            with side:
                plain.add_(1)
                launch()
            threading.Timer(0.05, simulated.let_go).start()
            assert plain.tolist() == [5.0] * 4
    with held(others=True):  # read there, overwritten here
        with lazyeng.lazy():
            with side:
                read = plain + 1
                launch()
            plain.add_(1)
        time.sleep(0.02)
    assert (read.tolist(), plain.tolist()) == ([6.0] * 4, [6.0] * 4)


def check_plain_memory_of_another_stream_is_not_reused_while_it_is_read() -> None:
    """Eager code would make that stream wait for the read before it lets go of the memory; in a
    block the read may not be launched by then."""
    x = warmed_up()
    side = torch.Stream("cuda:0")
    plain = torch.ones(4, device="cuda")
    with lazyeng.lazy():
        read = plain * 2
    with side:
        plain = torch.full((4,), 3.0, device="cuda")
    side.synchronize()
    with lazyeng.lazy("deferred"):
        read = plain * 2
        side.wait_stream(torch.accelerator.current_stream())
        del plain
        with held(others=False):
            lazyeng._C.flush()
            eventually(read.is_ready)
            with side:
                others = [x + i for i in range(4)]
            lazyeng._C.flush()
            eventually(others[-1].is_ready)
            time.sleep(0.02)
    assert read.tolist() == [6.0] * 4


def check_copies_follow_the_stream_of_their_program() -> None:
    """What eager code launches there before."""
    warmed_up()
    side = torch.Stream("cuda:0")
    plain = torch.ones(4, device="cuda")
    simulated.synchronize()
    slow(20000)
    with side:
        plain.add_(1)
        host = lazyeng.wrap(plain).cpu()
    assert host.tolist() == [2.0] * 4


def check_backward_runs_on_the_stream_of_its_forward() -> None:
    x = warmed_up()
    side = torch.Stream("cuda:0")
    weight = lazyeng.wrap(torch.ones(4, device="cuda")).requires_grad_()
    with side:
        loss = (weight * x).sin().sum()
    lazyeng.synchronize()
    before = [simulated.launches_on(0, i) for i in (0, side.stream_id)]
    loss.backward()
    lazyeng.synchronize()
    after = [simulated.launches_on(0, i) for i in (0, side.stream_id)]
    assert after[1] >= before[1] + 2, (before, after)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.cpu(), torch.ones(4).cos())


def check_groups_run_on_the_selected_stream() -> None:
    kernels.install()
    x, bias = torch.randn(300, 40), torch.randn(40)
    expected = list(chain(x, bias))
    side = torch.Stream("cuda:0")
    lazy_x, lazy_bias = lazyeng.wrap([x.cuda(), bias.cuda()])
    for i in range(3):
        before = simulated.launches_on(0, side.stream_id)
        with lazyeng.lazy("deferred"), side:
            results = chain(lazy_x, lazy_bias)
        torch.testing.assert_close([r.cpu() for r in results], expected)
        if i:
            assert simulated.launches_on(0, side.stream_id) == before + 2  # the group, its fold
        kernels.wait()
    assert lazyeng.engine_stats()["groups"] >= 2


def check_groups_wait_for_other_streams() -> None:
    kernels.install()
    side = torch.Stream("cuda:0")
    x = lazyeng.wrap(torch.ones(300, 40, device="cuda"))
    for i in range(3):
        with held(others=True):
            with lazyeng.lazy("deferred"):
                with side:
                    y = (x + 1) * 2
                z = (y - 1).tanh()
                lazyeng._C.flush()
            eventually(z.is_ready)
            time.sleep(0.02)
        torch.testing.assert_close(lazyeng.unwrap(z.cpu()), torch.full((300, 40), 3.0).tanh())
        kernels.wait()
        assert lazyeng.engine_stats()["groups"] == 2 * i  # (ops of two streams are none)


def check_random_programs_on_many_streams_equal_eager() -> None:
    for seed in (2, 3):
        program = random_programs.generate(
            seed, 200, default_generator=False, without=DRAWS | {"set_data"}
        )
        slow(0)
        expected = outcome_on_device(program, "eager")
        slow(30)
        for mode in MODES:
            with _Scattered(seed):
                found = outcome_on_device(program, mode)
            assert not random_programs.differences(expected, found), (seed, mode)


# ---- memory

MB = 1 << 20


def _mb() -> torch.Tensor:
    return torch.ones(MB // 4, device="cuda")


def _out_of_memory(function: Any) -> Exception:
    error = raised_by(function)
    assert isinstance(error, torch.OutOfMemoryError), error
    return error


def check_what_is_kept_for_reuse_is_given_back() -> None:
    """The device is full of freed memory, of another size than is asked for."""
    warmed_up()
    for mode in MODES:
        simulated.set_memory(0, 4 * MB + 100_000)
        with lazyeng.lazy(mode):
            kept = _mb()
            small = [kept + i for i in range(3)]
            lazyeng.synchronize()
            del small
            both = torch.cat([kept, kept])
        assert both.cpu().sum().item() == MB // 2, mode
        del kept, both


def check_memory_that_other_streams_are_past_is_used() -> None:
    """Results of copies die while kernels that read them are still to run."""
    warmed_up()
    source = pinned(1.0, MB // 4)
    slow(1000)
    simulated.set_memory(0, 6 * MB)
    # (A group of additions would want all of them at once.)
    total = lazyeng.wrap(torch.zeros((), device="cuda"))
    for _ in range(20):
        total = torch.median(lazyeng.wrap(source).to("cuda", non_blocking=True)) + total
        total = torch.linalg.vector_norm(total)
    assert total.item() == 20.0
    assert simulated.most_memory(0) <= 6 * MB


def check_out_of_memory_is_an_error_of_its_op_alone() -> None:
    warmed_up()
    for mode in ("async", "deferred"):
        simulated.set_memory(0, 4 * MB)
        with lazyeng.lazy(mode):
            kept = [_mb() for _ in range(3)]
            too_much = torch.cat(kept)
            after = too_much * 2
            sums = [x.sum() for x in kept]
        error = _out_of_memory(after.cpu().tolist)
        assert "CUDA out of memory" in str(error)
        assert error.op == "aten.cat", error.op  # type: ignore[attr-defined]
        assert [x.item() for x in sums] == [MB / 4] * 3, mode
        del kept, too_much, after, error
        assert (_mb() + 1).sum().item() == MB / 2
    simulated.set_memory(0, 4 * MB)
    with lazyeng.lazy("sync"):
        kept = [_mb() for _ in range(3)]
        _out_of_memory(lambda: torch.cat(kept))


def check_a_group_that_lacks_memory_runs_all_the_same() -> None:
    kernels.install()
    x = lazyeng.wrap(_mb())
    for _ in range(3):
        simulated.set_memory(0, 1 << 40)
        with lazyeng.lazy("deferred"):
            small = [x + i for i in range(9)]
        lazyeng.synchronize()
        simulated.set_memory(0, 10 * MB + 100_000)
        del small
        with lazyeng.lazy("deferred"):
            y = ((x.repeat(2) + 1) * 2).tanh()
        assert abs(y.cpu().sum().item() - MB // 2) < MB / 100
        del y
        kernels.wait()


def check_a_group_without_a_kernel_frees_memory_as_it_goes() -> None:
    """20 ops, in blocks of one step and of many; each would keep 1 MiB for each op."""
    x = torch.ones(MB // 4, device="cuda")
    for steps in (1, 8):
        lazyeng.synchronize()
        simulated.set_memory(0, 1 << 40)
        with lazyeng.lazy("deferred"):
            for _ in range(steps):
                y = x
                for _ in range(5):
                    y = (y * 0.5 + x).relu() - 0.25
        assert y.cpu().unique().numel() == 1
        assert simulated.most_memory(0) <= 6 * MB, (steps, simulated.most_memory(0) / MB)


def check_what_is_pending_is_bounded_by_the_memory_of_the_device() -> None:
    """The device has less than the host: an eighth of it may be on its way."""
    simulated.set_memory(0, 64 * MB)
    warmed_up()
    source = pinned(1.0, MB // 4)
    most = 0
    with held(others=True):
        threading.Timer(1.0, simulated.let_go).start()
        copied = []
        for _ in range(30):
            copied.append(lazyeng.wrap(source).to("cuda", non_blocking=True))
            most = max(most, lazyeng.engine_stats()["pending_bytes"])
        lazyeng.synchronize()
    assert 4 * MB < most <= 9 * MB, most
    assert all(x.cpu().sum().item() == MB / 4 for x in copied)


# ---- traces


def check_streams_are_rows_of_a_profile() -> None:
    kernels.install()
    side = torch.Stream("cuda:0")
    x = warmed_up()

    def program() -> torch.Tensor:
        with lazyeng.lazy("deferred"):
            y = lazyeng.wrap(pinned(1.0)).to("cuda", non_blocking=True)
            with side:
                z = torch.linalg.vector_norm((x + y) * 2)
        return z.to("cpu", non_blocking=True)

    for _ in range(2):
        program().item()
        kernels.wait()
    slow(3000)
    path = Path(tempfile.mkdtemp()) / "trace.json"
    waits = simulated.host_waits()
    with lazyeng.profile(path):
        host = program()
        lazyeng.synchronize()
        assert simulated.host_waits() == waits
    assert abs(host.item() - 8) < 1e-5
    events = json.loads(path.read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranges = sorted((e for e in events if e.get("cat") == "device"), key=lambda e: e["ts"])
    assert [rows[e["tid"]] for e in ranges] == [
        "cuda:0 copies to it", *[f"cuda:0 stream {side.stream_id}"] * 2, "cuda:0 copies from it",
    ], (rows, ranges)  # fmt: skip
    assert ranges[1]["args"]["members"] and ranges[1]["name"] == "group of 2", ranges
    for one, next_one in itertools.pairwise(ranges):
        assert one["dur"] >= 3000, ranges
        assert one["ts"] + one["dur"] <= next_one["ts"] + 1, ranges
