"""Programs for a simulated device "cuda": each `check_...` runs in a process of its own.

The device makes kernels slow, and holds them back, which shows what is not ordered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lazyeng
from lazyeng import _C
from lazyeng.fuse import background
from lazyeng.fuse.background import CompileWarning
from lazyeng.fuse.compiler import CompileError
from lazyeng.fuse.description import planned
from tests.programs import random_programs
from tests.programs.fusion_programs import FLOATS, Dag
from tests.simulated_cuda import kernels
from tests.support.failures import raised_by

simulated = torch.ops.simulated_cuda
MODES = ("async", "deferred", "sync")


def slow(us: int = 500) -> None:
    simulated.set_delay(us)


def eventually(condition: Any, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.001)


def small_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


def _train(device: str) -> tuple[list[float], list[torch.Tensor]]:
    model = small_net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(4):
        x = torch.randn(32, 8, generator=generator).to(device)
        y = torch.randint(0, 4, (32,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return [loss.item() for loss in losses], [p.detach().cpu() for p in model.parameters()]


def check_backward_passes_record_as_their_block_does() -> None:
    """On a thread of autograd's own, which is in no block."""
    x = torch.rand(4, device="cuda")

    def loss(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.ones(4, device="cuda", requires_grad=True)
        return weight, (weight.sin() * x).sum()

    with lazyeng.lazy("deferred"):
        weight, total = loss(x)
        before = lazyeng.engine_stats()
        total.backward()
        after = lazyeng.engine_stats()
        assert after["recorded"] > before["recorded"]
        assert after["executed"] == before["executed"], (before, after)
        assert weight.grad is not None and not weight.grad.is_ready()  # type: ignore[attr-defined]
        weight.grad.sum().item()

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad + torch.linalg.cholesky(grad.cpu().view(2, 2) * 0).sum()

    for mode in ("deferred", "sync"):
        with lazyeng.lazy(mode):
            weight, _ = loss(x)
            total = Fails.apply(weight).sum()
            try:
                total.backward()
                raised = False
            except torch.linalg.LinAlgError:
                raised = True
            assert raised == (mode == "sync"), mode
            with contextlib.suppress(torch.linalg.LinAlgError):
                lazyeng.synchronize()


def check_training_equals_the_cpu() -> None:
    losses, parameters = _train("cpu")
    for us in (0, 300):
        slow(us)
        for mode in MODES:
            with lazyeng.lazy(mode):
                lazy_losses, lazy_parameters = _train("cuda")
            torch.testing.assert_close(lazy_losses, losses)
            torch.testing.assert_close(lazyeng.unwrap(lazy_parameters), parameters)


def check_the_accelerator_stays_cuda() -> None:
    """A named PrivateUse1 backend would become torch's accelerator; CUDA's backward then fails."""
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    weight = torch.ones(3, device="cuda", requires_grad=True)  # nothing lazy about it
    (weight * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]
    assert torch.ones(1, device="lazyeng").device == torch.device("cuda:0")


def check_devices_have_an_index() -> None:
    with lazyeng.lazy("deferred"):
        assert torch.zeros(3, device="cuda").device == torch.device("cuda:0")
        assert torch.zeros(3).to("cuda").device == torch.device("cuda:0")
        assert torch.zeros(3).to("cuda:1").device == torch.device("cuda:1")


def check_copies_overlap_kernels() -> None:
    """Copies to a device are done while its kernels are not, in a thread that no kernel needs."""
    host = lazyeng.wrap(torch.arange(5.0))
    x = lazyeng.wrap(torch.ones(5, device="cuda"))
    (x + 1).wait()
    simulated.hold(0)
    try:
        busy = x * 2
        copied = host.to("cuda")
        busy_host = busy.cpu()
        eventually(copied.is_ready)
        assert not busy_host.is_ready()
    finally:
        simulated.let_go()
    assert busy_host.tolist() == [2] * 5
    assert copied.tolist() == list(range(5))


def check_copies_have_threads() -> None:
    copied = lazyeng.wrap(torch.ones(5)).to("cuda:1")
    assert copied.cpu().tolist() == [1] * 5
    names = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert {"lazyeng-dev-5", "lazyeng-dev-6", "lazyeng-dev-7"} <= names, names


_libraries: list[torch.library.Library] = []


def put_in_place_of_torchs(name: str, kernel: Any) -> None:
    """As an extension in C++ does: lazyeng is not told, and runs it as torch's own."""
    _libraries.append(torch.library.Library("aten", "IMPL"))
    impl: Any = torch.library.Library.impl
    impl.__wrapped__(_libraries[-1], name, kernel, "CUDA")


def check_launches_wait_for_the_thread_that_launches() -> None:
    """What is recorded while that is busy stays together, and nobody else is woken for it."""
    launching, go_on = threading.Event(), threading.Event()

    def digamma(x: torch.Tensor) -> torch.Tensor:
        launching.set()
        assert go_on.wait(20)
        return x + 1

    put_in_place_of_torchs("digamma", digamma)
    x = lazyeng.wrap(torch.ones(4, 4, device="cuda"))
    with lazyeng.lazy():
        busy = x.digamma()
        try:
            assert launching.wait(20)
            made = x
            for _ in range(10):
                made = (made @ x) / 4
                time.sleep(0.002)
            pending = lazyeng.graph(made)
            on_the_host = (lazyeng.wrap(torch.ones(3)) * 2).tolist()
        finally:
            go_on.set()
    assert len(pending) == 20 and not any(op.pushed for op in pending.ops), pending
    assert on_the_host == [2] * 3
    assert made.tolist() == [[1] * 4] * 4 and busy.tolist() == [[2] * 4] * 4
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert names.count("lazyeng-dev-4") == 1, names


def check_a_child_of_a_fork_knows_of_no_launches() -> None:
    """It may not touch the device of its parent."""
    simulated.hold(0)
    try:
        x = lazyeng.wrap(torch.ones(5, device="cuda")) * 2
        eventually(x.is_ready)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                lazyeng.synchronize()
                assert (lazyeng.wrap(torch.ones(3)) * 2).tolist() == [2] * 3
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        simulated.let_go()
    assert x.tolist() == [2] * 5


def check_a_copy_waits_for_kernels_that_read_what_it_overwrites() -> None:
    for mode in MODES:
        with lazyeng.lazy(mode):
            slow(2000)
            x = torch.ones(4, device="cuda")
            doubled = x * 2
            x.copy_(torch.full((4,), 7.0))
            after = x + 1
            assert doubled.tolist() == [2] * 4
            assert after.tolist() == [8] * 4


def check_a_copy_to_the_host_waits_for_kernels() -> None:
    for mode in MODES:
        for non_blocking in (False, True):
            with lazyeng.lazy(mode):
                slow(2000)
                x = torch.ones(4, device="cuda")
                for _ in range(5):
                    x = x * 2
                host = x.to("cpu", non_blocking=non_blocking)
                assert (host + 1).tolist() == [33] * 4
                assert host.numpy().tolist() == [32] * 4


def check_memory_of_a_copy_is_not_reused_too_early() -> None:
    """The result of a copy dies while a kernel that reads it waits: no other copy may get it."""
    for mode in MODES:
        with lazyeng.lazy(mode):
            slow(300)
            sums = []
            for i in range(30):
                x = torch.full((64,), float(i)).to("cuda")
                sums.append(x + 1)
                del x
        for i, total in enumerate(sums):
            assert total.tolist() == [i + 1.0] * 64, (mode, i, total)


def check_other_numbers_in_a_list_need_no_plan() -> None:
    """Adam's corrections are others in each step."""
    tensors = lazyeng.wrap([torch.ones(3, device="cuda"), torch.ones(4, 5, device="cuda")])
    made = []
    for i in range(6):
        before = lazyeng.engine_stats()["plans"]
        torch._foreach_div_(tensors, [1.0 + i, 2.0 + i])
        torch._foreach_addcdiv_(tensors, tensors, tensors, [0.5 * i, float(i)])
        made.append(lazyeng.engine_stats()["plans"] - before)
    assert made[2:] == [0] * 4, made
    torch._foreach_div_(tensors, [2, 3])  # (integers are of another kind)
    expected = [torch.ones(3), torch.ones(4, 5)]
    for i in range(6):
        torch._foreach_div_(expected, [1.0 + i, 2.0 + i])
        torch._foreach_addcdiv_(expected, expected, expected, [0.5 * i, float(i)])
    torch._foreach_div_(expected, [2, 3])
    torch.testing.assert_close(lazyeng.unwrap([t.cpu() for t in tensors]), expected)


def check_zeros_of_a_backward_pass_are_lazy() -> None:
    """They are made on a thread of autograd's own, which knows nothing of the tensors."""
    x = lazyeng.wrap(torch.randn(5, device="cuda")).requires_grad_()
    (grad,) = torch.autograd.grad(x.sgn(), x, torch.ones(5, device="cuda"))
    assert type(grad) is lazyeng.LazyTensor
    assert grad.tolist() == [0.0] * 5
    plain = torch.randn(5, device="cuda", requires_grad=True)  # (another pass on that thread)
    (grad,) = torch.autograd.grad((plain * 2).sum(), plain)
    assert type(grad) is torch.Tensor


def check_lengths_may_be_on_the_device() -> None:
    torch.manual_seed(1)
    x, targets = torch.randn(10, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 4))
    lengths = torch.tensor([10, 8]), torch.tensor([4, 3])
    expected = nn.functional.ctc_loss(x, targets, *lengths)
    there = [t.cuda() for t in (x, targets, *lengths)]
    for mode in MODES:
        with lazyeng.lazy(mode):
            found = nn.functional.ctc_loss(*there)
            there[3].add_(1)  # (a plain tensor of which a write is pending)
            there[3].sub_(1)
            again = nn.functional.ctc_loss(*there)
        torch.testing.assert_close(lazyeng.unwrap([found.cpu(), again.cpu()]), [expected] * 2)


