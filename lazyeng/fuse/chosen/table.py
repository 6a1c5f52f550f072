"""Which ops have kernels of their own (``names``), and the function that says how for each."""

from __future__ import annotations

from collections.abc import Callable

from lazyeng.fuse.chosen import dropout, lists, losses, norms, optimizers, products, softmax
from lazyeng.fuse.chosen.calls import Calls
from lazyeng.fuse.chosen.launches import MOST_PROGRAMS, Launches
from lazyeng.fuse.chosen.names import LISTS

Choice = Callable[[Calls], Launches | None]

# What runs as one: a call, or two of which the second's first tensor is what the first makes.
CHOICES: dict[tuple[str, ...], Choice] = {
    ("aten::native_layer_norm",): norms.layer_norm,
    ("aten::native_layer_norm_backward",): norms.layer_norm_backward,
    ("aten::_fused_rms_norm",): norms.rms_norm,
    ("aten::_fused_rms_norm_backward",): norms.rms_norm_backward,
    ("aten::_softmax",): softmax.softmax,
    ("aten::_log_softmax",): softmax.log_softmax,
    ("aten::_softmax_backward_data",): softmax.softmax_backward,
    ("aten::_log_softmax_backward_data",): softmax.log_softmax_backward,
    ("aten::nll_loss_forward",): losses.nll_loss,
    ("aten::nll_loss_backward",): losses.nll_loss_backward,
    ("aten::nll_loss_backward", "aten::_log_softmax_backward_data"): (
        losses.nll_log_softmax_backward
    ),
    ("aten::addmm", "aten::relu"): products.linear_act,
    ("aten::addmm", "aten::gelu"): products.linear_act,
    ("aten::addmm", "aten::silu"): products.linear_act,
    ("aten::_fused_adamw_",): optimizers.adamw,
    ("aten::_fused_adam_",): optimizers.adam,
    ("aten::_fused_sgd_",): optimizers.sgd,
    ("aten::native_dropout",): dropout.native_dropout,
}


def choose(calls: Calls) -> Launches | None:
    """How hand-written kernels run the calls; None: torch's own do."""
    ops = tuple(call.op for call in calls.calls)
    choice = CHOICES.get(ops) or (lists.chain if {*ops} <= LISTS.keys() else None)
    made = choice(calls) if choice else None
    if made is None or not made.kernels:
        return None
    for kernel in made.kernels:
        if any(n > most for n, most in zip(kernel.grid, MOST_PROGRAMS, strict=False)):
            return None
    return made
