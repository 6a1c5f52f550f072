"""What "equal" means: one program observed eagerly and lazily, and the difference in words."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

import lazyeng

from .known import DEPENDS_ON_VALUES, DEVICE


@dataclass
class Program:
    """One call, its differentiable inputs, and what else it leaves behind."""

    call: Callable[[], Any]
    inputs: Callable[[], Any] = (
        tuple  # asked after the call: lazy modules make their parameters in it
    )
    state: Callable[[], Any] = tuple
    process: Callable[[Any], Any] = lambda outputs: outputs  # picks what is differentiated
    backward: bool = True
    values: bool = True  # False: the results are uninitialised memory
    # The call was given tensors. Without any there is nothing lazy to record from: torch.zeros(3).
    has_tensors: bool = True


@dataclass
class Observed:
    """What one side did: values by phase, or the exception of a phase."""

    outputs: Any = None
    grads: Any = None
    state: Any = None
    rng: torch.Tensor | None = None
    errors: dict[str, BaseException] = field(default_factory=dict)  # "forward", "backward"
    plain: list[str] = field(default_factory=list)  # results that are not LazyTensors
    late: bool = False  # the call returned, and reading its results raised
    late_backward: bool = False  # the same of its gradients


def clone(tree: Any) -> Any:
    """Deep copies of all tensors; strides, offsets and shared storages stay."""
    memo: dict[int, Any] = {}

    def copy_one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in memo:
            # deepcopy refuses tensors that are not leaves; samples hold a few.
            source = leaf if leaf.is_leaf else leaf.detach()
            strided = leaf.layout is torch.strided  # the others have no storage to keep
            copied = copy.deepcopy(source, memo) if strided else source.detach().clone()
            memo[id(leaf)] = copied.requires_grad_(leaf.requires_grad)
        return memo[id(leaf)]

    return tree_map(copy_one, tree)


def to_lazy(tree: Any) -> Any:
    """LazyTensors over the same storages; the same tensor twice stays the same object."""
    seen: dict[int, Any] = {}

    def wrap_one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        if id(leaf) not in seen:
            lazy = lazyeng.wrap(leaf.detach()).requires_grad_(leaf.requires_grad)
            seen[id(leaf)] = (lazy, leaf)  # the leaf too: its id must not be used again
        return seen[id(leaf)][0]

    return tree_map(wrap_one, tree)


def read(tree: Any) -> Any:
    """Plain tensors: waits for each one and raises its failure."""
    return tree_map(lambda x: lazyeng.unwrap(x) if isinstance(x, torch.Tensor) else x, tree)


def differentiable(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad]


def output_grads(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Random, and the same on both sides; drawn from an own generator."""
    generator = torch.Generator().manual_seed(1)
    # The output's strides as well: a gradient's layout decides the layout of what follows.
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(
            torch.randn(x.shape, dtype=x.dtype, generator=generator)
        )
        if x.layout is torch.strided and not has_overlap(x)
        else torch.ones_like(x, requires_grad=False)
        for x in outputs
    ]


