"""Random expression DAGs of ops that can be fused: the same Python code over eager or lazy tensors.

A program is a seed and a depth. Its results depend on nothing else, so eager, unfused and fused
runs of one can be compared. `exact` programs use only ops whose fused results are eager's bit for
bit; those of others are within a tolerance. Those with `rows` reduce along dims as well; exact ones
with `folds` do what has no order; those with `more` take the steps of fusion_steps.py, too.

Each step makes a tensor of what is there, mostly of the deepest. So that what 30 steps in a row
make is no constant, all NaN, or of another sign than eager's, some numbers that nothing else has
touched come into it again and again (`Dag._tamed`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from .fusion_steps import EXACT_STEPS, SMOOTH_STEPS

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NARROW = FLOATS[2:]
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40)
# More than a tile's lanes, and no multiple of them; and rows of which several are a tile, too short
# for kernels that are called for each.
COLUMNS = (70, 70, 33, 9)
# Most programs have rows and columns, some have more dims in the place of the columns.
INNER = (None,) * 5 + ((3, 70), (12, 3), (2, 3, 7))
DEEPEST = 30  # steps in a row

Tensor = torch.Tensor
Maker = Callable[["Dag"], Tensor]


@dataclass(slots=True)
class Made:
    value: Tensor
    depth: int = 0  # of steps, the longest way to a leaf
    coarsest: torch.dtype | None = None  # of the floats that it was made of


class Dag:
    """One run of a program: the tensors made so far, and the choices still to be made."""

    def __init__(
        self,
        seed: int,
        wrap: Callable[[Tensor], Tensor],
        exact: bool,
        floats: tuple[torch.dtype, ...] = FLOATS,
        rows: bool = False,
        folds: bool = False,
        more: bool = False,
    ) -> None:
        self.choice = random.Random(seed)
        self.exact, self.reduces = exact, rows
        self.makers = EXACT if exact else EXACT[:N_ARITHMETIC] + SMOOTH
        if rows:
            # (Of the narrow dtypes only what does not subtract values that were rounded.)
            self.makers = [*self.makers, _normalised, _reduced, _normalised, _reduced]
            self.makers += [_centered] * (floats[0] not in NARROW)
            self.makers += [_reduced_outside]
        if folds:
            self.makers = [*self.makers, _folded, _folded, _folded]
        if more:
            self.makers = [*self.makers, *(EXACT_STEPS * 3 if exact else SMOOTH_STEPS * 2)]
        self.floats = floats
        # Some of more than a tile; each op on one thread, that of torch too.
        rows = self.choice.choice([6] * 9 + [300] if exact else [40] * 4 + [300])
        self.shape = rows, *(self.choice.choice(INNER) or (self.choice.choice(COLUMNS),))
        # How much of its last bit a step hands on. That of the narrow dtypes is as large as their
        # tolerance: little of it, and by a power of 2, which rounds nothing.
        self.share = 0.125 if floats[0] in NARROW else 0.4
        self.taken: list[Made] = []  # by the step that is being made
        self.cast_to: list[torch.dtype] = []  # by it, of what it has taken
        generator = torch.Generator().manual_seed(seed)
        self.pool = [self._leaf(generator, wrap) for _ in range(5)]
        # Of both signs, and not around zero.
        noise = torch.rand(self.shape, generator=generator, dtype=torch.float64) + 1
        signs = torch.randint(0, 2, noise.shape, generator=generator) - 0.5
        self.noise = wrap(noise * signs)

    def _leaf(self, generator: torch.Generator, wrap: Callable[[Tensor], Tensor]) -> Made:
        some = tuple(self.choice.choice([n, 1]) for n in self.shape)
        shape = self.choice.choice(
            [*[self.shape] * 2, self.shape[1:], some, (1, *self.shape[1:]), self.shape[-1:], ()]
        )
        dtype = self.choice.choice(self.floats[:1] * 4 + self.floats + INTS + (torch.bool,))
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * 4
        if self.exact and dtype.is_floating_point:
            at = torch.randint(0, 40, shape, generator=generator)
            for i, special in enumerate(SPECIAL):
                x = torch.where(at == i, special, x)
        layout = self.choice.randrange(4)
        if layout == 0 and len(shape) > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif layout == 1 and shape == self.shape:
            x = torch.cat([x, x], -1)[..., ::2]
        x = x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)
        return Made(wrap(x), 0, _coarsest([dtype]))

    @property
    def depth(self) -> int:
        return max(made.depth for made in self.pool)

    def any(self) -> Tensor:
        return self.any_made().value

    def any_made(self) -> Made:
        """The deepest or another one, and of what a step takes first mostly the deepest."""
        if self.choice.random() < (0.2 if self.taken else 0.85):
            made = max(reversed(self.pool), key=lambda made: made.depth)
        else:
            made = self.choice.choice(self.pool[-8:])
        self.taken.append(made)
        return made

    def float(self) -> Tensor:
        x = self.any()
        if not x.is_floating_point():
            x = x.to(self.choice.choice(self.floats))
            self.cast_to.append(x.dtype)
        return x

    def wide(self) -> Tensor:
        """With all rows and columns, none of them of equal elements, and none near zero."""
        x = self.float()
        return x.clamp(-2, 2) * min(self.share, 0.2) + self.noise.to(x.dtype)

    def some_noise(self, x: Tensor) -> Tensor:
        """In x's shape, or in that of all."""
        part = [0] * (len(self.shape) - x.dim()) + [slice(n) for n in x.shape]
        noise = self.noise if self.choice.random() < 0.1 else self.noise[tuple(part)]
        return noise.to(x.dtype if x.is_floating_point() else torch.float32)

    def some_dim(self) -> int:
        """Mostly the last one."""
        return self.choice.choice([-1, -1, -1, 1, 0])

    def number(self) -> float | int:
        return self.choice.choice([2, 3, -1, 0.5, 1.25, -0.75, 0.1] + [0.0, -0.0] * self.exact)

    def _tamed(self, x: Tensor) -> Tensor:
        if not self.exact and x.is_floating_point():
            return x.clamp(-2, 2) * self.share + self.some_noise(x)
        if not self.exact:
            return x if x.dtype == torch.bool else torch.bitwise_and(x, 7)
        if self.choice.random() < 0.4:
            return x
        noise = self.some_noise(x)
        if x.is_floating_point():
            return torch.where(x.abs() < 100, x, 0.5) + noise
        if x.dtype == torch.bool and self.choice.random() < 0.5:
            return torch.where(x, noise, 0.25)
        return torch.bitwise_xor(x, noise > 0)

    def step(self) -> None:
        self.taken, self.cast_to = [], []
        x = self._tamed(self.choice.choice(self.makers)(self))
        depth = 1 + max(made.depth for made in self.taken)
        dtypes = [x.dtype, *self.cast_to, *(made.coarsest for made in self.taken)]
        self.pool.append(Made(x, depth, _coarsest(dtypes)))

    def run(self, depth: int) -> list[Tensor]:
        """Steps until a tensor is that deep; those that are left then."""
        while self.depth < depth:
            self.step()
            if len(self.pool) > 12 and self.choice.random() < 0.7:
                del self.pool[self.choice.randrange(len(self.pool) - 4)]
        return [made.value for made in self.pool]