class _Batches:
    """Batches of different sizes, in one buffer that is filled anew, as a careless source does."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for i in range(self.n):
            yield {"x": torch.full((3 + i % 4, 5), float(i)), "y": torch.tensor([i])}


def check_prefetch_copies_to_the_device() -> None:
    """Pinned buffers are filled again only when the copy out of them is done."""
    for mode in MODES:
        for us in (0, 1000):
            slow(us)
            with lazyeng.lazy(mode):
                sums = []
                for i, batch in enumerate(lazyeng.prefetch(_Batches(20), device="cuda")):
                    assert type(batch["x"]) is lazyeng.LazyTensor
                    assert batch["x"].device == torch.device("cuda:0")
                    assert batch["x"].shape == (3 + i % 4, 5)
                    sums.append((batch["x"].sum() / batch["x"].numel(), batch["y"] + 1))
            values = [(round(mean.item(), 4), one_more.item()) for mean, one_more in sums]
            assert values == [(i, i + 1) for i in range(20)], (mode, us, values)


def check_the_loader_copies_to_the_device() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    for workers in (0, 2):
        loader = lazyeng.DataLoader(data, batch_size=4, device="cuda", num_workers=workers)
        slow(500)
        seen = [(x.sum(1).tolist(), y.tolist()) for x, y in loader]
        plain = torch.utils.data.DataLoader(data, batch_size=4)
        assert seen == [(x.sum(1).tolist(), y.tolist()) for x, y in plain]


def check_many_threads_copy() -> None:
    slow(100)
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(25):
            x = lazyeng.wrap(torch.full((17,), float(k * 100 + i))).to(f"cuda:{k % 2}")
            y = (x + 1).cpu()
            if y.tolist() != [k * 100 + i + 1.0] * 17:
                wrong.append((k, i, y))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def outcome_on_device(program: random_programs.Program, mode: str) -> dict[str, Any]:
    def moved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        copies = [tensor.to("cuda") for tensor in tensors]
        return copies if mode == "eager" else lazyeng.wrap(copies)

    state = random_programs.make_state(program.seed, moved(random_programs.make_shared()))
    state.slots, state.readable = moved(state.slots), lambda x: x.cpu()
    with contextlib.nullcontext() if mode == "eager" else lazyeng.lazy(mode):
        random_programs.interpret(program, state)
    return random_programs.outcome(state, lambda x: lazyeng.unwrap(x).cpu())


# The simulated device has no generators.
DRAWS = frozenset(
    name
    for name, op in random_programs.OPS.items()
    if op.default_generator or name in ("rand", "randint", "reseed", "multinomial")
) | {"uniform_", "normal_", "random_", "bernoulli_"}


def check_random_programs_equal_eager() -> None:
    warnings.simplefilter("ignore")
    for seed in (0, 1, 4):
        program = random_programs.generate(seed, 300, default_generator=False, without=DRAWS)
        slow(0)
        expected = outcome_on_device(program, "eager")
        slow(20)
        for mode in MODES:
            assert not random_programs.differences(expected, outcome_on_device(program, mode)), (
                seed,
                mode,
            )


# ---- failures of the device


def _fails(x: torch.Tensor, i: int = 7) -> torch.Tensor:
    return x[torch.tensor([i], device=x.device)]


def _place(error: BaseException) -> tuple[str, int]:
    """The innermost frame of what created the failing op."""
    cause = error.__cause__ or error
    trace = cause.__traceback__
    assert trace is not None
    lines = [frame for frame in traceback.extract_tb(trace) if frame.filename == __file__]
    return lines[-1].name, lines[-1].lineno or 0


def _program(mode: str) -> Exception:
    slow(200)
    with lazyeng.lazy(mode):
        x = torch.ones(3, device="cuda") * 2
        return raised_by(lambda: (_fails(x) + 1).cpu().tolist())


def check_a_device_failure_names_its_op_async() -> None:
    _check_named(_program("async"))


def check_a_device_failure_names_its_op_deferred() -> None:
    _check_named(_program("deferred"))


def check_a_device_failure_is_raised_at_the_call_in_sync() -> None:
    """Nothing else had been launched that was not done: no doubt is left."""
    error = _program("sync")
    trace = error.__traceback__
    names = [frame.name for frame in traceback.extract_tb(trace)]
    assert names[-1] == "_fails", names
    assert type(error).__name__ == "AcceleratorError"
    assert not any("more operation" in note for note in getattr(error, "__notes__", []))


def _check_named(error: Exception) -> None:
    assert isinstance(error, torch.AcceleratorError), error
    assert isinstance(error, lazyeng.LazyError)
    assert str(error).startswith("CUDA error: device-side assert triggered")
    assert error.error_code == 710  # type: ignore[attr-defined]
    assert (error.op, error.path[0]) == ("aten.index.Tensor", f"index#{error.root_id}")
    assert error.inputs == ["float32[3]@cuda:0", "int64[1]@cuda:0"]
    assert _place(error)[0] == "_fails"
    lost = [note for note in error.__notes__ if "CUDA context of cuda:0 is lost" in note]
    assert len(lost) == 1, error.__notes__
    # Every later use of the device tells of the same failure, without calling a kernel.
    other = lazyeng.wrap(torch.ones(2)).to("cuda")
    again = raised_by(other.wait)
    assert isinstance(again, torch.AcceleratorError)
    assert again.root_id == error.root_id  # type: ignore[attr-defined]
    lazyeng.synchronize()  # nothing is left to report
    assert (lazyeng.wrap(torch.ones(2)) + 1).tolist() == [2, 2]
    if torch.accelerator.device_count() > 1:
        assert (lazyeng.wrap(torch.ones(2, device="cuda:1")) + 1).tolist() == [2, 2]
    assert "failed=aten::index.Tensor" in repr(other)


def check_candidates_are_listed() -> None:
    x = lazyeng.wrap(torch.ones(3, device="cuda"))
    simulated.hold(0)
    try:
        with lazyeng.lazy("async"):
            picked = [_fails(x, i) for i in (0, 7, 1)]
            doubled = [p * 2 for p in picked]
        eventually(lambda: all(d.is_ready() for d in doubled))
    finally:
        simulated.let_go()
    error = raised_by(lazyeng.synchronize)
    assert isinstance(error, torch.AcceleratorError)
    notes = error.__notes__
    assert "One of these operations failed there" in notes[0], notes
    listed = [note for note in notes if note.startswith("  aten.index.Tensor(float32[3]@cuda:0")]
    assert len(listed) == 1, notes
    assert listed[0].endswith("(3 times)"), notes
    assert any("more operation" in note for note in notes), notes
    assert raised_by(doubled[0].tolist).root_id == error.root_id  # type: ignore[attr-defined]


def check_the_list_of_candidates_is_short() -> None:
    """What the device has done is no candidate."""
    with lazyeng.lazy("async"):
        x = torch.ones(3, device="cuda")
        for _ in range(30):
            for _ in range(10):
                x = x[torch.tensor([0, 1, 2], device="cuda")]
            simulated.synchronize()
            x.wait()
        bad = _fails(x)
    error = raised_by(bad.tolist)
    assert isinstance(error, torch.AcceleratorError)
    listed = [note for note in error.__notes__ if note.startswith("  aten.index")]
    assert len(listed) == 0, error.__notes__
    assert _place(error)[0] == "_fails"


def check_marks_keep_the_list_short() -> None:
    """Nobody waits for the device here: events tell what is done."""
    with lazyeng.lazy("async"):
        x = torch.ones(3, device="cuda")
        i = torch.tensor([0, 1, 2], device="cuda")
        for _ in range(400):
            x = x[i]
            eventually(x.is_ready)
            time.sleep(0.001)
        bad = _fails(x)
    error = raised_by(bad.wait)
    assert isinstance(error, torch.AcceleratorError)
    lost = next(i for i, note in enumerate(error.__notes__) if "is lost" in note)
    assert len(error.__notes__) <= lost + 4, error.__notes__
    assert any("(10 times)" in note or "times)" in note for note in error.__notes__)


def check_a_wait_for_the_device_can_be_interrupted() -> None:
    x = lazyeng.wrap(torch.ones(3, device="cuda"))
    simulated.hold(0)
    try:
        y = x + 1
        for wait in (y.wait, lazyeng.synchronize):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                wait()
            except KeyboardInterrupt:
                continue
            raise AssertionError("not interrupted")
    finally:
        simulated.let_go()
    assert y.tolist() == [2, 2, 2]


def check_wait_is_until_the_device_is_done() -> None:
    slow(20000)
    x = lazyeng.wrap(torch.ones(3, device="cuda")) + 1
    (x * 2).wait()
    assert simulated.finished() == simulated.launches()
    more = x + 3
    lazyeng.synchronize()
    assert more.is_ready()
    assert simulated.finished() == simulated.launches()


def check_an_unseen_device_failure_is_warned_of_once() -> None:
    """At exit, and the exit status is 0 (run() looks at it)."""
    with lazyeng.lazy("async"):
        bad = _fails(torch.ones(3, device="cuda"))
        eventually(bad.is_ready)


def check_repr_never_waits() -> None:
    x = lazyeng.wrap(torch.ones(3, device="cuda"))
    simulated.hold(0)
    try:
        y = x + 1
        eventually(y.is_ready)
        assert "pending=cuda:0" in repr(y)
    finally:
        simulated.let_go()
    y.wait()
    assert repr(y) == "LazyTensor([2., 2., 2.], device='cuda:0')"
    bad = _fails(x)
    eventually(lambda: "failed=aten::index.Tensor @ cuda_programs.py" in repr(bad))


def _lets_go_of(make: Any) -> None:
    """Of tensors whose memory several streams have used, on a lost device: torch's allocator
    throws where it frees them, which a destructor may not."""
    made = make()
    lazyeng.synchronize()
    raised_by(_fails(lazyeng.wrap(torch.ones(3, device="cuda"))).tolist)
    del made


def check_copies_that_were_written_are_freed_on_a_lost_device() -> None:
    def make() -> torch.Tensor:
        return lazyeng.wrap(torch.ones(4)).to("cuda").add_(1)

    _lets_go_of(make)


def check_what_was_given_out_is_freed_on_a_lost_device() -> None:
    """By the plain tensor, which outlives the lazy one."""

    def make() -> torch.Tensor:
        x = lazyeng.wrap(torch.ones(4, device="cuda"))
        with torch.Stream("cuda:0"):
            made = x + 1
        return lazyeng.unwrap(made)

    _lets_go_of(make)


def check_what_another_stream_has_read_is_freed_on_a_lost_device() -> None:
    def make() -> torch.Tensor:
        made = lazyeng.wrap(torch.ones(4, device="cuda")) + 1
        with torch.Stream("cuda:0"):
            assert made.tolist() == [2] * 4
        return made

    _lets_go_of(make)


# ---- groups as kernels (tests/simulated_cuda/kernels.py)


def _stats(name: str) -> int:
    return lazyeng.engine_stats()[name]


def chain(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu((x + bias) * 0.5).tanh()
    return y, (y * y).mean()


def _on_device(function: Any, *tensors: torch.Tensor, mode: Any = "deferred") -> list[torch.Tensor]:
    with lazyeng.lazy(mode):
        results = function(*(tensor.cuda() for tensor in tensors))
    return [result.cpu() for result in lazyeng.unwrap(results)]


def check_groups_run_as_kernels() -> None:
    """Unfused until the kernels are there, then as kernels, in order with slow kernels of torch."""
    kernels.install()
    slow()
    x, bias = torch.randn(300, 40), torch.randn(40)
    expected = list(chain(x, bias))
    torch.testing.assert_close(_on_device(chain, x, bias), expected)
    assert _stats("groups") == 0
    kernels.wait()
    for mode in ("deferred", "async"):
        before = len(kernels.ran)
        torch.testing.assert_close(_on_device(chain, x, bias, mode=mode), expected)
        if kernels.told:  # the group's and its fold's
            assert len(kernels.ran) == before + 2, (mode, kernels.ran)
    assert _stats("groups") == 2 and (not kernels.told or "aten::tanh" in kernels.ran[-1])


def check_new_sizes_and_numbers_compile_nothing() -> None:
    kernels.install()

    def step(x: torch.Tensor, rate: float) -> torch.Tensor:
        return (x * rate + 1).sqrt() / rate

    for n in (64, 96, 128):
        for rate in (0.5, 0.25):
            for _ in range(2):
                x = torch.rand(n, 16)
                with lazyeng.lazy("deferred"):
                    y = step(x.cuda(), rate)
                torch.testing.assert_close(lazyeng.unwrap(y).cpu(), step(x, rate))
                kernels.wait()
    assert len(kernels.compiled) == 1, [request.text for request in kernels.compiled]
    assert _stats("groups") >= 9


def check_rows_and_views_as_kernels() -> None:
    """Also tensors that do not begin at a multiple of 16 bytes, and writes in place."""
    kernels.install()

    def program(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        y = nn.functional.layer_norm(nn.functional.gelu(x), (70,), weight)
        z = torch.softmax(y, -1)
        x[1:, ::2].mul_(3)
        view = x[1:, 1:].t()
        view.add_(1).div_(2)
        return [y, z, y.sum(-1) * 2, x.clone(), view * 2]

    x, weight = torch.randn(50, 70), torch.randn(70)
    for _ in range(3):
        expected = program(x.clone(), weight)
        torch.testing.assert_close(_on_device(program, x, weight), expected)
        kernels.wait()
    assert not kernels.told or any("ROWS" in text for text in kernels.ran), kernels.ran
    assert _stats("groups") > 5


def check_random_programs_as_kernels() -> None:
    kernels.install()
    for seed in range(12):
        exact = seed % 2 == 0

        def run(wrap: Any, seed: int = seed, exact: bool = exact) -> list[torch.Tensor]:
            return Dag(seed, wrap, exact, FLOATS[:2], rows=not exact).run(3 + seed)

        expected = run(lambda x: x)
        for _ in range(2):
            with lazyeng.lazy("deferred"):
                results = run(lambda x: x.cuda())
            results = [result.cpu() for result in lazyeng.unwrap(results)]
            torch.testing.assert_close(results, expected, equal_nan=True)
            kernels.wait()
    assert _stats("groups") > 12, lazyeng.engine_stats()


def check_training_as_kernels_equals_the_cpu() -> None:
    kernels.install()
    expected_losses, expected_params = _train("cpu")
    for _ in range(2):
        with lazyeng.lazy():
            losses, params = _train("cuda")
        torch.testing.assert_close(losses, expected_losses)
        torch.testing.assert_close(lazyeng.unwrap(params), expected_params)
        kernels.wait()
    assert _stats("groups") > 0


def check_threads_share_kernels() -> None:
    kernels.install()
    x, bias = torch.randn(64, 40), torch.randn(40)
    expected = list(chain(x, bias))
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(6):
                torch.testing.assert_close(_on_device(chain, x, bias), expected)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    for _ in range(2):  # (groups of several threads may have been one)
        kernels.wait()
        torch.testing.assert_close(_on_device(chain, x, bias), expected)
    assert _stats("groups") > 0


def check_several_threads_make_kernels() -> None:
    """As on a machine with many cores."""
    background._how_many = lambda: 3
    kernels.install()
    x = torch.randn(64, 40)

    def program(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        for _ in range(n):
            x = (x * 0.5 + 1).tanh()
        return [x, x.sum(-1)]

    for _ in range(2):
        before = _stats("groups")
        for n in range(1, 9):
            found = _on_device(lambda x, n=n: program(x, n), x)
            torch.testing.assert_close(found, program(x, n))
        kernels.wait()
    assert _stats("groups") >= before + 8
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("lazyeng-compiler") == 3, names


def check_what_cannot_be_compiled_runs_unfused() -> None:
    def refuse(requests: Any) -> Any:
        raise CompileError(f"no room for {len(requests)}")

    kernels.install(refuse)
    x, bias = torch.randn(300, 40), torch.randn(40)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (300, 200, 100):
            torch.testing.assert_close(_on_device(chain, x[:n], bias), list(chain(x[:n], bias)))
            kernels.wait()
    said = [w for w in caught if issubclass(w.category, CompileWarning)]
    assert len(said) == 1 and "no room for 1" in str(said[0].message), caught
    assert _stats("groups") == 0


def check_without_triton_ops_run_one_by_one() -> None:
    kernels.install()
    background.triton_version = lambda: None
    x, bias = torch.randn(300, 40), torch.randn(40)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(_on_device(chain, x, bias), list(chain(x, bias)))
        kernels.wait()
        eventually(lambda: caught)
    assert "Triton is not installed" in str(caught[0].message)
    unfused = _on_device(chain, x, bias)
    torch.testing.assert_close(unfused, list(chain(x, bias)))
    with lazyeng.lazy("deferred"):
        results = chain(x.cuda(), bias.cuda())
        assert all(op.program is None for op in planned().ops)
    del results


def check_a_failure_of_a_kernel_is_one_of_the_members() -> None:
    """The kernel of a group takes the device down: its members are the candidates."""
    kernels.install()
    x, bias = torch.randn(300, 40), torch.randn(40)
    _on_device(chain, x, bias)
    kernels.wait()
    kernels.fail_next()
    with lazyeng.lazy("deferred"):
        y, _ = chain(x.cuda(), bias.cuda())
    error = raised_by(lambda: y.cpu().numpy())
    assert isinstance(error, RuntimeError) and isinstance(error, lazyeng.LazyError)
    text = "".join(traceback.format_exception(error))
    assert "aten.tanh" in text and "chain" in text and "context of cuda:0 is lost" in text, text


def check_a_number_that_does_not_fit_is_the_ops_failure() -> None:
    kernels.install()
    x = torch.zeros(64, dtype=torch.uint8)

    def program(x: torch.Tensor, number: int) -> torch.Tensor:
        return (x + 1).masked_fill(x == 0, number) * 2

    for number in (3, 3, 300):
        with lazyeng.lazy("deferred"):
            y = program(x.cuda(), number)
        kernels.wait()
        if number == 3:
            assert torch.equal(lazyeng.unwrap(y).cpu(), program(x, number))
            kernels.wait()
            continue
        ran = len(kernels.ran)
        raised_by(lambda y=y: y.cpu().numpy())  # (of the op's own kernel, which ran alone)
        assert len(kernels.ran) == ran


def check_the_program_may_end_while_kernels_are_compiled() -> None:
    def never(requests: Any) -> Any:
        time.sleep(1000)

    kernels.install(never)
    x, bias = torch.randn(300, 40), torch.randn(40)
    torch.testing.assert_close(_on_device(chain, x, bias), list(chain(x, bias)))
    eventually(lambda: any(t.name == "lazyeng-compiler" for t in threading.enumerate()))


def check_exact_fusion_is_exact_on_devices_too() -> None:
    lazyeng._C.set_inexact_device_fusion(False)
    with lazyeng.lazy("deferred"):
        x = torch.randn(9, 9).cuda()
        y = (x + 1).exp() * 2 - 1
        groups = [op.ops for op in planned().ops if op.program]
    del y
    assert groups == [["aten::mul.Tensor", "aten::sub.Tensor"]], groups


def check_steps_of_a_loop_are_groups_of_their_own() -> None:
    """Whatever a window holds of them: each other group is another kernel to be compiled."""
    kernels.install()
    x = torch.rand(100, device="cuda")

    def step() -> torch.Tensor:
        y = x
        for _ in range(5):
            y = (y * 0.99 + x).relu() - 0.25
        return y

    expected = step()
    for steps in (1, 2, 3, 4, 5, 7, 1):
        with lazyeng.lazy("deferred"):
            results = [step() for _ in range(steps)]
        for result in results:
            torch.testing.assert_close(lazyeng.unwrap(result), expected)
        kernels.wait()
    assert len(kernels.compiled) == 1, len(kernels.compiled)


def _asked_for_in_vain() -> list[str]:
    """The sources of kernels that are asked for from now on; none is compiled."""
    asked: list[str] = []

    def refuse(requests: Any) -> Any:
        asked.extend(request.text for request in requests)
        raise CompileError("not here")

    warnings.simplefilter("ignore", CompileWarning)
    kernels.install(refuse)
    return asked


def _look_for_pauses_rarely() -> None:
    """A program that has not run for long, on a busy machine, looks as if it had paused: what it
    has recorded is pushed then, wherever that ends."""
    _C.set_window_bounds(256, 1_000_000)  # (the second: microseconds between looks)


def check_no_chain_of_a_heavy_loop_is_cut() -> None:
    """Each piece of one would be another kernel; and the first runs while others are recorded."""
    _look_for_pauses_rarely()
    asked = _asked_for_in_vain()
    x = torch.rand(4 << 20, device="cuda")
    slow(100)
    for round in range(5):
        if round == 1:
            asked.clear()  # (The first call of an op takes its time, which looks like a pause.)
        before = simulated.launches()
        with lazyeng.lazy():
            results = []
            for i in range(16):
                y = x
                for _ in range(5):
                    y = (y * 0.99 + x).relu() - 0.25
                results.append(y)
                if i == 3:
                    eventually(lambda before=before: simulated.launches() > before)
        lazyeng.synchronize()
        kernels.wait()
    assert not asked, [text.count("# aten") for text in asked]


def check_the_last_heavy_step_runs_though_nobody_reads() -> None:
    """What the launching thread leaves of a held window is watched."""
    _C.give_up_device_groups()
    x = torch.rand(4 << 20, device="cuda")
    for _ in range(5):
        with lazyeng.lazy():
            for _ in range(4):
                y: Any = x
                for _ in range(5):
                    y = (y * 0.99 + x).relu() - 0.25
            eventually(lambda y=y: y.is_ready())


def check_any_number_of_heavy_steps_is_one_kernel() -> None:
    """However many of them somebody reads at once, and although they read the same input."""
    _look_for_pauses_rarely()
    asked = _asked_for_in_vain()
    x = torch.rand(24 << 20, device="cuda")
    for mode in ("deferred", "async"):
        for steps in (1, 2, 3, 5):
            with lazyeng.lazy(mode):
                results = [F.silu(x) * x + 1 for _ in range(steps)]
            del results[:-1]
            results[-1][0].item()
            kernels.wait()
    assert len(set(asked)) == 1, asked


def check_numbers_in_masks_are_recorded() -> None:
    """A launch by the program's thread waits for those of the thread that launches."""
    mask = torch.ones(4, 4, device="cuda").tril().bool()
    q = torch.randn(1, 2, 4, 4, device="cuda")

    def step(q: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        y = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return [y, torch.where(mask, 0.5, y), torch.where(mask, y, 2), torch.where(mask, 1.0, 0.0)]

    expected = step(q.cpu(), mask.cpu())
    for _ in range(3):
        with lazyeng.lazy("deferred"):
            before = simulated.launches()
            made = step(q, mask)
            launched = simulated.launches() - before
        torch.testing.assert_close([lazyeng.unwrap(x).cpu() for x in made], expected)
    assert launched == 0, launched


def check_a_full_window_is_grouped_by_a_free_worker() -> None:
    """While the thread that launches is busy: by neither that one nor the one that records."""
    go = threading.Event()

    def digamma(x: torch.Tensor) -> torch.Tensor:
        assert go.wait(30)
        return x + 1

    put_in_place_of_torchs("digamma", digamma)
    x = torch.eye(4, device="cuda")
    go.set()
    with lazyeng.lazy():
        made = torch.digamma(x) @ x
    lazyeng.synchronize()
    go.clear()
    with lazyeng.lazy():
        made = torch.digamma(x)
        time.sleep(0.05)  # (it is being launched)
        others = [x @ x for _ in range(400)]
        eventually(lambda: len(planned().ops) < 256)
        go.set()
    assert made.tolist() == (x + 1).tolist()
    assert all(torch.equal(lazyeng.unwrap(other), x) for other in others)
