"""Programs for a simulated device "cuda" whose ops hand-written kernels run: each `check_...` runs
in a process of its own. The kernels run in Triton's interpreter (tests/simulated_cuda/kernels.py).

Each program runs twice: the first run asks for kernels, torch's own do the work.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lazyeng
from lazyeng.fuse.compiler import CompileError
from lazyeng.torch_patches import fused_adam
from tests.programs.cuda_programs import MODES, slow
from tests.simulated_cuda import kernels
from tests.support.failures import raised_by

aten = torch.ops.aten


def _by_hand() -> int:
    return lazyeng.engine_stats()["hand_written"]


def _values(results: Any) -> list[Any]:
    results = lazyeng.unwrap(results)
    return [None if r is None else r.cpu() for r in results]


def _agree(
    function: Callable[..., Any],
    *tensors: torch.Tensor,
    ops: int = 1,
    names: Sequence[str] = (),
    modes: Sequence[Any] = (),
) -> None:
    """What `function` returns on the device is what it returns on the CPU; in the end so many of
    its ops run as hand-written kernels, those of these names."""
    expected = list(function(*(tensor.clone() for tensor in tensors)))

    def run(mode: Any) -> tuple[int, list[str]]:
        before, ran = _by_hand(), len(kernels.names)
        with lazyeng.lazy(mode):
            results = function(*(tensor.cuda() for tensor in tensors))
        torch.testing.assert_close(_values(results), expected, equal_nan=True)
        kernels.wait()
        return _by_hand() - before, kernels.names[ran:]

    # The first call of some ops finds out what they return; the next one asks for kernels.
    for mode in ("deferred", "deferred", *modes):
        run(mode)
    for _ in range(5):  # (a worker may take the first of a pair before the second is there)
        last = run("deferred")
        if last[0] == ops and (not names or not kernels.told or last[1] == list(names)):
            return
    raise AssertionError(last)


def _ran(names: set[str]) -> None:
    assert not kernels.told or names <= {*kernels.names}, kernels.names


# ---- one op at a time


def check_layer_norm_and_its_backward() -> None:
    kernels.install()
    slow()
    x, dy = torch.randn(36, 40), torch.randn(36, 40)
    weight, bias = torch.randn(40), torch.randn(40)

    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return aten.native_layer_norm(x, [40], weight, bias, 1e-3)

    _agree(forward, x, weight, bias, names=["layer_norm_kernel"], modes=MODES[:2])
    _, mean, rstd = forward(x, weight, bias)
    backward = aten.native_layer_norm_backward
    sums = ["layer_norm_partials_kernel", "column_sums_kernel"]
    for mask, names in (
        ([True, True, True], ["layer_norm_dx_kernel", *sums, "column_sums_kernel"]),
        ([False, True, False], sums),
        ([True, False, False], ["layer_norm_dx_kernel"]),
    ):

        def gradients(*tensors: torch.Tensor, mask: list[bool] = mask) -> Any:
            dy, x, mean, rstd, weight, bias = tensors
            return backward(dy, x, [40], mean, rstd, weight, bias, mask)

        _agree(gradients, dy, x, mean, rstd, weight, bias, names=names)


def check_rms_norm_and_its_backward() -> None:
    kernels.install()
    slow()
    x, dy, weight = torch.randn(70, 40), torch.randn(70, 40), torch.randn(40)

    for eps in (None, 0.1):
        names = ["rms_norm_kernel"] * 2

        def forward(x: torch.Tensor, w: torch.Tensor, eps: float | None = eps) -> Any:
            return [F.rms_norm(x, [40], w, eps), F.rms_norm(x, [40], None, eps)]

        _agree(forward, x, weight, ops=2, names=names, modes=MODES[:2])

    def gradients(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> Any:
        x, weight = x.requires_grad_(), weight.requires_grad_()
        return torch.autograd.grad(F.rms_norm(x, [40], weight), (x, weight), dy)

    sums = ["rms_norm_partials_kernel", "column_sums_kernel"]
    _agree(gradients, x, weight, dy, ops=2,
           names=["rms_norm_kernel", "rms_norm_dx_kernel", *sums])  # fmt: skip


def check_softmax_of_any_length() -> None:
    """Generated code has rows of 32 to 32,768 elements, in groups of two or more ops."""
    kernels.install()
    for n in (3, 40, 17000):
        x, dy = torch.randn(5, n), torch.randn(5, n)
        _agree(lambda x: [x.softmax(-1)], x)
        _agree(lambda x: [x.log_softmax(1)], x)
        for log, op in ((0, aten._softmax_backward_data), (1, aten._log_softmax_backward_data)):
            y = x.log_softmax(-1) if log else x.softmax(-1)
            _agree(lambda dy, y, op=op: [op(dy, y, 1, torch.float32)], dy, y)
    _ran({"softmax_online_kernel", "softmax_backward_long_kernel"})


def check_dropout_draws_what_torchs_kernel_draws() -> None:
    """Of each width of vectors, from the same generator: in the order of the program, whoever of
    the two draws, and the offset moves on as far."""
    kernels.install()
    slow()
    simulated = torch.ops.simulated_cuda
    tensors = [torch.randn(n).to(dtype).cuda()
               for n, dtype in ((40, torch.float32), (9002, torch.float32), (33001, torch.float32),
                                (40008, torch.bfloat16), (4100, torch.float16),
                                (5000, torch.float64))]  # fmt: skip

    def draw() -> list[torch.Tensor]:
        simulated.manual_seed(0, 2**62 + 5)
        results = []
        for p in (0.5, 0.1):
            for x in tensors:
                results += aten.native_dropout(x, p, True)
                results += aten.native_dropout(x[1:], p, True)  # (not aligned: torch's own)
        return results

    expected, offset = [x.cpu() for x in draw()], simulated.offset(0)
    for _ in range(3):
        before = _by_hand()
        with lazyeng.lazy("deferred"):
            results = draw()
        for ours, theirs in zip(_values(results), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert simulated.offset(0) == offset
        kernels.wait()
    assert _by_hand() - before == 2 * len(tensors), _by_hand() - before


def check_dropout_without_a_draw_is_torchs() -> None:
    """With a p of 1, which is a number that kernels are not asked for anew."""
    kernels.install()
    x = torch.randn(64).cuda()
    for p, train in ((1.0, True), (0.5, False), (0.5, True)):
        for _ in range(3):
            with lazyeng.lazy("deferred"):
                y, mask = aten.native_dropout(x, p, train)
            kept = _values([mask])[0]
            scale = 2 if p < 1 and train else 1
            torch.testing.assert_close(_values([y])[0], x.cpu() * kept * scale)
            kernels.wait()
        assert bool(kept.all()) == (not train) and bool(kept.any()) == (p < 1)
        assert bool(_by_hand()) == (p < 1 and train)


def check_dropout_of_another_torch_is_torchs() -> None:
    """The numbers are compared before the kernel is chosen."""
    from lazyeng.fuse.chosen import dropout

    kernels.install()
    dropout.SEED += 1
    x = torch.randn(4096).cuda()
    for _ in range(3):
        with lazyeng.lazy("deferred"):
            y, _ = aten.native_dropout(x, 0.5, True)
        _values([y])
        kernels.wait()
    assert _by_hand() == 0


def check_nll_loss_and_its_backward() -> None:
    kernels.install()
    n, few, classes = 1500, 40, 7  # (more than a block; the backward has a program for each row)
    x, weight = torch.randn(n, classes).log_softmax(-1), torch.rand(classes)
    labels = torch.randint(classes, (n,))
    labels[::5] = -100
    for reduction in (0, 1, 2):
        for w in (None, weight):

            def forward(x: torch.Tensor, y: torch.Tensor, *w: Any, r: int = reduction) -> Any:
                return aten.nll_loss_forward(x, y, *(w or (None,)), r, -100)

            given = [x, labels] if w is None else [x, labels, w]
            _agree(forward, *given, names=["nll_loss_kernel"])
            given[:2] = x[:few], labels[:few]
            loss, total = forward(*given)

            def backward(
                dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor, total: torch.Tensor, *w: Any,
                r: int = reduction,
            ) -> Any:  # fmt: skip
                return [aten.nll_loss_backward(dy, x, y, *(w or (None,)), r, -100, total)]

            _agree(backward, torch.rand(loss.shape), *given[:2], total, *given[2:],
                   names=["nll_loss_backward_kernel"])  # fmt: skip


def check_cross_entropy_backward_is_one_kernel() -> None:
    """Also of the labels that are ignored, and with weights of the classes."""
    kernels.install()
    slow()
    x, weight = torch.randn(60, 50), torch.rand(50)
    labels = torch.randint(50, (60,))
    labels[::7] = -100
    names = ["softmax_kernel", "nll_loss_kernel", "nll_log_softmax_backward_kernel"]

    for reduction in ("mean", "sum", "none"):

        def program(
            x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, r: str = reduction
        ) -> list[torch.Tensor]:
            x = x.detach().requires_grad_()
            loss = F.cross_entropy(x, y, w, reduction=r)
            return [loss.detach(), *torch.autograd.grad(loss, x, torch.ones_like(loss))]

        _agree(program, x, labels, weight, ops=4, names=names, modes=["async"])
    assert lazyeng.engine_stats()["groups"] > 0


def check_a_pair_whose_middle_is_wanted_is_two_ops() -> None:
    kernels.install()
    x, labels = torch.randn(20, 50).log_softmax(-1), torch.randint(50, (20,))
    total = torch.tensor(20.0)

    def program(x: torch.Tensor, y: torch.Tensor, total: torch.Tensor) -> list[torch.Tensor]:
        dy = aten.nll_loss_backward(total, x, y, None, 1, -100, total)
        return [dy, aten._log_softmax_backward_data(dy, x, 1, torch.float32)]

    _agree(program, x, labels, total, ops=2,
           names=["nll_loss_backward_kernel", "softmax_backward_kernel"])  # fmt: skip


def check_a_linear_layer_and_its_activation_are_one_kernel() -> None:
    kernels.install()
    slow()
    x, weight, bias = torch.randn(33, 20), torch.randn(50, 20), torch.randn(50)
    name = ["linear_act_kernel"]
    activations: dict[str, Callable[..., torch.Tensor]] = {
        "relu": F.relu,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }
    for act in activations.values():
        _agree(lambda x, w, b, act=act: [act(F.linear(x, w, b))], x, weight, bias, ops=2,
               names=name, modes=["async"])  # fmt: skip
        _agree(lambda x, w, b, act=act: [act(F.linear(x.view(3, 11, 20), w, b))], x, weight, bias,
               ops=2, names=name)  # fmt: skip

    def with_middle(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        z = F.linear(x, w, b)
        return [z, F.gelu(z)]

    _agree(with_middle, x, weight, bias, ops=2, names=name)


def check_products_that_are_torchs() -> None:
    """Long sums, and other numbers than 1 in front of the parts."""
    kernels.install()
    x, weight, bias = torch.randn(5, 300), torch.randn(300, 7), torch.randn(7)
    _agree(lambda b, x, w: [torch.addmm(b, x, w).relu()], bias, x, weight, ops=0)
    _agree(lambda b, x, w: [torch.addmm(b, x[:, :9], w[:9], alpha=2).relu()], bias, x, weight,
           ops=0)  # fmt: skip
    _agree(lambda b, x, w: [torch.addmm(b, x[:, :9], w[:9]).relu()], bias, x, weight, ops=2)
    _ran({"linear_act_kernel"})
    assert len({*kernels.names}) <= 1, kernels.names


# ---- optimizers


def _lists(n: int) -> list[torch.Tensor]:
    sizes = [(3,), (50, 130), (1,), (9000,), (2, 3, 4)]
    return [torch.rand(size) for size in sizes for _ in range(n)]


def _infinite(tensors: list[torch.Tensor], n: int) -> list[torch.Tensor]:
    """With an infinite parameter, such as a mask."""
    tensors[0][0] = -torch.inf
    tensors[n][0, 1] = torch.inf
    return tensors


def _optimize(op: Any, n_lists: int, steps: bool, **options: Any) -> Callable[..., Any]:
    def step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        lists = [list(tensors[i::n_lists]) for i in range(n_lists)]
        if steps:
            counts = [torch.full((), 3.0, device=tensors[0].device) for _ in lists[0]]
            lists = [*lists[:4], lists[4] if options["amsgrad"] else [], counts]
        for lr in (0.1, 0.2):  # (another number needs no other kernel)
            op(*lists, lr=lr, **options)
        return [tensor for tensors in lists for tensor in tensors]

    return step


def check_fused_adam_and_adamw() -> None:
    kernels.install()
    options = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6}
    for op in (aten._fused_adamw_.default, aten._fused_adam_.default):
        for amsgrad, maximize in ((False, False), (True, True)):
            step = _optimize(op, 5, True, amsgrad=amsgrad, maximize=maximize, **options)
            _agree(step, *_lists(5), ops=2, names=["adamw_counted_kernel"] * 2)
        without = options | {"weight_decay": 0.0}
        step = _optimize(op, 5, True, amsgrad=False, maximize=False, **without)
        _agree(step, *_infinite(_lists(5), 5), ops=2, names=["adamw_counted_kernel"] * 2)


def check_fused_sgd() -> None:
    kernels.install()
    options = {"weight_decay": 0.1, "dampening": 0.3, "maximize": False}
    for first in (True, False):
        step = _optimize(aten._fused_sgd_.default, 3, False, momentum=0.9, nesterov=False,
                         is_first_step=first, **options)  # fmt: skip
        _agree(step, *_lists(3), ops=2, names=["sgd_kernel"] * 2)
        step = _optimize(aten._fused_sgd_.default, 3, False, momentum=0.9, nesterov=False,
                         is_first_step=first, **(options | {"weight_decay": 0.0}))  # fmt: skip
        _agree(step, *_infinite(_lists(3), 3), ops=2, names=["sgd_kernel"] * 2)
    op = aten._fused_sgd_.default

    def plain(*tensors: torch.Tensor) -> list[torch.Tensor]:
        lists = [list(tensors[i::2]) for i in range(2)]
        op(*lists, [], lr=0.1, momentum=0.0, nesterov=False, is_first_step=False, **options)
        return [tensor for tensors in lists for tensor in tensors]

    _agree(plain, *_lists(2), names=["sgd_kernel"])


def _foreach_adamw(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """As torch.optim does it by default on CUDA."""
    params, grads, means, squares = (list(tensors[i::4]) for i in range(4))
    torch._foreach_mul_(params, 1 - 0.1 * 0.01)
    torch._foreach_lerp_(means, grads, 0.1)
    torch._foreach_mul_(squares, 0.99)
    torch._foreach_addcmul_(squares, grads, grads, 0.01)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, [0.5 + i / 10 for i in range(len(roots))])
    torch._foreach_add_(roots, 1e-6)
    torch._foreach_addcdiv_(params, means, roots, [-0.1 - i / 10 for i in range(len(roots))])
    return [*params, *means, *squares]


def check_a_chain_over_lists_is_one_kernel() -> None:
    kernels.install()
    slow()
    _agree(_foreach_adamw, *_lists(4), ops=8, names=["list_kernel"], modes=["async"])
    if kernels.told:
        text = kernels.ran[-1]
        assert text.count("tl.store(") == 3, text  # (not the roots)

    def functional(*tensors: torch.Tensor) -> list[torch.Tensor]:
        a, b = list(tensors[::2]), list(tensors[1::2])
        sums = torch._foreach_add(a, b, alpha=3)
        halves = torch._foreach_mul(sums, 0.5)
        return [*sums, *torch._foreach_maximum(halves, b)]

    _agree(functional, *_lists(2), ops=3, names=["list_kernel"])
    half = [tensor.half() for tensor in _lists(2)]
    _agree(functional, *half, ops=3, names=["list_kernel"])


def _random_lists(seed: int, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Ops over lists, and among them ops on single tensors of the lists."""
    random = Random(seed)
    lists = [list(tensors[i::3]) for i in range(3)]
    for _ in range(12):
        a, b, c = (random.choice(lists) for _ in range(3))
        match random.randrange(8):
            case 0:
                torch._foreach_add_(a, b, alpha=random.choice([1, 0.5]))
            case 1:
                torch._foreach_lerp_(a, b, random.random())
            case 2:
                torch._foreach_addcmul_(a, b, c, value=0.1)
            case 3:
                torch._foreach_mul_(a, [random.random() for _ in a])
            case 4:
                lists[random.randrange(3)] = list(torch._foreach_maximum(a, b))
            case 5:
                torch._foreach_div_(a, 3.0)
            case 6:
                torch._foreach_neg_(a)
            case _:
                a[random.randrange(len(a))].sub_(b[0].sum() * 0.01)
    return [tensor for tensors in lists for tensor in tensors]