def _coarsest(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    floats = [dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point]
    return max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=None)


def _arithmetic(dag: Dag) -> Tensor:
    op = dag.choice.choice([torch.add, torch.sub, torch.mul])
    x = dag.any()
    y = dag.number() if dag.choice.random() < 0.4 else dag.any()
    if x.dtype == torch.bool and (op is torch.sub or not torch.is_tensor(y)):
        x = x.to(torch.int32)
    if op is torch.sub and torch.is_tensor(y) and y.dtype == torch.bool:
        y = y.to(torch.int16)
    return op(x, y)


def _divide(dag: Dag) -> Tensor:
    x, y = dag.float(), dag.any() if dag.choice.random() < 0.6 else dag.number()
    if not dag.exact and torch.is_tensor(y):
        y = y.abs() + 0.5 if y.is_floating_point() else torch.bitwise_and(y, 7) + 1
    return x / y


def _sign(dag: Dag) -> Tensor:
    x = dag.any()
    if x.dtype == torch.bool:
        return x.logical_not()
    return dag.choice.choice([torch.neg, torch.abs, torch.sign, torch.relu])(x)


def widest(dag: Dag, prepare: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    op = dag.choice.choice([torch.maximum, torch.minimum])
    return op(prepare(dag.any()), prepare(dag.any()))


def _compare(dag: Dag) -> Tensor:
    op = dag.choice.choice([torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
    return op(dag.any(), dag.number() if dag.choice.random() < 0.5 else dag.any())


def _where(dag: Dag) -> Tensor:
    return torch.where(_compare(dag), dag.any(), dag.any())


def _cast(dag: Dag) -> Tensor:
    x = dag.any()
    if x.is_floating_point() and dag.choice.random() < 0.5:
        small = torch.where(x.abs() < 100, x, 1.0)  # what no integer can hold is undefined
        return small.abs().to(dag.choice.choice(INTS))
    return x.to(dag.choice.choice((*FLOATS, torch.bool)))


def _bits(dag: Dag) -> Tensor:
    x, y = (t if not t.is_floating_point() else t > 0 for t in (dag.any(), dag.any()))
    return dag.choice.choice([torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor])(x, y)


def _in_place(dag: Dag) -> Tensor:
    x = dag.any().clone() if dag.choice.random() < 0.7 else dag.any() * 1
    part = x
    if x.dim() > 1 and dag.choice.random() < 0.5:
        parts = [x[1:], x[..., ::2], x.transpose(0, -1), x[..., :3], x.view(x.shape)]
        part = dag.choice.choice(parts)
    if x.dtype == torch.bool:
        part.logical_not_() if part is x else part.fill_(dag.choice.random() < 0.5)
    elif x.is_floating_point():
        dag.choice.choice([part.add_, part.mul_, part.div_])(dag.number())
    else:
        part.mul_(3)
    return x


def _overwritten(dag: Dag) -> Tensor:
    """A tensor gets the values of another after it has been read, and is read again."""
    target = dag.any_made()
    x = target.value
    sources = [made for made in dag.pool if _is_broadcast_to(made.value, x)]
    fewer = [made for made in sources if made.value.numel() < x.numel()]
    source = dag.choice.choice(fewer or sources)
    y = source.value.clone()
    before = x.softmax(-1) if dag.reduces and x.is_floating_point() else x * 1
    x.copy_(y if x.is_floating_point() else y != 0)
    target.depth = max(target.depth, source.depth)
    target.coarsest = _coarsest([target.coarsest, source.coarsest])
    return torch.maximum(before, x)


def _is_broadcast_to(y: Tensor, x: Tensor) -> bool:
    """Or of its shape."""
    sizes = zip(reversed(y.shape), reversed(x.shape), strict=False)
    return y.dim() <= x.dim() and all(a in (1, b) for a, b in sizes)


def _view(dag: Dag) -> Tensor:
    x = dag.any()
    if x.dim() < 2:
        return x + 0 if x.dtype != torch.bool else x.clone()
    return dag.choice.choice(
        [
            x.transpose(0, -1).transpose(0, -1),
            x[:1],
            x[..., :1],
            x.reshape(-1).view(x.shape),
            x.expand_as(x),
        ]
    )


def _bound(dag: Dag) -> Tensor:
    x = dag.float()
    return dag.choice.choice(
        [
            lambda: x.clamp(-0.5, 2), lambda: x.clamp_min(dag.number()),
            lambda: x.clamp(max=dag.number()), lambda: x.clamp_max(dag.number()),
            lambda: x.clamp(-0.0, 1), lambda: x.clamp(-1, 0.0),
            lambda: torch.where(x > 0, x, x.clamp_min(float("nan"))),
            lambda: torch.where(x > 0, x, x.clamp(float("nan"), 1)),
            lambda: torch.nn.functional.hardtanh(x, 0.0, 6.0),
        ]
    )()  # fmt: skip


def _fill(dag: Dag) -> Tensor:
    x = dag.any()
    return dag.choice.choice(
        [
            lambda: x + torch.zeros_like(x), lambda: x * torch.ones_like(x),
            lambda: x.masked_fill(x > 1, 1), lambda: x.clone(),
        ]
    )()  # fmt: skip


def _function(dag: Dag) -> Tensor:
    x = dag.float()
    return dag.choice.choice(
        [
            torch.exp, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.erf, torch.expm1,
            torch.nn.functional.gelu, torch.nn.functional.silu, torch.nn.functional.softplus,
            torch.nn.functional.elu, lambda t: torch.nn.functional.leaky_relu(t, 0.1),
            lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
            torch.nn.functional.hardswish, torch.nn.functional.hardsigmoid,
            lambda t: (t.abs() + 0.1).sqrt(), lambda t: (t.abs() + 0.5).log(),
            lambda t: (t.abs() + 0.5).rsqrt(), lambda t: t**2, lambda t: t**3,
            lambda t: (t.abs() + 0.5) ** 1.5, lambda t: (t.abs() + 0.5).reciprocal(),
        ]
    )(x)  # fmt: skip


def _combined(dag: Dag) -> Tensor:
    x = dag.float()
    y, z = x.tanh(), x * 0.5
    return dag.choice.choice(
        [
            lambda: torch.addcmul(x, y, z, value=0.5),
            lambda: torch.lerp(x, y, 0.25),
            lambda: torch.add(x, z, alpha=0.3),
            lambda: 1.5 - x,
        ]
    )()


def _reduced(dag: Dag) -> Tensor:
    x, dim = dag.wide(), dag.some_dim()
    keepdim = dim != -1 or dag.choice.random() < 0.6
    y = dag.choice.choice(
        [
            lambda: (x / 64).sum(dim, keepdim=keepdim), lambda: x.mean(dim, keepdim=keepdim),
            lambda: x.amax(dim, keepdim=keepdim), lambda: x.amin(dim, keepdim=keepdim),
            lambda: x.var(dim, keepdim=keepdim), lambda: x.std(dim, keepdim=keepdim),
            lambda: x.logsumexp(dim, keepdim=keepdim) / 4,
            lambda: (x > 0).sum(dim, keepdim=keepdim),
            lambda: (x.square() / 64).sum(dim, keepdim=keepdim),
        ]
    )()  # fmt: skip
    return y if keepdim else y.unsqueeze(-1)


def _reduced_outside(dag: Dag) -> Tensor:
    x, dims = dag.wide(), dag.choice.choice([0, (0, 1), (0, -1)])
    return dag.choice.choice(
        [
            lambda: (x / 4096).sum(dims, keepdim=True), lambda: x.mean(dims, keepdim=True),
            lambda: x.amax(dims, keepdim=True), lambda: (x > 0).sum(dims, keepdim=True),
        ]
    )()  # fmt: skip


def _folded(dag: Dag) -> Tensor:
    x, dims = dag.any(), dag.choice.choice([-1, 0, 1, None])
    if x.shape != dag.shape:
        x = x + (dag.noise * 8).to(torch.int8)
    keepdim = dims is not None
    if x.is_floating_point() and dag.choice.random() < 0.4:  # the maximum is 0.0 or -0.0
        x = x.masked_fill(x.isnan(), -1).clamp_max(0)
    folds = [
        lambda: x.amax(() if dims is None else dims, keepdim),
        lambda: x.amin(() if dims is None else dims, keepdim),
        lambda: torch.any(x, dims, keepdim=keepdim) if keepdim else x.any(),
        lambda: torch.all(x, dims, keepdim=keepdim) if keepdim else x.all(),
        lambda: (x > 0).sum(dims, keepdim),
        lambda: x.max(),
        lambda: x.min(),
    ]
    if not x.is_floating_point():
        folds += [lambda: x.sum(dims, keepdim), lambda: x.sum(dims, keepdim, dtype=torch.int8)]
        folds += [lambda: x.prod(dims, keepdim) if keepdim else x.prod()]
    return dag.choice.choice(folds)()


def _normalised(dag: Dag) -> Tensor:
    f, x, dim = torch.nn.functional, dag.wide(), dag.some_dim()
    shape = x.shape[dag.choice.choice([-1, 1]) :]
    weight = torch.linspace(0.5, 1.5, shape.numel()).view(shape).to(x.device, x.dtype)
    return dag.choice.choice(
        [
            lambda: f.softmax(x * 3, dim), lambda: f.log_softmax(x, dim) / 4,
            lambda: f.layer_norm(x, shape, eps=0.1),
            lambda: f.layer_norm(x, shape, weight, weight, eps=0.1),
            lambda: f.rms_norm(x, shape, weight, eps=0.1),
        ]
    )()  # fmt: skip


def _centered(dag: Dag) -> Tensor:
    x, dim = dag.wide(), dag.some_dim()
    mean = x.mean(dim, keepdim=True)
    variance = (x - mean).square().mean(dim, keepdim=True)
    return dag.choice.choice(
        [
            lambda: (x - mean) * (variance + 0.1).rsqrt(),
            lambda: (x - x.amax(dim, keepdim=True)).exp(),
            lambda: x.clone().sub_(mean.mul_(0.5)),
            lambda: (x + x.sum(dim, keepdim=True).tanh()).softmax(dim),
        ]
    )()


N_ARITHMETIC = 2  # of EXACT: those that smooth programs have too
EXACT: list[Maker] = [
    _arithmetic, _divide, _sign, widest, _compare, _where, _cast, _bits, _in_place,
    _overwritten, _view, _bound, _fill,
]  # fmt: skip
SMOOTH: list[Maker] = [_function, _function, _combined, _in_place, _overwritten, _view]


NUMBERS = (0.0, -0.0, float("nan"), float("inf"), 1.5, -2, 3, 0.1)


def exact_functions() -> dict[str, tuple[int, Callable[..., Tensor]]]:
    """By name: the number of tensors, and a function whose fused result is eager's bit for bit."""
    f, aten = torch.nn.functional, torch.ops.aten
    made: dict[str, tuple[int, Callable[..., Tensor]]] = {}
    for one in (
        torch.abs, torch.neg, torch.sign, torch.floor, torch.ceil, torch.trunc, torch.round,
        torch.relu, torch.reciprocal, torch.rsqrt, torch.square, torch.isnan, torch.logical_not,
        torch.sqrt, torch.exp, f.leaky_relu, f.hardtanh, f.relu6,
    ):  # fmt: skip
        made[one.__name__] = 1, one
    for two in (
        torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.eq,
        torch.lt, torch.ge, torch.logical_and, torch.logical_or, torch.logical_xor,
    ):  # fmt: skip
        made[two.__name__] = 2, two
    made["where"] = 2, lambda x, y: torch.where(x > y, x, y)
    made["sigmoid_backward"] = 2, lambda x, y: aten.sigmoid_backward(x, y)
    for n in NUMBERS:
        made[f"threshold_backward {n}"] = 2, lambda x, y, n=n: aten.threshold_backward(x, y, n)
        made[f"leaky_relu_backward {n}"] = (
            2,
            lambda x, y, n=n: aten.leaky_relu_backward(x, y, n, False),
        )
        for name, function in {
            "clamp_min": lambda x, n=n: x.clamp_min(n),
            "clamp_max": lambda x, n=n: x.clamp_max(n),
            "clamp(n, 1)": lambda x, n=n: x.clamp(n, 1),
            "clamp(-1, n)": lambda x, n=n: x.clamp(-1, n),
            "add": lambda x, n=n: x + n,
            "sub": lambda x, n=n: x - n,
            "rsub": lambda x, n=n: n - x,
            "mul": lambda x, n=n: x * n,
            "div": lambda x, n=n: x / n,
            "rdiv": lambda x, n=n: n / x,
            "eq": lambda x, n=n: x == n,
            "ne": lambda x, n=n: x != n,
            "lt": lambda x, n=n: x < n,
            "ge": lambda x, n=n: x >= n,
            "pow": lambda x, n=n: x**n,
            "masked_fill": lambda x, n=n: x.masked_fill(x > 0, n),
            "leaky_relu": lambda x, n=n: f.leaky_relu(x, n),
            "threshold": lambda x, n=n: f.threshold(x, n, 0.3),
            "hardshrink": lambda x, n=n: f.hardshrink(x, n),
        }.items():
            made[f"{name} {n}"] = 1, function
    for n in (-2, -1, -0.5, 0, 0.5, 1, 2, 3):
        made[f"pow {n}"] = 1, lambda x, n=n: x**n
    return made


def tried_functions() -> dict[str, tuple[int, Callable[..., Tensor]]]:
    """The same of those that are tried on the CPU (csrc/fuse/bits/trials.h), whatever is found."""
    f, aten = torch.nn.functional, torch.ops.aten
    made: dict[str, tuple[int, Callable[..., Tensor]]] = {
        one.__name__: (1, one)
        for one in (
            torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10, torch.log1p, torch.sin,
            torch.cos, torch.tan, torch.tanh, torch.sinh, torch.cosh, torch.erf, torch.erfc,
            torch.sigmoid, f.silu, f.hardswish, f.hardsigmoid,
        )
    }  # fmt: skip
    made["tanh_backward"] = 2, lambda x, y: aten.tanh_backward(x, y)
    made["silu_backward"] = 2, lambda x, y: aten.silu_backward(x, y)
    made["lerp"] = 2, lambda x, y: torch.lerp(x, y, x)
    for n in (0, 0.1, 0.5, 2):  # (of which zero it makes torch's vectors and its loop differ)
        made[f"softshrink {n}"] = 1, lambda x, n=n: f.softshrink(x, n)
    for n in (1, 0.3, 0.5, -2.5, 1e-3):
        made[f"add alpha {n}"] = 2, lambda x, y, n=n: torch.add(x, y, alpha=n)
        made[f"sub alpha {n}"] = 2, lambda x, y, n=n: torch.sub(x, y, alpha=n)
        made[f"rsub alpha {n}"] = 2, lambda x, y, n=n: torch.rsub(x, y, alpha=n)
        made[f"addcmul {n}"] = 2, lambda x, y, n=n: torch.addcmul(x, y, x, value=n)
        made[f"addcdiv {n}"] = 2, lambda x, y, n=n: torch.addcdiv(x, y, x, value=n)
        made[f"lerp {n}"] = 2, lambda x, y, n=n: torch.lerp(x, y, n)
    return made


def hard_values(dtype: torch.dtype, tensors: int) -> list[Tensor]:
    """All pairs of special values, then random ones; one tensor of two bytes: all its values."""
    if tensors == 1 and dtype.itemsize == 2:
        return [torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)]
    special = torch.tensor(
        [*SPECIAL, 1, -1, 2.5, -2.5, 0.5, -0.5, 3e38, -7.3, 0.1], dtype=torch.float64
    )
    pairs = torch.cartesian_prod(special, special)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((4000, 2), generator=generator, dtype=torch.float64) * 3
    return list(torch.cat([pairs, noise]).to(dtype).unbind(1)[:tensors])
