"""The Triton kernels against torch's own ops on a GPU: GB/s, or TFLOP/s for products.

Method. `triton.testing.do_bench`: the median over about 0.1 s of calls, with the L2 cache cleared
before each. Bandwidth counts each input and output once, whatever a kernel really moves, so both
columns of a row divide the same number of bytes by their time. Small tensors are no use here: they
measure the launch.
"""

from __future__ import annotations

import argparse
import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    unit: str  # of `work`: "GB/s" counts bytes, "TFLOP/s" operations
    work: int
    ours: Callable[[], object]
    theirs: Callable[[], object]


def pointwise_and_rows(x: torch.Tensor) -> Iterator[Case]:
    """x [rows, columns]."""
    from lazyeng.triton_kernels import dropout, layer_norm, rms_norm, softmax

    size, shape = x.nbytes, (x.shape[1],)
    w, b = torch.rand_like(x[0]), torch.rand_like(x[0])
    y, dy = F.softmax(x, -1), torch.rand_like(x)
    aten = torch.ops.aten
    yield Case("softmax", "GB/s", 2 * size, lambda: softmax.softmax_forward(x, False),
               lambda: F.softmax(x, -1))  # fmt: skip
    yield Case("softmax backward", "GB/s", 3 * size,
               lambda: softmax.softmax_backward(dy, y, False),
               lambda: aten._softmax_backward_data(dy, y, -1, x.dtype))  # fmt: skip
    logs = F.log_softmax(x, -1)
    yield Case("log_softmax", "GB/s", 2 * size, lambda: softmax.softmax_forward(x, True),
               lambda: F.log_softmax(x, -1))  # fmt: skip
    yield Case("log_softmax backward", "GB/s", 3 * size,
               lambda: softmax.softmax_backward(dy, logs, True),
               lambda: aten._log_softmax_backward_data(dy, logs, -1, x.dtype))  # fmt: skip
    yield Case("layer_norm", "GB/s", 2 * size,
               lambda: layer_norm.layer_norm_forward(x, shape, w, b),
               lambda: torch.native_layer_norm(x, shape, w, b, 1e-5))  # fmt: skip
    _, mean, rstd = layer_norm.layer_norm_forward(x, shape, w, b)
    # (torch's CPU kernel, which only the test runs, wants the statistics in x's dtype.)
    statistics = (mean, rstd) if x.is_cuda else (mean.to(x.dtype), rstd.to(x.dtype))
    yield Case("layer_norm backward", "GB/s", 3 * size,
               lambda: (layer_norm.layer_norm_backward(dy, x, shape, mean, rstd, w),
                        layer_norm.layer_norm_backward_weight(dy, x, shape, mean, rstd)),
               lambda: aten.native_layer_norm_backward(
                   dy, x, shape, *statistics, w, b, [True, True, True]))  # fmt: skip
    yield Case("rms_norm", "GB/s", 2 * size, lambda: rms_norm.rms_norm_forward(x, shape, w, None),
               lambda: F.rms_norm(x, shape, w))  # fmt: skip
    leaves = [t.detach().requires_grad_() for t in (x, w)]
    normal = F.rms_norm(leaves[0], shape, leaves[1])
    _, rstd = rms_norm.rms_norm_forward(x, shape, w, None)
    yield Case("rms_norm backward", "GB/s", 3 * size,
               lambda: (rms_norm.rms_norm_backward(dy, x, shape, rstd, w),
                        rms_norm.rms_norm_backward_weight(dy, x, shape, rstd)),
               lambda: torch.autograd.grad(normal, leaves, dy, retain_graph=True))  # fmt: skip
    yield Case("dropout", "GB/s", 2 * size, lambda: dropout.dropout_forward(x, 0.1, 1, 0),
               lambda: F.dropout(x, 0.1))  # fmt: skip


