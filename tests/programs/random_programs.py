"""Random programs as data: generated once, interpreted over eager or over lazy tensors alike.

A program is a list of steps over numbered slots. generate() tries each candidate step on eager
tensors and keeps those that PyTorch accepts; so every program is valid, and its steps reach deep
into views, shared storages and resizes without a model of PyTorch's rules. Arguments below zero
name the shared inputs, which are only read (many threads may use them at once).
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

SLOTS = 12
MAX_NUMEL = 256  # at scale 1
# at::parallel_for divides what has as many elements.
KERNELS_FAN_OUT = 32768
LIMIT = 1e3  # larger values are tamed: a program of nothing but inf and nan would prove nothing


_scale = 1


@contextmanager
def scaled(factor: int) -> Iterator[None]:
    """Programs that are made and run inside have tensors `factor` times as long in each dim. (32:
    most are larger than what the buffer pool leaves to malloc.) For all threads."""
    global _scale
    before, _scale = _scale, factor
    try:
        yield
    finally:
        _scale = before


def lengths(*shape: int) -> tuple[int, ...]:
    """The shape in the scale of now; dims of one element stay so."""
    return tuple(n * _scale if n > 1 else n for n in shape)


@dataclass(frozen=True)
class Step:
    op: str
    args: tuple[int, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    targets: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.targets} = {self.op}{self.args} {self.params or ''}"


@dataclass(frozen=True)
class Program:
    seed: int
    steps: list[Step]
    default_generator: bool


@dataclass
class State:
    """What a program runs over. `readable` makes a tensor that may be asked for tolist()."""

    slots: list[torch.Tensor]
    shared: list[torch.Tensor]
    generator: torch.Generator
    readable: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    log: list[Any] = field(default_factory=list)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.slots[i] if i >= 0 else self.shared[-i - 1]


@dataclass(frozen=True)
class Op:
    """How to run a step of this kind, and how to make one up."""

    run: Callable[..., Any]
    tensors: int = 1
    # (rng, tensors) -> parameters; may be wrong, generate() drops what PyTorch refuses.
    params: Callable[[random.Random, list[torch.Tensor]], dict[str, Any]] = lambda rng, ts: {}
    # So many leading arguments are written, or aliased by the result (x.to() may return x): never
    # shared inputs.
    own: int = 0
    default_generator: bool = False
    weight: int = 1
    # Reading what it writes is undefined in PyTorch itself: torch.mm(x, x.t(), out=x).
    disjoint: bool = False


# --- parameters


def scalar(rng: random.Random, ts: list[torch.Tensor]) -> dict[str, Any]:
    return {"s": rng.choice([0.5, -1.25, 2, 3.0, -1])}


def a_dim(rng: random.Random, ts: list[torch.Tensor]) -> dict[str, Any]:
    return {"dim": rng.randrange(-ts[0].dim(), max(ts[0].dim(), 1))}


def slice_of(rng: random.Random, ts: list[torch.Tensor]) -> dict[str, Any]:
    size = ts[0].shape[0]
    start = rng.randrange(size)
    return {"a": start, "b": rng.randint(start + 1, size), "step": rng.choice([1, 1, 2])}


def shape_of(rng: random.Random, ts: list[torch.Tensor]) -> dict[str, Any]:
    """Another shape of the same number of elements."""
    n = ts[0].numel()
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    first = rng.choice(divisors)
    return {"shape": rng.choice([(n,), (first, n // first), (first, 1, n // first), (-1, first)])}


def any_shape(rng: random.Random, ts: list[torch.Tensor]) -> dict[str, Any]:
    shapes = [(3,), (4,), (2, 3), (4, 3), (3, 4), (4, 4), (1,), (2, 1, 3), ()]
    return {"shape": lengths(*rng.choice(shapes))}


def strided(rng: random.Random, ts: list[torch.Tensor]) -> dict[str, Any]:
    """Also overlapping windows, as in as_strided((3, 2), (1, 1))."""
    shape = rng.choice([(2,), (3, 2), (2, 2)])
    return {"shape": shape, "stride": tuple(rng.choice([1, 1, 2]) for _ in shape),
            "offset": rng.choice([0, 0, 1])}  # fmt: skip


def drawn(rng: random.Random, ts: list[torch.Tensor]) -> dict[str, Any]:
    return any_shape(rng, ts) | {"seed": rng.randrange(1000)}


# --- ops that need more than an expression


def log_read(state: State, x: torch.Tensor, how: str) -> None:
    """A reading point in the midst of the program: what a branch would depend on."""
    if how == "item":
        state.log.append(repr(x.reshape(-1)[0].item()))
    elif how == "bool":
        state.log.append(bool((x > 0).any()))
    elif how == "tolist":
        state.log.append(repr(state.readable(x.detach()).tolist()))
    elif how == "numpy":
        # Of a copy: numpy() makes a storage unresizable, and a refused resize_ leaves PyTorch's
        # tensor with the new shape over the old memory.
        state.log.append(state.readable(x.clone()).numpy().tobytes())
    else:
        state.log.append((how, tuple(x.shape), x.stride(), x.dtype, x.is_contiguous()))


def same_strides(grad: torch.Tensor) -> torch.Tensor:
    """Autograd sums the gradients of one input in place, but out of place for tensor subclasses
    (input_buffer.cpp): the stride of a dimension of one element then differs."""
    return grad.clone(memory_format=torch.contiguous_format)


def grad_of_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = a.detach().clone().requires_grad_()
        (leaf * b.detach() + leaf.relu()).sum().backward()
    assert leaf.grad is not None
    return same_strides(leaf.grad)


def second_grad(a: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = a.detach().clone().requires_grad_()
        (first,) = torch.autograd.grad((leaf * leaf * leaf).sum(), leaf, create_graph=True)
        return same_strides(torch.autograd.grad(first.sum(), leaf)[0])


def set_rows(x: torch.Tensor, y: torch.Tensor, a: int, b: int, step: int) -> None:
    x[a:b:step] = y


def index_put(x: torch.Tensor, y: torch.Tensor) -> None:
    x[torch.tensor([0, -1])] = y


def resize_fill(x: torch.Tensor, shape: tuple[int, ...], s: float) -> None:
    """May grow a storage that other slots share; fills all, as grown memory is uninitialised."""
    x.resize_(shape).fill_(s)


def shrink(x: torch.Tensor) -> None:
    """Half of it; of an expanded tensor even the half may be more than its storage holds."""
    if not x.is_contiguous():
        raise RuntimeError("would show uninitialised memory")
    x.resize_((max(x.numel() // 2, 1),))


def set_data(x: torch.Tensor, y: torch.Tensor) -> None:
    x.data = y.detach()


def tame(x: torch.Tensor) -> None:
    x.nan_to_num_(0.5, 1.0, -1.0).clamp_(-2, 2)


MATH: dict[str, Op] = {
    "add": Op(lambda st, x, y: x + y, 2, weight=3),
    "sub": Op(lambda st, x, y: x - y, 2, weight=2),
    "mul": Op(lambda st, x, y: x * y, 2, weight=3),
    "div": Op(lambda st, x, y: x / y, 2),
    "add_alpha": Op(lambda st, x, y, s: torch.add(x, y, alpha=s), 2, scalar),
    "add_scalar": Op(lambda st, x, s: x + s, 1, scalar, weight=2),
    "rsub_scalar": Op(lambda st, x, s: s - x, 1, scalar),
    "mul_scalar": Op(lambda st, x, s: s * x, 1, scalar, weight=2),
    "div_scalar": Op(lambda st, x, s: x / s, 1, scalar),
    "neg": Op(lambda st, x: -x),
    "abs": Op(lambda st, x: x.abs()),
    "square": Op(lambda st, x: x**2),
    "relu": Op(lambda st, x: torch.relu(x)),
    "clamp": Op(lambda st, x: x.clamp(-1, 1)),
    "tamed_copy": Op(lambda st, x: x.nan_to_num(0.5, 1.0, -1.0).clamp(-2, 2)),
    "maximum": Op(lambda st, x, y: torch.maximum(x, y), 2),
    "less": Op(lambda st, x, y: x < y, 2),
    "equal": Op(lambda st, x, y: x == y, 2),
    "where": Op(lambda st, x, y: torch.where(x > 0, x, y), 2),
    "to_float": Op(lambda st, x: x.to(torch.float32), own=1, weight=2),
    "to_double": Op(lambda st, x: x.to(torch.float64), own=1),
    "to_int": Op(lambda st, x: x.to(torch.int64), own=1),
    "lerp": Op(lambda st, x, y: torch.lerp(x, y, 0.25), 2),
    "addcmul": Op(lambda st, x, y, z: torch.addcmul(x, y, z, value=0.5), 3),
    "mm": Op(lambda st, x, y: x @ y, 2, weight=3),
    "gram": Op(lambda st, x: x @ x.t(), weight=2),
    "addmm_gram": Op(lambda st, x, y: torch.addmm(x.reshape(-1)[:1], y, y.t()), 2),
    "addmm": Op(lambda st, x, y, z: torch.addmm(x, y, z), 3),
    "linear": Op(lambda st, x, y: F.linear(x, y), 2),
    "cat": Op(lambda st, x, y: torch.cat([x, y]), 2, weight=2),
    "stack": Op(lambda st, x, y: torch.stack([x, y]), 2),
    "clone": Op(lambda st, x: x.clone(), weight=2),
    "sort": Op(lambda st, x, dim: list(torch.sort(x, dim=dim, stable=True)), 1, a_dim),
    "topk": Op(lambda st, x: list(torch.topk(x, 2))),
    "max_dim": Op(lambda st, x, dim: list(x.max(dim)), 1, a_dim),
    "argmax": Op(lambda st, x: x.argmax()),
    "flip": Op(lambda st, x, dim: x.flip(dim), 1, a_dim),
    "roll": Op(lambda st, x: x.roll(1, 0)),
    "index": Op(lambda st, x: x[torch.tensor([0, -1, 0])]),
    "gather": Op(lambda st, x: x.gather(0, x.argsort(0))),
    "tril": Op(lambda st, x: x.tril()),
    "pad": Op(lambda st, x: F.pad(x, (1, 0))),
    # Their result's shape depends on values: these wait.
    "nonzero": Op(lambda st, x: x.nonzero()),
    "masked_select": Op(lambda st, x: x[x > 0]),
    "unique": Op(lambda st, x: torch.unique(x)),
    "foreach_add": Op(lambda st, x, y: list(torch._foreach_add([x, y], 1.5)), 2),
    "grad": Op(lambda st, x, y: grad_of_product(x, y), 2, weight=2),
    "second_grad": Op(lambda st, x: second_grad(x)),
}  # fmt: skip

# Equal bit for bit when every op runs as its own kernel; within the tolerance of assert_close when
# fused with others (a vectorised exp is another function, a tiled sum another order).
INEXACT_WHEN_FUSED: dict[str, Op] = {
    "exp": Op(lambda st, x: torch.exp(x)),
    "tanh": Op(lambda st, x: x.tanh()),
    "sigmoid": Op(lambda st, x: torch.sigmoid(x)),
    "sum": Op(lambda st, x: x.sum()),
    "sum_dim": Op(lambda st, x, dim: x.sum(dim, keepdim=True), 1, a_dim),
    "mean": Op(lambda st, x: x.mean(-1)),
    "cumsum": Op(lambda st, x, dim: x.cumsum(dim), 1, a_dim),
    "softmax": Op(lambda st, x, dim: x.softmax(dim), 1, a_dim),
    "layer_norm": Op(lambda st, x: F.layer_norm(x, x.shape[-1:])),
    "var_mean": Op(lambda st, x: list(torch.var_mean(x, -1))),
}

VIEWS: dict[str, Op] = {
    "select": Op(lambda st, x: x[0], own=1, weight=3),
    "slice": Op(lambda st, x, a, b, step: x[a:b:step], 1, slice_of, own=1, weight=4),
    "slice_last": Op(lambda st, x: x[..., 1:], own=1, weight=2),
    "view": Op(lambda st, x, shape: x.view(shape), 1, shape_of, own=1, weight=2),
    "reshape": Op(lambda st, x, shape: x.reshape(shape), 1, shape_of, own=1, weight=2),
    "t": Op(lambda st, x: x.t(), own=1, weight=2),
    "transpose": Op(lambda st, x: x.transpose(0, -1), own=1),
    "permute": Op(lambda st, x: x.permute(*range(1, x.dim()), 0), own=1),
    "unsqueeze": Op(lambda st, x, dim: x.unsqueeze(dim), 1, a_dim, own=1),
    "squeeze": Op(lambda st, x: x.squeeze(), own=1),
    "expand": Op(lambda st, x: x.expand(2, *x.shape), own=1),
    "narrow": Op(lambda st, x: x.narrow(0, 0, 1), own=1),
    "flatten": Op(lambda st, x: x.flatten(), own=1),
    "diagonal": Op(lambda st, x: x.diagonal(), own=1),
    "unfold": Op(lambda st, x: x.unfold(0, 2, 1), own=1),
    "as_strided": Op(lambda st, x, shape, stride, offset: x.as_strided(shape, stride, offset), 1,
                     strided, own=1, weight=2),
    "chunk": Op(lambda st, x: list(x.chunk(2)), own=1, weight=2),
    "unbind": Op(lambda st, x: list(x.unbind())[:3], own=1),
    "detach": Op(lambda st, x: x.detach(), own=1),
    "contiguous": Op(lambda st, x: x.contiguous(), own=1),
    "alias_same": Op(lambda st, x: x, own=1),  # one object in two slots
}  # fmt: skip

WRITES: dict[str, Op] = {
    "add_": Op(lambda st, x, y: _none(x.add_(y)), 2, own=1, weight=4),
    "sub_": Op(lambda st, x, y: _none(x.sub_(y)), 2, own=1),
    "mul_": Op(lambda st, x, y: _none(x.mul_(y)), 2, own=1, weight=2),
    "add_scalar_": Op(lambda st, x, s: _none(x.add_(s)), 1, scalar, own=1, weight=2),
    "mul_scalar_": Op(lambda st, x, s: _none(x.mul_(s)), 1, scalar, own=1),
    "fill_": Op(lambda st, x, s: _none(x.fill_(s)), 1, scalar, own=1),
    "zero_": Op(lambda st, x: _none(x.zero_()), own=1),
    "relu_": Op(lambda st, x: _none(x.relu_()), own=1),
    "copy_": Op(lambda st, x, y: _none(x.copy_(y)), 2, own=1, weight=4),
    "set_rows": Op(lambda st, x, y, a, b, step: set_rows(x, y, a, b, step), 2, slice_of, own=1,
                   weight=3),
    "set_scalar": Op(lambda st, x, s: _none(x.__setitem__(0, s)), 1, scalar, own=1),
    "index_put": Op(lambda st, x, y: index_put(x, y), 2, own=1),
    "masked_fill_": Op(lambda st, x, s: _none(x.masked_fill_(x < 0, s)), 1, scalar, own=1),
    "index_add_": Op(lambda st, x, y: _none(x.index_add_(0, torch.tensor([0]), y)), 2, own=1),
    "transpose_": Op(lambda st, x: _none(x.t_()), own=1),
    "unsqueeze_": Op(lambda st, x: _none(x.unsqueeze_(0)), own=1),
    "squeeze_": Op(lambda st, x: _none(x.squeeze_()), own=1),
    "foreach_mul_": Op(lambda st, x, y: _none(torch._foreach_mul_([x, y], 0.5)), 2, own=2),
    "addmm_": Op(lambda st, x, y, z: _none(x.addmm_(y, z)), 3, own=1, disjoint=True),
    "resize_fill": Op(lambda st, x, shape, s: resize_fill(x, shape, s), 1,
                      lambda rng, ts: any_shape(rng, ts) | scalar(rng, ts), own=1),
    "shrink": Op(lambda st, x: shrink(x), own=1),
    "set_": Op(lambda st, x, y: _none(x.set_(y)), 2, own=2),
    "set_data": Op(lambda st, x, y: set_data(x, y), 2, own=2),
    "tame": Op(lambda st, x: tame(x), own=1),
    "out_add": Op(lambda st, x, y, z: _none(torch.add(y, z, out=x)), 3, own=1,
                  disjoint=True, weight=3),
    "out_mul": Op(lambda st, x, y, z: _none(torch.mul(y, z, out=x)), 3, own=1, disjoint=True),
    "out_mm": Op(lambda st, x, y, z: _none(torch.mm(y, z, out=x)), 3, own=1, disjoint=True,
                 weight=2),
    "out_gram": Op(lambda st, x, y: _none(torch.mm(y, y.t(), out=x)), 2, own=1,
                   disjoint=True, weight=2),
    "out_cat": Op(lambda st, x, y, z: _none(torch.cat([y, z], out=x)), 3, own=1, disjoint=True),
    "out_sum": Op(lambda st, x, y: _none(torch.amax(y, 0, out=x)), 2, own=1, disjoint=True),
}  # fmt: skip

RANDOM: dict[str, Op] = {
    "uniform_": Op(lambda st, x: _none(x.uniform_(generator=st.generator)), own=1, weight=2),
    "normal_": Op(lambda st, x: _none(x.normal_(generator=st.generator)), own=1),
    "random_": Op(lambda st, x: _none(x.random_(0, 7, generator=st.generator)), own=1),
    "bernoulli_": Op(lambda st, x: _none(x.bernoulli_(0.3, generator=st.generator)), own=1),
    "rand": Op(lambda st, x, shape, seed: torch.rand(shape, generator=st.generator), 1, drawn,
               weight=4),
    "randint": Op(lambda st, x, shape, seed: torch.randint(5, shape, generator=st.generator), 1,
                  drawn),
    "multinomial": Op(lambda st, x: torch.multinomial(x.detach().abs().float() + 0.1, 2,
                                                      generator=st.generator)),
    "reseed": Op(lambda st, x, shape, seed: _none(st.generator.manual_seed(seed)), 1, drawn),
    # From the process's default generator: in programs of one thread only.
    "dropout": Op(lambda st, x: F.dropout(x, 0.4), default_generator=True, weight=2),
    "rand_like": Op(lambda st, x: torch.rand_like(x), default_generator=True),
    "randn": Op(lambda st, x, shape, seed: torch.randn(shape), 1, drawn, default_generator=True),
    "randperm": Op(lambda st, x: torch.randperm(4), default_generator=True),
    "manual_seed": Op(lambda st, x, shape, seed: _none(torch.manual_seed(seed)), 1, drawn,
                      default_generator=True),
}  # fmt: skip

READS: dict[str, Op] = {
    f"read_{how}": Op(lambda st, x, how=how: log_read(st, x, how))
    for how in ("item", "bool", "tolist", "numpy", "meta")
}


def _none(_: Any) -> None:
    """For steps that write: their result is in the slot already."""


OPS: dict[str, Op] = MATH | INEXACT_WHEN_FUSED | VIEWS | WRITES | RANDOM | READS
GROUPS: list[tuple[int, dict[str, Op]]] = [
    (34, MATH), (8, INEXACT_WHEN_FUSED), (20, VIEWS), (26, WRITES), (8, RANDOM), (4, READS)
]  # fmt: skip


def make_inputs(seed: int) -> list[torch.Tensor]:
    """The first tensors of a program: several dtypes, and storages shared from the start."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        drawn = torch.empty(lengths(*shape)).uniform_(-1, 1, generator=generator)
        return drawn.to(dtype)

    base = draw(6, 4)
    rows = base[_scale : 5 * _scale]
    inputs = [base, rows, base.t(), draw(4, 4), draw(3, 4), draw(4), draw(2, 3), draw()]
    inputs += [draw(4, dtype=torch.float64), torch.arange(*lengths(6)), draw(4, 4) > 0, draw(12)]
    assert len(inputs) == SLOTS
    return inputs


