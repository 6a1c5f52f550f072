"""More steps of random programs (fusion_programs.py): functions, roundings, bounds, losses,
shifts and gradients of the op table. What is exact takes any numbers; what is not, ordinary ones,
and is smooth there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from .fusion_programs import Dag

Tensor = torch.Tensor
aten = torch.ops.aten


def _two(dag: Dag) -> tuple[Tensor, Tensor]:
    """Of one dtype."""
    x = dag.float()
    return x, dag.float().to(x.dtype)


def _integers(dag: Dag) -> tuple[Tensor, Tensor]:
    """Of which no quotient overflows, and no divisor is 0."""
    x, y = (dag.any() for _ in range(2))
    x, y = (t if not t.is_floating_point() else t > 0 for t in (x, y))
    x, y = (t.to(torch.int16) for t in (x, y))
    return x, torch.where(y == 0, 3, y)


def _with_sign(x: Tensor) -> Tensor:
    """(A NaN has any.)"""
    return torch.where(x.isnan(), -1.0, x)


def exact_function(dag: Dag) -> Tensor:
    x, n = dag.float(), dag.number()
    return dag.choice.choice(
        [
            torch.acos, torch.acosh, torch.asin, torch.asinh, torch.atan, torch.atanh, torch.erfinv,
            torch.lgamma, torch.frac, torch.sgn, torch.deg2rad, torch.rad2deg, torch.isinf,
            torch.isposinf, torch.isneginf, F.mish, F.logsigmoid, F.celu, F.hardshrink,
            F.softshrink, torch.sinh, torch.cosh, lambda t: torch.logit(t, 0.1),
            lambda t: torch.signbit(_with_sign(t)), lambda t: t.nan_to_num(0.5, 3.0, -3.0),
            lambda t: F.threshold(t, 0.1, 20.0), lambda t: t.clone().copysign_(n),
            lambda t: torch.xlogy(n, t), lambda t: t.nan_to_num().fmod(0.3),
            lambda t: t.nan_to_num().remainder(1.5),
        ]
    )(x)  # fmt: skip


def exact_of_two(dag: Dag) -> Tensor:
    x, y = _two(dag)
    return dag.choice.choice(
        [
            lambda: torch.fmax(x, y), lambda: torch.fmin(x, y), lambda: torch.hypot(x, y),
            lambda: torch.heaviside(x, y), lambda: torch.logaddexp(x, y),
            lambda: torch.atan2(x, y), lambda: torch.copysign(x, _with_sign(y)),
            lambda: torch.xlogy(x, y), lambda: torch.special.xlog1py(x, y),
            lambda: torch.fmod(x, y), lambda: torch.remainder(x, y),
            lambda: torch.floor_divide(x, y),
            lambda: torch.div(x, y, rounding_mode="floor"),
            lambda: torch.div(x, y, rounding_mode="trunc"), lambda: x.clamp(y, y + 1),
            lambda: x.clamp_min(y), lambda: x.clamp_max(y),
            lambda: aten._prelu_kernel(*torch.broadcast_tensors(x, y)),
            lambda: F.smooth_l1_loss(*torch.broadcast_tensors(x, y), reduction="none"),
            lambda: F.huber_loss(*torch.broadcast_tensors(x, y), reduction="none", delta=0.5),
            lambda: F.mse_loss(*torch.broadcast_tensors(x, y), reduction="none"),
        ]
    )()  # fmt: skip


def exact_of_integers(dag: Dag) -> Tensor:
    x, y = _integers(dag)
    places = torch.bitwise_and(y, 7)
    return dag.choice.choice(
        [
            lambda: x // y, lambda: x % y, lambda: x.fmod(y), lambda: x // 3, lambda: x % -5,
            lambda: 7 % y, lambda: torch.div(x, y, rounding_mode="trunc"),
            lambda: torch.div(x, y, rounding_mode="floor"), lambda: x << places,
            lambda: x >> places, lambda: x << 2, lambda: 5 << places, lambda: x >> 1,
            lambda: 6 & x, lambda: 6 | x, lambda: 6 ^ x, lambda: x.logical_not(),
        ]
    )()  # fmt: skip


def smooth_function(dag: Dag) -> Tensor:
    x = dag.float()
    return dag.choice.choice(
        [
            torch.atan, torch.asinh, F.mish, F.logsigmoid, F.celu, torch.deg2rad, torch.nan_to_num,
            lambda t: (t.abs() + 1.5).acosh(), lambda t: (t.clamp(-3, 3) / 4).atanh(),
            lambda t: (t.clamp(-3, 3) / 4).asin(), lambda t: (t.clamp(-3, 3) / 4).acos(),
            lambda t: (t.clamp(-3, 3) / 4).erfinv(), lambda t: (t.abs() + 3).lgamma(),
            lambda t: t.rad2deg() / 64, lambda t: t.clamp(-3, 3).sinh() / 8,
            lambda t: t.clamp(-3, 3).cosh() / 8, lambda t: torch.logit(t.sigmoid(), 0.1),
            lambda t: F.softshrink(t, 0.3), lambda t: torch.xlogy(t, 2.5),
        ]
    )(x)  # fmt: skip


def smooth_of_two(dag: Dag) -> Tensor:
    x, y = _two(dag)
    a, b = torch.broadcast_tensors(x, y)
    return dag.choice.choice(
        [
            lambda: torch.fmax(x, y), lambda: torch.fmin(x, y), lambda: torch.hypot(x, y + 0.1),
            lambda: torch.logaddexp(x, y), lambda: torch.logaddexp2(x, y),
            lambda: torch.atan2(x, y.abs() + 1), lambda: torch.xlogy(x, y.abs() + 0.5),
            lambda: torch.special.xlog1py(x, y.abs()), lambda: x.clamp(y, y + 1),
            lambda: x.clamp_min(y), lambda: x.clamp_max(y),
            lambda: F.smooth_l1_loss(a, b, reduction="none"),
            lambda: F.huber_loss(a, b, reduction="none", delta=0.5),
            lambda: F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction="none"),
            lambda: aten.mish_backward(a, b), lambda: aten.softplus_backward(a, b, 1, 20),
            lambda: aten.elu_backward(a, 1, 1, 1, False, b),
            lambda: aten.smooth_l1_loss_backward(a, b, b * 0.5, 0, 1.0),
            lambda: aten.huber_loss_backward(a, b, b * 0.5, 0, 1.0),
        ]
    )()  # fmt: skip


EXACT_STEPS: list[Callable[[Dag], Tensor]] = [exact_function, exact_of_two, exact_of_integers]
SMOOTH_STEPS: list[Callable[[Dag], Tensor]] = [smooth_function, smooth_of_two]