def losses(logits: torch.Tensor) -> Iterator[Case]:
    """logits [rows, classes]; the backward runs through autograd."""
    from lazyeng.triton_kernels import nll_loss
    from lazyeng.triton_kernels.cross_entropy import cross_entropy

    labels = torch.randint(logits.shape[1], logits.shape[:1], device=logits.device)
    leaf = logits.detach().requires_grad_()
    ours, theirs = cross_entropy(leaf, labels), F.cross_entropy(leaf, labels)
    yield Case("cross_entropy", "GB/s", logits.nbytes, lambda: cross_entropy(logits, labels),
               lambda: F.cross_entropy(logits, labels))  # fmt: skip
    yield Case("cross_entropy backward", "GB/s", 2 * logits.nbytes,
               lambda: torch.autograd.grad(ours, leaf, retain_graph=True),
               lambda: torch.autograd.grad(theirs, leaf, retain_graph=True))  # fmt: skip
    aten = torch.ops.aten
    x, options = logits.log_softmax(-1), (None, 1, -100)
    loss, total = aten.nll_loss_forward(x, labels, *options)
    # (Of a row the forward reads but the label's element.)
    yield Case("nll_loss", "GB/s", len(x) * (x.element_size() + labels.element_size()),
               lambda: nll_loss.nll_loss_forward(x, labels, *options),
               lambda: aten.nll_loss_forward(x, labels, *options))  # fmt: skip
    yield Case("nll_loss backward", "GB/s", logits.nbytes,
               lambda: nll_loss.nll_loss_backward(loss, x, labels, *options, total),
               lambda: aten.nll_loss_backward(loss, x, labels, *options, total))  # fmt: skip
    yield Case("nll_loss + log_softmax backward", "GB/s", 2 * logits.nbytes,
               lambda: nll_loss.nll_log_softmax_backward(loss, x, labels, *options, total),
               lambda: aten._log_softmax_backward_data(
                   aten.nll_loss_backward(loss, x, labels, *options, total), x, 1,
                   x.dtype))  # fmt: skip


def products(x: torch.Tensor) -> Iterator[Case]:
    """x [n, n]."""
    from lazyeng.triton_kernels.linear_act import act_backward, linear_act

    bias = torch.rand_like(x[0])
    yield Case("linear_act gelu", "TFLOP/s", 2 * x.shape[0] ** 3,
               lambda: linear_act(x, x, bias, "gelu"),
               lambda: F.gelu(F.linear(x, x, bias)))  # fmt: skip
    yield Case("linear_act backward gelu", "GB/s", 3 * x.nbytes,
               lambda: act_backward(x, x, "gelu"),
               lambda: torch.ops.aten.gelu_backward(x, x))  # fmt: skip


def optimizers(params: list[torch.Tensor]) -> Iterator[Case]:
    """Against torch's fused optimizers; steps differ, their work does not."""
    from lazyeng.triton_kernels import adamw, sgd

    size = sum(param.nbytes for param in params)
    grads, first, second = ([torch.rand_like(p) for p in params] for _ in range(3))
    leaves = [torch.nn.Parameter(p.clone()) for p in params]
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.grad = grad
    yield Case("adamw", "GB/s", 7 * size,
               lambda: adamw.adamw_step(params, grads, first, second, step=10),
               torch.optim.AdamW(leaves, fused=True).step)  # fmt: skip
    yield Case("sgd with momentum", "GB/s", 5 * size,
               lambda: sgd.sgd_step(params, grads, first, lr=1e-3, momentum=0.9),
               torch.optim.SGD(leaves, lr=1e-3, momentum=0.9, fused=True).step)  # fmt: skip