def make_shared() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000)
    shapes = [(4,), (4, 4), (3, 4), ()]
    return [torch.empty(lengths(*shape)).uniform_(generator=generator) for shape in shapes]


def make_state(seed: int, shared: list[torch.Tensor]) -> State:
    return State(make_inputs(seed), shared, torch.Generator().manual_seed(seed))


def execute(state: State, step: Step) -> list[torch.Tensor]:
    """Runs one step; returns what it makes (nothing for a write or a read)."""
    made = OPS[step.op].run(state, *(state[i] for i in step.args), **step.params)
    return made if isinstance(made, list) else [] if made is None else [made]


def interpret(program: Program, state: State) -> State:
    """Runs all steps over `state`, in place. Ignore its warnings: of out= that is resized."""
    if program.default_generator:
        torch.manual_seed(program.seed)
    with torch.no_grad():
        for i, step in enumerate(program.steps):
            try:
                made = execute(state, step)
            except Exception as error:
                error.add_note(f"at step {i}: {step}")
                raise
            for target, tensor in zip(step.targets, made, strict=True):
                state.slots[target] = tensor
    return state


def generate(
    seed: int,
    length: int,
    default_generator: bool = True,
    without: frozenset[str] = frozenset(),
) -> Program:
    """A valid program of `length` steps; the same one for the same arguments and PyTorch."""
    rng = random.Random(seed)
    state = make_state(seed, make_shared())
    steps: list[Step] = []
    rng_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while len(steps) < length:
                steps += grow(rng, state, default_generator, without)
    finally:
        torch.set_rng_state(rng_state)
    return Program(seed, steps[:length], default_generator)