def check_random_chains_over_lists() -> None:
    kernels.install()
    for seed in range(15):
        tensors = [torch.randn(size) for size in ((3,), (50, 30), (1,), (4500,)) for _ in range(3)]
        expected = _random_lists(seed, *(tensor.clone() for tensor in tensors))
        for mode in ("deferred", "deferred", "async"):
            with lazyeng.lazy(mode):
                results = _random_lists(seed, *(tensor.cuda() for tensor in tensors))
            torch.testing.assert_close(_values(results), expected, msg=f"{seed} {mode}")
            kernels.wait()
    assert _by_hand() > 100, _by_hand()


def check_chains_over_lists_that_are_torchs() -> None:
    """Other shapes side by side, and a tensor at another place of a list."""
    kernels.install()
    a, b = torch.randn(4, 5), torch.randn(4, 5)

    def broadcast(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        tensors = [a, b[0]]
        torch._foreach_mul_(tensors, [b, b[1]])
        torch._foreach_add_(tensors, 1.0)
        return tensors

    _agree(broadcast, a, b, ops=0)

    def crossed(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        torch._foreach_mul_([a, b], 2.0)
        torch._foreach_add_([b, a], 1.0)
        torch._foreach_sub_([b, a], 1.0)
        torch._foreach_add_([a, b], [b * 2, a * 2])
        return [a, b]

    _agree(crossed, a, b, ops=2)

    def overlapping(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        flat = a.flatten()
        others = [b.flatten()[1:], b.flatten()[1:] * 2]
        torch._foreach_mul_([flat[1:], flat[:-1]], 2.0)  # (most elements twice)
        torch._foreach_add_(others, 1.0)
        return [a, *others]

    _agree(overlapping, a, b, ops=0)


# ---- what decides


def check_strided_and_other_inputs_are_torchs() -> None:
    kernels.install()
    x = torch.randn(8, 40)
    _agree(lambda x: [x.t().softmax(-1)], x, ops=0)
    _agree(lambda x: [x.softmax(0)], x, ops=0)
    _agree(lambda x: [x[:0].softmax(-1)], x, ops=0)
    assert not kernels.names


def check_unaligned_inputs() -> None:
    kernels.install()
    x = torch.randn(9 * 40 + 1)
    _agree(lambda x: [x[1:].view(9, 40).softmax(-1)], x)
    _agree(lambda x: [x[:-1].view(9, 40).softmax(-1)], x)
    aligned = [request.divisible_by_16 for request in kernels.compiled]
    assert aligned == [("y_ptr",), ("x_ptr", "y_ptr")], aligned


def check_other_sizes_and_numbers_compile_nothing() -> None:
    kernels.install()
    for rows in (3, 5, 7):
        for columns in (40, 41, 50):
            for eps in (1e-5, 1e-2):
                x = torch.randn(rows, columns)
                _agree(lambda x, c=columns, e=eps: [F.layer_norm(x, [c], eps=e)], x)
    assert len(kernels.compiled) == 1, kernels.compiled


def check_each_device_has_its_kernels() -> None:
    kernels.install()
    x = torch.randn(4, 40)
    for _ in range(3):
        before = _by_hand()
        with lazyeng.lazy("deferred"):
            ys = [x.to(f"cuda:{i}").softmax(-1) for i in (0, 1)]
        torch.testing.assert_close(_values(ys), [x.softmax(-1)] * 2)
        kernels.wait()
    assert _by_hand() == before + 2
    assert [y.device.index for y in ys] == [0, 1]


def check_dtypes() -> None:
    kernels.install()
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        x, weight = torch.randn(6, 40).to(dtype), torch.randn(40).to(dtype)
        for program in (
            lambda x, w: [F.layer_norm(x, [40], w)],
            lambda x, w: [x.softmax(-1)],
        ):
            for _ in range(3):
                before = _by_hand()
                with lazyeng.lazy("deferred"):
                    (y,) = program(x.cuda(), weight.cuda())
                y = _values([y])[0]
                kernels.wait()
            assert _by_hand() == before + 1, (dtype, kernels.names)
            narrow = dtype.itemsize == 2  # (torch rounds at the end too: neighbours at most)
            (expected,) = program(x.float(), weight.float()) if narrow else program(x, weight)
            assert y.dtype == dtype
            tolerance = 2e-2 if narrow else 1e-9
            torch.testing.assert_close(y.to(expected.dtype), expected, rtol=tolerance,
                                       atol=tolerance)  # fmt: skip


def check_exact_fusion_leaves_ops_to_torch() -> None:
    kernels.install()
    lazyeng._C.set_inexact_device_fusion(False)
    _agree(lambda x: [x.softmax(-1)], torch.randn(4, 40), ops=0)
    assert not kernels.compiled


def check_fusion_that_is_off_leaves_ops_to_torch() -> None:
    """(The environment says so: tests/test_hand_written.py.)"""
    kernels.install()
    _agree(lambda x: [x.softmax(-1)], torch.randn(4, 40), ops=0)
    assert not kernels.compiled


def check_what_is_switched_off_after_the_import() -> None:
    """The environment counts as it is when lazyeng is first used."""
    os.environ["LAZYENG_FUSION"] = "off"
    check_fusion_that_is_off_leaves_ops_to_torch()


def check_what_cannot_be_compiled_is_torchs() -> None:
    def refuse(requests: Any) -> Any:
        raise CompileError(f"no room for {len(requests)}")

    kernels.install(refuse)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (40, 50):
            _agree(lambda x: [x.softmax(-1)], torch.randn(4, n), ops=0)
    assert len([w for w in caught if "no room for 1" in str(w.message)]) == 1, caught


@contextlib.contextmanager
def _stderr() -> Iterator[io.StringIO]:
    """What is written to the file 2, by C++ too."""
    text = io.StringIO()
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text.write(file.read().decode())


def check_the_log_names_kernels() -> None:
    kernels.install()
    x = torch.randn(4, 40)
    _agree(lambda x: [F.layer_norm(x, [40])], x)
    lazyeng._C.set_fusion_log(True)
    with _stderr() as text:
        _agree(lambda x: [F.layer_norm(x, [40])], x)
    lines = [line for line in text.getvalue().splitlines() if "hand-written" in line]
    told = r"1 op, \d+ elements, 0 bytes not written, hand-written layer_norm_kernel: native_layer"
    assert re.search(told, lines[0]), text.getvalue()


# ---- failures


def _label_out_of_range() -> Exception:
    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return aten.nll_loss_forward(x, labels, None, 1, -100)[0]

    x, labels = torch.randn(6, 5), torch.arange(6) % 5
    _agree(lambda x, y: [loss(x, y)], x, labels)
    labels[3] = 5
    with lazyeng.lazy("deferred"):
        y = loss(x.cuda(), labels.cuda())
    return raised_by(lambda: y.cpu().numpy())


def check_a_label_out_of_range_is_the_ops_failure() -> None:
    kernels.install()
    error = _label_out_of_range()
    assert isinstance(error, lazyeng.LazyError) and isinstance(error, RuntimeError), repr(error)
    assert error.op == "aten.nll_loss_forward", error.op
    assert any("context of cuda:0 is lost" in note for note in error.__notes__), error.__notes__


def check_a_kernel_that_fails_names_its_op() -> None:
    kernels.install()
    x = torch.randn(4, 40)
    _agree(lambda x: [F.layer_norm(x, [40])], x)
    kernels.fail_next()
    with lazyeng.lazy("deferred"):
        y = F.layer_norm(x.cuda(), [40])
    error = raised_by(lambda: y.cpu().numpy())
    assert isinstance(error, lazyeng.LazyError)
    assert any("  aten.native_layer_norm(" in note for note in error.__notes__), error.__notes__


# ---- training


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 40)
        self.norm, self.rms = nn.LayerNorm(40), nn.RMSNorm(40)
        self.out = nn.Linear(40, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rms(self.norm(self.into(x)) * 0.5))


def _train(device: str, optimizer: Any, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = _Net().to(device)
    update = optimizer(model.parameters(), lr=0.01, **options)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(4):
        x = torch.randn(12, 8, generator=generator).to(device)
        y = torch.randint(0, 5, (12,), generator=generator).to(device)
        loss = F.cross_entropy(model(x), y)
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def _check_training(optimizer: Any, used: set[str], **options: Any) -> None:
    kernels.install()
    expected = _train("cpu", optimizer, **options)
    for mode in ("async", "async", "deferred"):
        with lazyeng.lazy(mode):
            results = _train("cuda", optimizer, **options)
        torch.testing.assert_close(_values(results), expected, rtol=1e-4, atol=1e-5)
        kernels.wait()
    _ran(used)


NORMS = {"layer_norm_dx_kernel", "rms_norm_dx_kernel", "nll_loss_kernel", "column_sums_kernel"}


def check_training_with_adamw() -> None:
    """(lazyeng/torch_patches/fused_adam.py)"""
    _check_training(torch.optim.AdamW, {*NORMS, "adamw_counted_kernel"})


def check_training_with_adamw_over_lists() -> None:
    """(By default torch.optim has lists; so do we, where last bits must be eager's.)"""
    fused_adam.enable(False)
    _check_training(torch.optim.AdamW, {*NORMS, "list_kernel"})


def check_training_with_sgd() -> None:
    _check_training(torch.optim.SGD, {*NORMS, "list_kernel"}, momentum=0.9, weight_decay=0.1)


def check_training_with_fused_adamw() -> None:
    _check_training(torch.optim.AdamW, {*NORMS, "adamw_counted_kernel"}, fused=True)


def _adam_steps(device: str, make: Any, dtype: torch.dtype, lazy: Any) -> list[Any]:
    """What is there after five steps of four parameters, one without a gradient in the first."""
    generator = torch.Generator().manual_seed(2)
    shapes: list[tuple[int, ...]] = [(), (3,), (5, 7), (2, 3, 4, 4)]
    params = [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]
    params[3] = params[3].to(memory_format=torch.channels_last)
    params = [nn.Parameter(p.to(device)) for p in params]
    if lazy == "wrap":
        params = [lazyeng.wrap(p) for p in params]
    optimizer = make([{"params": params[:2]}, {"params": params[2:], "lr": 0.05}])
    for step in range(5):
        with lazyeng.lazy(lazy) if lazy in MODES else contextlib.nullcontext():
            for i, p in enumerate(params):
                grad = torch.randn(p.shape, dtype=dtype, generator=generator).to(device)
                p.grad = None if step == 0 and i == 2 else torch.empty_like(p).copy_(grad)
            versions = [p.grad._version for p in params if p.grad is not None]
            optimizer.step()
            # (By fused=True the gradients count as written.)
            assert versions == [p.grad._version for p in params if p.grad is not None]
    states = [optimizer.state[p] for p in params]
    assert all(state["step"].is_cpu for state in states)
    kept = [value for state in states for _, value in sorted(state.items())]
    return _values([*(p.detach() for p in params), *kept])


def check_each_kind_of_adam() -> None:
    """Its state is that of torch's default, and so are gradients."""
    kernels.install()
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (torch.optim.Adam, {}), (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
        (torch.optim.AdamW, {"maximize": True, "betas": (0.5, 0.7), "eps": 1e-3}),
        (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.2}),
    ]  # fmt: skip
    for optimizer, options in kinds:
        for dtype in (torch.float32, torch.float64):
            make = functools.partial(optimizer, lr=0.1, **options)
            expected = _adam_steps("cpu", make, dtype, None)
            for lazy in ("async", "deferred", "sync", "wrap"):
                found = _adam_steps("cuda", make, dtype, lazy)
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
                kernels.wait()
    _ran({"adamw_counted_kernel"})


def check_adam_that_does_not_fit_is_torchs() -> None:
    """Gradients in another order than the parameter, dtypes in which the op rounds less often,
    counters on the device, numbers that are tensors."""
    recorded, record = [], fused_adam._record

    def count(*lists: Any, **options: Any) -> None:
        recorded.append(len(lists[0]))
        record(*lists, **options)

    fused_adam._record = count

    def step(device: str, turned: bool = False, dtype: Any = None, **options: Any) -> list[Any]:
        p = nn.Parameter(torch.arange(6.0, dtype=dtype).view(2, 3).to(device))
        p.grad = torch.ones(3, 2, device=device, dtype=dtype).t() if turned else torch.ones_like(p)
        torch.optim.Adam([p], **options).step()
        return _values([p.detach()])

    for unfit in (True, False):
        for options in ({"turned": True}, {"dtype": torch.bfloat16}, {"capturable": True}):
            options = options if unfit else {}
            expected = step("cpu", **(options if "capturable" not in options else {}))
            with lazyeng.lazy("deferred"):
                found = step("cuda", **options)
            torch.testing.assert_close(found, expected)
            assert bool(recorded) != unfit, options
    with lazyeng.lazy("deferred"):
        error = raised_by(lambda: step("cuda", lr=torch.tensor(0.1), foreach=True))
    assert "lr as a Tensor is not supported" in str(error)


def check_lists_of_gradients_are_lists_to_torch() -> None:
    """Clipping calls ops over lists on an accelerator, of lazy tensors too."""
    params = [nn.Parameter(torch.ones(3, device="cuda")) for _ in range(20)]
    for p in params:
        p.grad = torch.full((3,), 2.0, device="cuda")
    before = lazyeng.engine_stats()["recorded"]
    with lazyeng.lazy("deferred"):
        for p in params:
            p.grad = lazyeng.wrap(p.grad)
        norm = nn.utils.clip_grad_norm_(params, 1.0)
    assert abs(norm.item() - 240**0.5) < 1e-4
    assert lazyeng.engine_stats()["recorded"] - before < 20


def check_backward_runs_in_the_thread_that_asks() -> None:
    threads = set()
    p = nn.Parameter(torch.ones(3, device="cuda"))
    with lazyeng.lazy():
        y = p * 2
        y.register_hook(lambda _: threads.add(threading.get_ident()))
        y.sum().backward()
    assert threads == {threading.get_ident()}
    assert torch._C._is_multithreading_enabled()


def check_training_with_fused_sgd() -> None:
    _check_training(torch.optim.SGD, {*NORMS, "sgd_kernel"}, fused=True, momentum=0.9)