def chosen_optimizers(params: list[torch.Tensor]) -> Iterator[Case]:
    """What lazyeng runs in place of torch.optim's ops: with `fused=True`, and without (a chain over
    lists). Each side has its own parameters and states."""
    from benchmarks.chosen import chosen

    size = sum(param.nbytes for param in params)
    grads, first, second = ([torch.rand_like(p) for p in params] for _ in range(3))
    steps = [torch.tensor(10.0, device=p.device) for p in params]
    lr, beta1, beta2, decay, eps = 1e-3, 0.9, 0.999, 1e-2, 1e-8

    def states() -> list[list[torch.Tensor]]:
        """Parameters, gradients, means, mean squares."""
        return [[t.clone() for t in tensors] for tensors in (params, grads, first, second)]

    for name in ("adamw", "adam"):
        ours, theirs = states(), states()
        op, options = f"aten::_fused_{name}_", (lr, beta1, beta2, decay, eps, False, False)
        run = chosen((op, [*ours, [], steps, *options, None, None], ()))
        names = ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize")
        fused = functools.partial(getattr(torch, f"_fused_{name}_"), *theirs, [], steps,
                                  **dict(zip(names, options, strict=True)))  # fmt: skip
        yield Case(f"{name}, fused=True", "GB/s", 7 * size, then(run, ours[0]),
                   then(fused, theirs[0]))  # fmt: skip

    def foreach(p, g, m, v) -> list[tuple[str, list, list]]:
        """AdamW's ops of the tenth step, with their arguments and results."""
        roots = [torch.empty_like(t) for t in v]
        return [
            ("_foreach_mul_.Scalar", [p, 1 - lr * decay], []),
            ("_foreach_lerp_.Scalar", [m, g, 1 - beta1], []),
            ("_foreach_mul_.Scalar", [v, beta2], []),
            ("_foreach_addcmul_.Scalar", [v, g, g, 1 - beta2], []),
            ("_foreach_sqrt.default", [v], roots),
            ("_foreach_div_.ScalarList", [roots, [(1 - beta2**10) ** 0.5] * len(p)], []),
            ("_foreach_add_.Scalar", [roots, eps], []),
            ("_foreach_addcdiv_.ScalarList", [p, m, roots, [-lr / (1 - beta1**10)] * len(p)], []),
        ]

    ours, theirs = states(), states()
    run = chosen(*(("aten::" + op.removesuffix(".default"), *r) for op, *r in foreach(*ours)))
    calls = foreach(*theirs)

    def one_by_one() -> None:
        for op, arguments, results in calls:
            results[:] = operator.attrgetter(op)(torch.ops.aten)(*arguments) or ()

    yield Case("adamw, chain over lists", "GB/s", 7 * size, then(run, ours[0]),
               then(one_by_one, theirs[0]))  # fmt: skip


def then(run: Callable[[], object], result: list[torch.Tensor]) -> Callable[[], object]:
    def call() -> list[torch.Tensor]:
        run()
        return result

    return call


def cases(device: str, dtype: torch.dtype, small: bool = False) -> Iterator[Case]:
    """All of them; `small` for a test of this file."""

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand([3 + n % 2 for n in shape] if small else shape, device=device).to(dtype)

    yield from pointwise_and_rows(rand(8192, 4096))
    yield from losses(rand(4096, 32_000))
    yield from products(rand(4096, 4096))
    # A transformer's: some large, many small.
    params = [rand(1024, 4096) for _ in range(24)] + [rand(1024) for _ in range(96)]
    yield from chosen_optimizers(params)
    yield from optimizers(params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: the kernels' speed cannot be measured here")
        return
    import triton

    def rate(case: Case, function: Callable[[], object]) -> float:
        milliseconds = triton.testing.do_bench(function, return_mode="median")
        return case.work / milliseconds / (1e9 if case.unit == "TFLOP/s" else 1e6)

    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    print(f"{torch.cuda.get_device_name()}, {versions}, {options.dtype}")
    print(f"{'kernel':32}{'':>9}{'ours':>10}{'torch':>10}{'ours/torch':>12}")
    for case in cases("cuda", getattr(torch, options.dtype)):
        ours, theirs = rate(case, case.ours), rate(case, case.theirs)
        print(f"{case.name:32}{case.unit:>9}{ours:10.1f}{theirs:10.1f}{ours / theirs:12.2f}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