def grow(
    rng: random.Random, state: State, default_generator: bool, without: frozenset[str]
) -> list[Step]:
    """One more step, tried on `state`, and one that tames its result; none if it is refused."""
    (group,) = rng.choices([g for _, g in GROUPS], [w for w, _ in GROUPS])
    (name,) = rng.choices(list(group), [op.weight for op in group.values()])
    op = group[name]
    if name in without or (op.default_generator and not default_generator):
        return []
    args = tuple(pick(rng, i < op.own) for i in range(op.tensors))
    before = torch.get_rng_state(), state.generator.get_state()
    made = None
    try:
        step = Step(name, args, op.params(rng, [state[i] for i in args]))
        if name in WRITES:
            tensors = [state[i] for i in args]
            if (op.disjoint and shares_storage(tensors)) or may_race(tensors, op.own):
                return []
            if op.disjoint and grows_too_large(state, step):
                return []
            # A refused write may have resized its target before: try it on copies.
            execute(State(copy.deepcopy(state.slots), state.shared, torch.Generator()), step)
        else:
            made = execute(state, step)
        accepted = all(0 < t.numel() <= max_numel() for t in made or [])
    except (RuntimeError, IndexError, TypeError, ValueError):
        accepted = False
    if not accepted:  # nothing was written, but numbers may have been drawn
        torch.set_rng_state(before[0])
        state.generator.set_state(before[1])
        return []
    made = execute(state, step) if made is None else made
    targets = tuple(rng.sample(range(SLOTS), len(made)))
    for target, tensor in zip(targets, made, strict=True):
        state.slots[target] = tensor
    steps = [Step(name, args, step.params, targets)]
    written = targets or ((args[0],) if op.own else ())
    return steps + [tamed(state, i) for i in written if is_wild(state[i])]


