"""The entries: for each one, samples that build the same program twice, for eager and for lazy.

`op`, `module` and `optim` are PyTorch's op_db, module_db and optim_db, `no_grad` is op_db without
gradients. `offset` are the operators
on views: what was learned of arguments at one place of a storage is used for those at another.
variants.py has the operators in place, with `out=`, and with inputs that have to be refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .compare import Program, clone
from .known import DEVICE, KNOWN, METADATA_ONLY

# Given an object of plain tensors, or a module, returns this side's form of it.
Side = Callable[[Any], Any]


@dataclass
class Sample:
    label: str
    build: Callable[[Side], Program]


@dataclass
class Entry:
    suite: str
    name: str
    samples: Callable[[], Iterator[Sample]]

    @property
    def key(self) -> str:
        return f"{self.suite}:{self.name}"


def has_tensor(tree: Any) -> bool:
    return any(isinstance(x, torch.Tensor) for x in tree_leaves(tree))


# --- operators


def op_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def op_dtype(op: Any, wanted: torch.dtype | None) -> torch.dtype | None:
    """`wanted` if the operator has it there; without, float32 or the first that it has."""
    dtypes = op.supported_dtypes(DEVICE)
    if wanted is not None:
        return wanted if wanted in dtypes else None
    if torch.float32 in dtypes:
        return torch.float32
    return min(dtypes, key=str, default=None)


def op_inputs(op: Any, wanted: torch.dtype | None, grad: bool = True) -> Iterator[Any]:
    dtype = op_dtype(op, wanted)
    if dtype is None:
        return
    grad = grad and op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    yield from list(op.sample_inputs(DEVICE, dtype, requires_grad=grad))


def op_samples(op: Any, key: str, grad: bool, dtype: torch.dtype | None) -> Iterator[Sample]:
    for i, sample in enumerate(op_inputs(op, dtype, grad)):
        yield Sample(str(i), partial(build_op, op, sample, key not in METADATA_ONLY))


def build_op(op: Any, sample: Any, values: bool, side: Side) -> Program:
    process = sample.output_process_fn_grad or (lambda outputs: outputs)
    return build_call(
        op, sample, side, process=process, backward=op.supports_autograd, values=values
    )


def build_call(function: Callable[..., Any], sample: Any, side: Side, **more: Any) -> Program:
    """`more`: what else a Program has."""
    given = side(clone((sample.input, list(sample.args), sample.kwargs)))
    first, args, kwargs = given
    return Program(
        call=lambda: function(first, *args, **kwargs),
        inputs=lambda: given,
        state=lambda: given,
        has_tensors=has_tensor(given),
        **more,
    )


def all_ops() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def op_entries(suite: str, dtype: torch.dtype | None) -> list[Entry]:
    """`op`, or `no_grad`: the same without gradients, which takes other ways into the recorder."""
    return [
        Entry(
            suite, op_name(op), partial(op_samples, op, f"op:{op_name(op)}", suite == "op", dtype)
        )
        for op in all_ops()
    ]


OFFSETS = (3, 0, 4)  # elements; view_as_complex and view(dtype) refuse the odd one


def offset_samples(op: Any, key: str, dtype: torch.dtype | None) -> Iterator[Sample]:
    for i, sample in enumerate(op_inputs(op, dtype)):
        for offset in OFFSETS:
            values = key not in METADATA_ONLY
            yield Sample(f"{i}+{offset}", partial(build_offset, op, sample, offset, values))


def build_offset(op: Any, sample: Any, offset: int, values: bool, side: Side) -> Program:
    """Each argument starts `offset` elements further into a storage of its own than it did."""
    program = clone((sample.input, list(sample.args), sample.kwargs))
    moved = SampleOf(*tree_map(partial(move, offset=offset), program), sample)
    return build_op(op, moved, values, side)


@dataclass
class SampleOf:
    input: Any
    args: list[Any]
    kwargs: dict[str, Any]
    origin: Any

    @property
    def output_process_fn_grad(self) -> Any:
        return self.origin.output_process_fn_grad


def move(leaf: Any, offset: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return leaf
    if leaf.is_conj() or leaf.is_neg() or leaf.is_quantized:
        return leaf
    whole = leaf.detach().as_strided((leaf.untyped_storage().nbytes() // leaf.itemsize,), (1,), 0)
    base = torch.cat([torch.zeros(offset, dtype=leaf.dtype, device=leaf.device), whole])
    placed = base.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset() + offset)
    return placed.detach().requires_grad_(leaf.requires_grad)


def offset_entries(dtype: torch.dtype | None) -> list[Entry]:
    return [
        Entry("offset", op_name(op), partial(offset_samples, op, f"op:{op_name(op)}", dtype))
        for op in all_ops()
        if f"op:{op_name(op)}" not in KNOWN
    ]


# --- modules


def module_samples(info: Any, wanted: torch.dtype | None) -> Iterator[Sample]:
    dtype = wanted or torch.float32
    # The lists of module_db name few floats; modules take the others too.
    if not dtype.is_floating_point and dtype not in info.dtypes:
        return
    flags = (True, False) if info.train_and_eval_differ else (True,)
    for training in flags:
        inputs = info.module_inputs_func(
            info, device=DEVICE, dtype=dtype, requires_grad=True, training=training
        )
        for i, given in enumerate(list(inputs)):
            label = f"{i} {'train' if training else 'eval'} {given.desc}".strip()
            yield Sample(label, partial(build_module, info, given, training, dtype))


def build_module(info: Any, given: Any, training: bool, dtype: torch.dtype, side: Side) -> Program:
    torch.manual_seed(0)
    args, kwargs = clone((list(given.constructor_input.args), given.constructor_input.kwargs))
    module = side(info.module_cls(*args, **kwargs).to(DEVICE, dtype).train(training))
    call_given = given.forward_input
    inputs = side(clone((list(call_given.args), call_given.kwargs)))
    return Program(
        call=lambda: module(*inputs[0], **inputs[1]),
        inputs=lambda: (list(module.parameters()), inputs),
        state=lambda: (dict(module.named_parameters()), dict(module.named_buffers()), inputs),
    )


def module_entries(dtype: torch.dtype | None) -> list[Entry]:
    from torch.testing._internal.common_modules import module_db

    return [Entry("module", info.name, partial(module_samples, info, dtype)) for info in module_db]


# --- optimizers

STEPS = 3


def optim_samples(info: Any, wanted: torch.dtype | None) -> Iterator[Sample]:
    from torch.testing._internal.common_optimizers import (
        _get_optim_inputs_including_global_cliquey_kwargs as all_inputs,
    )

    dtype = wanted or torch.float32
    if not dtype.is_floating_point and not (dtype.is_complex and info.supports_complex):
        return
    for i, given in enumerate(all_inputs(DEVICE, dtype, info)):
        yield Sample(f"{i} {given.desc}", partial(build_optim, info, given.kwargs, dtype))
    if "foreach" in info.supported_impls:  # PyTorch tests it on accelerators only
        yield Sample("foreach", partial(build_optim, info, {"foreach": True}, dtype))


def build_optim(info: Any, kwargs: dict[str, Any], dtype: torch.dtype, side: Side) -> Program:
    torch.manual_seed(0)
    sparse = info.only_supports_sparse_grads
    module = torch.nn.Embedding(7, 3, sparse=True) if sparse else small_model(info)
    module = side(module.to(DEVICE, dtype))
    x = torch.randint(7, (5,)) if sparse else torch.randn(5, 4).to(dtype)
    x = side(x.to(DEVICE))
    # A copy: some optimizers keep tensors of their options.
    optimizer = info.optim_cls(module.parameters(), **clone(kwargs))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        result = module(x)
        loss = (result.abs() if dtype.is_complex else result).square().sum()
        loss.backward()
        return loss

    def train() -> list[torch.Tensor]:
        return [step(info, optimizer, closure).detach() for _ in range(STEPS)]

    def state() -> Any:
        grads = [p.grad for p in module.parameters()]
        return list(module.parameters()), grads, optimizer.state_dict()["state"]

    return Program(call=train, state=state, backward=False)


def small_model(info: Any) -> torch.nn.Module:
    # Muon takes matrices only.
    bias = info.name != "Muon"
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6, bias=bias), torch.nn.Tanh(), torch.nn.Linear(6, 2, bias=bias)
    )


def step(info: Any, optimizer: Any, closure: Callable[[], torch.Tensor]) -> torch.Tensor:
    if info.step_requires_closure:
        return torch.as_tensor(optimizer.step(closure))
    loss = closure()
    optimizer.step()
    return loss


def optim_entries(dtype: torch.dtype | None) -> list[Entry]:
    from torch.testing._internal.common_optimizers import optim_db

    return [Entry("optim", info.name, partial(optim_samples, info, dtype)) for info in optim_db]


def first_samples(entry: Entry, limit: int | None) -> Iterator[Sample]:
    return itertools.islice(entry.samples(), limit)