def has_overlap(x: torch.Tensor) -> bool:
    """Whether elements may share memory: what is copied into it is anybody's guess then (and the
    result of `unfold` is such a view)."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def run_backward(program: Program, outputs: Any, lazy: bool) -> Any:
    """Gradients of all differentiable outputs; None where there is nothing to differentiate."""
    roots = differentiable(program.process(outputs))
    leaves = differentiable(program.inputs())
    if not (program.backward and roots and leaves):
        return None
    grads = output_grads(roots)
    return torch.autograd.grad(roots, leaves, to_lazy(grads) if lazy else grads, allow_unused=True)


def observe_eager(program: Program) -> Observed:
    seen = Observed()
    torch.manual_seed(0)
    try:
        outputs = program.call()
    except Exception as error:
        seen.errors["forward"] = error
        return seen
    try:
        seen.grads = with_flags(run_backward(program, outputs, lazy=False))
    except Exception as error:
        seen.errors["backward"] = error
    seen.outputs = with_flags(outputs)
    seen.state = read(program.state())
    seen.rng = random_state()
    return seen


def observe_lazy(program: Program, block: Callable[[], Any], expected: Observed) -> Observed:
    """Runs what eager ran and reads only at the end, so that the modes really differ."""
    seen = Observed()
    torch.manual_seed(0)
    try:
        with block():
            outputs = program.call()
            if "forward" in expected.errors:
                seen.late = True
                read(outputs)
    except Exception as error:
        seen.errors["forward"] = error
        drain()
        return seen
    try:
        with block():
            grads = run_backward(program, outputs, lazy=True)
            seen.late_backward = True
        seen.grads = with_flags(grads)
    except Exception as error:
        seen.errors["backward"] = error
        if "backward" in expected.errors:
            drain()
    seen.plain = plain_results(program, outputs, grads) if not seen.errors else []
    try:
        seen.outputs = with_flags(outputs)
        seen.state = read(program.state())
        lazyeng.synchronize()  # nothing may be left to raise
    except Exception as error:
        seen.errors["forward"] = error
        drain()
    seen.rng = random_state()
    return seen


def random_state() -> torch.Tensor:
    states = [torch.get_rng_state()]
    if DEVICE != "cpu":
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def with_flags(tree: Any) -> Any:
    """Reads; requires_grad has to survive it, so that it can be compared."""

    def read_one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return lazyeng.unwrap(leaf.detach()).requires_grad_(leaf.requires_grad)

    return tree_map(read_one, tree)


def drain() -> None:
    with contextlib.suppress(Exception):
        lazyeng.synchronize()


def plain_results(program: Program, outputs: Any, grads: Any) -> list[str]:
    """Names of strided results whose type is not LazyTensor."""
    if not program.has_tensors:
        return []
    given = {id(x) for x in tree_leaves((program.inputs(), program.state()))}
    return [
        f"{where} is a {type(leaf).__name__}"
        for where, tree in (("output", outputs), ("grad", grads))
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor)
        and leaf.layout is torch.strided
        and type(leaf) is not lazyeng.LazyTensor
        and id(leaf) not in given  # what an in-place op returns is what it was given
    ]


def difference(expected: Observed, got: Observed, values: bool) -> str | None:
    """In words, or None if they are equal."""
    for phase in ("forward", "backward"):
        words = error_difference(expected.errors.get(phase), got.errors.get(phase))
        if words:
            return f"{phase}: {words}"
    if "forward" in expected.errors:
        return late_error(expected.errors["forward"]) if got.late else None
    if "backward" in expected.errors and got.late_backward:
        words = late_error(expected.errors["backward"], "backward")
        if words:
            return words
    for part in ("outputs", "grads", "state"):
        if part == "grads" and "backward" in expected.errors:
            continue
        words = tree_difference(getattr(expected, part), getattr(got, part), values)
        if words:
            return f"{part}: {words}"
    if not torch.equal(expected.rng, got.rng):
        return "the random generator is in another state"
    return f"type: {got.plain[0]}" if got.plain else None


def error_difference(expected: BaseException | None, got: BaseException | None) -> str | None:
    if expected is None:
        return got and f"raised {type(got).__name__}: {first_line(got)}"
    if got is None:
        return f"did not raise {type(expected).__name__}: {first_line(expected)}"
    if not isinstance(got, type(expected)) or type(got).__name__ != type(expected).__name__:
        return f"raised {type(got).__name__} for {type(expected).__name__}: {first_line(got)}"
    if message(got) != message(expected):
        return f"message {first_line(got)!r} for {first_line(expected)!r}"
    return None


def late_error(expected: BaseException, phase: str = "forward") -> str | None:
    """Only what depends on values is raised when they are read; all else at the call."""
    if any(re.search(pattern, str(expected)) for pattern in DEPENDS_ON_VALUES):
        return None
    return f"{phase}: raised at the read, not at the call: {first_line(expected)}"


def error_at_the_read(got: Observed) -> str | None:
    """Of a call that eager refuses and that was recorded."""
    error = got.errors.get("forward") if got.late else None
    return error and f"{type(error).__name__}: {first_line(error)}"


def message(error: BaseException) -> str:
    """Addresses of objects differ from one run to the next, in eager too; and a message that names
    the class of its argument names the class that it has (torch puts !marks! around it)."""
    text = re.sub(r"0x[0-9a-f]+", "0x..", str(error)).replace("LazyTensor", "Tensor")
    return text.replace("!Tensor!", "Tensor")


def first_line(error: BaseException) -> str:
    return (message(error).splitlines() or [""])[0][:160]


def tree_difference(expected: Any, got: Any, values: bool) -> str | None:
    expected_leaves, expected_spec = tree_flatten(expected)
    got_leaves, got_spec = tree_flatten(got)
    if expected_spec != got_spec:
        return f"structure {got_spec} for {expected_spec}"
    for i, (a, b) in enumerate(zip(expected_leaves, got_leaves, strict=True)):
        words = leaf_difference(a, b, values)
        if words:
            return f"[{i}] {words}"
    return None


def leaf_difference(expected: Any, got: Any, values: bool) -> str | None:
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        return tensor_difference(expected, got, values)
    if isinstance(expected, (bool, int, float, complex)) and type(expected) is type(got):
        return (
            None
            if expected == got or not values or expected != expected
            else f"{got} for {expected}"
        )
    return None if type(expected) is type(got) and expected == got else f"{got!r} for {expected!r}"


def tensor_difference(expected: torch.Tensor, got: torch.Tensor, values: bool) -> str | None:
    for what in ("dtype", "shape", "layout", "device", "requires_grad"):
        if getattr(expected, what) != getattr(got, what):
            return f"{what} {getattr(got, what)} for {getattr(expected, what)}"
    expected, got = expected.detach(), got.detach()
    if expected.layout is torch.strided:
        if expected.stride() != got.stride():
            return f"strides {got.stride()} for {expected.stride()}"
        if expected.is_conj() != got.is_conj() or expected.is_neg() != got.is_neg():
            return "conj or neg bit"
    if not values:
        return None
    try:
        torch.testing.assert_close(got, expected, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return None