def max_numel() -> int:
    return MAX_NUMEL * _scale**2


def grows_too_large(state: State, step: Step) -> bool:
    """Whether an `out=` would be resized beyond what tensors may have."""
    slots = [x.to("meta") for x in state.slots]
    shared = [x.to("meta") for x in state.shared]
    execute(State(slots, shared, torch.Generator()), step)
    return slots[step.args[0]].numel() > max_numel()


def pick(rng: random.Random, own: bool) -> int:
    """A slot, or now and then a shared input (below zero)."""
    return rng.randrange(SLOTS) if own or rng.random() < 0.9 else -rng.randint(1, 4)


def is_wild(x: torch.Tensor) -> bool:
    return x.is_floating_point() and not bool((x.abs() <= LIMIT).all())


def tamed(state: State, slot: int) -> Step:
    """Overlapping tensors cannot be written: those slots get a fresh one."""
    step = Step("tame", (slot,))
    try:
        execute(state, step)
        return step
    except RuntimeError:
        step = Step("tamed_copy", (slot,), {}, (slot,))
        (state.slots[slot],) = execute(state, step)
        return step


def may_race(tensors: list[torch.Tensor], written: int) -> bool:
    """Whether one thread of a kernel may write what another one reads or writes, as in
    `x.unfold(0, 2, 1).add_(1)`: then eager's own results vary."""
    large = [x for x in tensors[:written] if x.numel() >= KERNELS_FAN_OUT]
    return any(meets_itself(x) for x in large) or any(
        x is not y and shares_storage([x, y]) for x in large for y in tensors
    )


def meets_itself(x: torch.Tensor) -> bool:
    """Two of its elements are one place in memory."""
    extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return torch.arange(extent).as_strided(x.shape, x.stride()).unique().numel() < x.numel()


def shares_storage(tensors: list[torch.Tensor]) -> bool:
    """Of the first with any other."""
    first, *others = [x.untyped_storage().data_ptr() for x in tensors]
    return first in others


# --- comparison


def bits(x: torch.Tensor) -> bytes:
    return x.detach().clone(memory_format=torch.contiguous_format).numpy().tobytes()


def sharing(tensors: list[torch.Tensor]) -> list[int]:
    """For each tensor the first one with the same storage."""
    pointers = [x.untyped_storage().data_ptr() for x in tensors]
    return [pointers.index(p) if p else -1 for p in pointers]


def outcome(state: State, read: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """All that can be seen of a finished program, as comparable values by name."""
    plain = [read(x) for x in state.slots]
    seen: dict[str, Any] = {f"log {i}": entry for i, entry in enumerate(state.log)}
    for i, x in enumerate(plain):
        seen[f"slot {i} metadata"] = (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype)
        seen[f"slot {i} bits"] = bits(x)
    seen["shared storages"] = sharing(plain)
    seen["shared inputs"] = [bits(read(x)) for x in state.shared]
    seen["generator"] = state.generator.get_state().numpy().tobytes()
    return seen


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    names = expected.keys() | got.keys()
    return sorted(n for n in names if expected.get(n) != got.get(n))
