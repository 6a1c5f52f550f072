"""The operators of op_db in place, with `out=`, and with inputs that have to be refused.

`inplace` and `out` take each sample of an operator in the usual form: a tensor of its own, and an
empty result. `inplace_forms` and `out_forms` take the first few in forms that programs are less
used to: views, other strides, expanded tensors, tensors that require grad, and, of `out=`, other
dtypes and shapes. Eager refuses many of them, and says why. `fused` puts each sample between ops
that join groups. `error` are the inputs that PyTorch expects to be refused, `module_error` and
`optim_error` those of modules and optimizers; `dtype` are samples in dtypes that the operator does
not have.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .compare import Program, clone
from .known import DEVICE, METADATA_ONLY
from .lists import list_entries
from .suites import (
    Entry,
    Sample,
    Side,
    all_ops,
    build_op,
    module_entries,
    offset_entries,
    op_entries,
    op_inputs,
    op_name,
    optim_entries,
)

# Of an operator, so many samples in the unusual forms, and in wrong dtypes.
FEW = 3


def on_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    return tree_map(lambda x: function(x) if isinstance(x, torch.Tensor) else x, tree)


def strided(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the same values: every second element of a larger one, from the third on."""
    larger = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 2, **as_(x)) if x.dim() else None
    if larger is None:
        return torch.stack([x, x])[1]
    return larger[..., 2::2].copy_(x)


# --- in place: what first is made of the tensor that is written


def as_view(x: torch.Tensor) -> torch.Tensor:
    return x.clone().unsqueeze(0).expand(2, *x.shape).clone()[1]


def as_transposed(x: torch.Tensor) -> torch.Tensor:
    return x.clone() if x.dim() < 2 else x.mT.contiguous().mT


def as_expanded(x: torch.Tensor) -> torch.Tensor:
    """Eager refuses to write into it, where it has more than one element."""
    return x.clone().flatten()[:1].expand(x.shape) if x.numel() else x.clone()


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    """Eager refuses to write a leaf that requires grad."""
    return x


INPLACE = {"view": as_view, "transposed": as_transposed, "leaf": as_it_is}


def written_samples(op: Any, dtype: torch.dtype | None) -> Iterator[tuple[int, Any]]:
    for i, sample in enumerate(op_inputs(op, dtype)):
        if isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input:
            yield i, sample


def inplace_samples(op: Any, dtype: torch.dtype | None) -> Iterator[Sample]:
    """On a copy: a leaf that requires grad cannot be written."""
    for i, sample in written_samples(op, dtype):
        yield Sample(str(i), partial(build_inplace, op, sample, torch.Tensor.clone))


def inplace_form_samples(op: Any, dtype: torch.dtype | None) -> Iterator[Sample]:
    for i, sample in itertools.islice(written_samples(op, dtype), FEW):
        if sample.input.layout is not torch.strided:
            continue
        for label, form in INPLACE.items():
            yield Sample(f"{i} {label}", partial(build_inplace, op, sample, form))
        if refuses(build_inplace(op, sample, as_expanded, lambda x: x)):
            yield Sample(f"{i} expanded", partial(build_inplace, op, sample, as_expanded))


def build_inplace(op: Any, sample: Any, form: Any, side: Side) -> Program:
    given = side(clone((sample.input, list(sample.args), sample.kwargs)))
    first, args, kwargs = given
    return Program(
        call=lambda: op.inplace_variant(form(first), *args, **kwargs),
        inputs=lambda: given,
        state=lambda: given,
        process=sample.output_process_fn_grad or (lambda outputs: outputs),
        backward=op.supports_inplace_autograd,
    )


def refuses(program: Program) -> bool:
    """Some forms are of use only where eager refuses them; elsewhere what it does is undefined."""
    with torch.random.fork_rng():
        try:
            program.call()
        except Exception:
            return True
    return False


def inplace_entries(samples: Any, suite: str, dtype: torch.dtype | None) -> list[Entry]:
    return [
        Entry(suite, op_name(op), partial(samples, op, dtype))
        for op in all_ops()
        if op.inplace_variant is not None
    ]


# --- between ops that join groups


def negated(x: Any) -> Any:
    """Exact, and its own inverse."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_quantized:
        return x
    if x.dtype == torch.bool:
        return x.logical_not()
    wide = x.dtype.itemsize > 1
    return x.neg() if wide and (x.is_signed() or x.is_complex()) else x


def fused_samples(op: Any, dtype: torch.dtype | None) -> Iterator[Sample]:
    for i, sample in enumerate(op_inputs(op, dtype)):
        if isinstance(sample.input, torch.Tensor):
            values = f"op:{op_name(op)}" not in METADATA_ONLY
            yield Sample(str(i), partial(build_fused, op, sample, values))


def build_fused(op: Any, sample: Any, values: bool, side: Side) -> Program:
    """A single op joins no group: this one has its first argument from others, and its results go
    to others."""
    given = side(clone((sample.input, list(sample.args), sample.kwargs)))
    first, args, kwargs = given
    return Program(
        call=lambda: tree_map(negated, op(negated(negated(first)), *args, **kwargs)),
        inputs=lambda: given,
        state=lambda: given,
        process=sample.output_process_fn_grad or (lambda outputs: outputs),
        backward=op.supports_autograd,
        values=values,
    )


def fused_entries(dtype: torch.dtype | None) -> list[Entry]:
    return [Entry("fused", op_name(op), partial(fused_samples, op, dtype)) for op in all_ops()]


# --- out=: what is made for a result, given the result of the call without out=


def as_(x: torch.Tensor) -> Any:
    return {"dtype": x.dtype, "device": x.device}


def empty(x: torch.Tensor) -> torch.Tensor:
    """The operator has to resize it."""
    return torch.empty(0, **as_(x))


def same_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x, memory_format=torch.contiguous_format)


def other_shape(x: torch.Tensor) -> torch.Tensor:
    """Eager warns, and resizes it."""
    return torch.zeros(*x.shape, 2, **as_(x))


def wider(x: torch.Tensor) -> torch.Tensor:
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return torch.zeros(x.shape, dtype=dtype, device=x.device)


def narrower(x: torch.Tensor) -> torch.Tensor:
    """Eager refuses results that cannot be cast so."""
    dtype = torch.int16 if x.dtype != torch.bool else torch.bool
    return torch.zeros(x.shape, dtype=dtype, device=x.device)


def with_grad(x: torch.Tensor) -> torch.Tensor:
    made = same_shape(x)
    return made.requires_grad_() if x.is_floating_point() or x.is_complex() else made


def expanded(x: torch.Tensor) -> torch.Tensor:
    """Kernels that do not look would write beyond a storage of one element."""
    return torch.zeros(x.numel() + 1, **as_(x)).as_strided(x.shape, (0,) * x.dim())


OUT = {
    "same shape": same_shape,
    "strided": lambda x: strided(torch.zeros_like(x)),
    "other shape": other_shape,
    "wider": wider,
    "narrower": narrower,
    "requires grad": with_grad,
}


def results(op: Any, dtype: torch.dtype | None) -> Iterator[tuple[int, Any, Any]]:
    """Number of the sample, its arguments without grad, what the operator makes of them."""
    for i, sample in enumerate(op_inputs(op, dtype)):
        plain = on_tensors(torch.Tensor.detach, (sample.input, list(sample.args), sample.kwargs))
        with torch.random.fork_rng():
            first, args, kwargs = clone(plain)
            result = op(first, *args, **kwargs)
        # torch.equal() and the like have no out=, whatever their entry says.
        if all(isinstance(x, torch.Tensor) for x in tree_leaves(result)):
            yield i, plain, result


def out_samples(op: Any, dtype: torch.dtype | None) -> Iterator[Sample]:
    for i, plain, result in results(op, dtype):
        yield Sample(str(i), partial(build_out, op, plain, result, empty))


def out_form_samples(op: Any, dtype: torch.dtype | None) -> Iterator[Sample]:
    for i, plain, result in itertools.islice(results(op, dtype), FEW):
        if any(x.layout is not torch.strided for x in tree_leaves(result)):
            continue
        for label, form in OUT.items():
            yield Sample(f"{i} {label}", partial(build_out, op, plain, result, form))
        if refuses(build_out(op, plain, result, expanded, lambda x: x)):
            yield Sample(f"{i} expanded", partial(build_out, op, plain, result, expanded))


def build_out(op: Any, plain: Any, result: Any, form: Any, side: Side) -> Program:
    out = side(on_tensors(form, result))
    given = side(clone(plain))
    first, args, kwargs = given
    return Program(
        call=lambda: op(first, *args, **kwargs, out=out),
        inputs=lambda: (),
        state=lambda: (given, out),
        backward=False,
    )


def out_entries(samples: Any, suite: str, dtype: torch.dtype | None) -> list[Entry]:
    return [
        Entry(suite, op_name(op), partial(samples, op, dtype))
        for op in all_ops()
        if op.supports_out and f"op:{op_name(op)}" not in METADATA_ONLY
    ]


# --- what has to be refused


def error_samples(op: Any) -> Iterator[Sample]:
    for i, error in enumerate(list(op.error_inputs(DEVICE))):
        yield Sample(str(i), partial(build_op, op, error.sample_input, True))


def error_entries(_: torch.dtype | None) -> list[Entry]:
    """PyTorch chooses the dtypes of what has to be refused."""
    return [
        Entry("error", op_name(op), partial(error_samples, op))
        for op in all_ops()
        if op.error_inputs_func is not None
    ]


def module_error_samples(info: Any) -> Iterator[Sample]:
    for training in (True, False) if info.train_and_eval_differ else (True,):
        errors = info.module_error_inputs_func(
            info, device=DEVICE, dtype=torch.float32, requires_grad=False, training=training
        )
        for i, error in enumerate(list(errors)):
            label = f"{i} {'train' if training else 'eval'}"
            yield Sample(label, partial(build_refused_module, info, error, training))


def build_refused_module(info: Any, error: Any, training: bool, side: Side) -> Program:
    """Refused in the constructor, or, made before, when it is called."""
    torch.manual_seed(0)
    given = error.module_error_input
    args, kwargs = clone((list(given.constructor_input.args), given.constructor_input.kwargs))
    if error.error_on.name == "CONSTRUCTION_ERROR":
        made = side((args, kwargs))
        return Program(call=lambda: info.module_cls(*made[0], **made[1]) and None)
    module = side(info.module_cls(*args, **kwargs).train(training))
    inputs = side(clone((list(given.forward_input.args), given.forward_input.kwargs)))
    return Program(call=lambda: module(*inputs[0], **inputs[1]), state=lambda: inputs)


def module_error_entries(_: torch.dtype | None) -> list[Entry]:
    from torch.testing._internal.common_modules import module_db

    return [
        Entry("module_error", info.name, partial(module_error_samples, info))
        for info in module_db
        if info.module_error_inputs_func is not None
    ]


def optim_error_samples(info: Any) -> Iterator[Sample]:
    for error in info.optim_error_inputs_func(device=DEVICE, dtype=torch.float32):
        label = error.optimizer_error_input.desc
        yield Sample(label, partial(build_refused_optimizer, info, error))


def build_refused_optimizer(info: Any, error: Any, side: Side) -> Program:
    """Some are not refused, but warned of: what was said is the result."""
    given = error.optimizer_error_input
    plain = clone((given.params, given.kwargs))
    params, kwargs = side(plain)
    for x, y in zip(tree_leaves(params), tree_leaves(plain[0]), strict=True):
        if isinstance(y, torch.Tensor) and y.grad is not None and x.grad is None:
            x.grad = side(y.grad)

    def call() -> list[str]:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            optimizer = info.optim_cls(params, **kwargs)
            if error.error_on.name == "STEP_ERROR":
                optimizer.step()
        return [str(warning.message) for warning in heard]

    return Program(call, state=lambda: params, backward=False)


def optim_error_entries(_: torch.dtype | None) -> list[Entry]:
    from torch.testing._internal.common_optimizers import optim_db

    return [
        Entry("optim_error", info.name, partial(optim_error_samples, info))
        for info in optim_db
        if info.optim_error_inputs_func is not None
    ]


DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64,
    torch.uint8, torch.bool,
)  # fmt: skip


def dtype_samples(op: Any) -> Iterator[Sample]:
    """The first samples, in each dtype that the operator does not have."""
    missing = [dtype for dtype in DTYPES if dtype not in op.supported_dtypes(DEVICE)]
    for i, sample in enumerate(op_inputs(op, None)):
        if i >= FEW:
            return
        own = next(
            (x.dtype for x in tree_leaves(sample.input) if isinstance(x, torch.Tensor)), None
        )
        for dtype in missing if own else ():
            changed = cast(sample, own, dtype)
            if refuses(build_op(op, changed, True, lambda x: x)):
                label = f"{i} {str(dtype).removeprefix('torch.')}"
                yield Sample(label, partial(build_op, op, changed, True))


def cast(sample: Any, own: torch.dtype, dtype: torch.dtype) -> Any:
    """Tensors of the sample's own dtype change; indices and the like stay."""

    def cast_one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype != own:
            return x
        grad = x.requires_grad and (dtype.is_floating_point or dtype.is_complex)
        return x.detach().to(dtype).requires_grad_(grad)

    return sample.transform(cast_one)


def dtype_entries(_: torch.dtype | None) -> list[Entry]:
    return [Entry("dtype", op_name(op), partial(dtype_samples, op)) for op in all_ops()]


SUITES: dict[str, Callable[[torch.dtype | None], list[Entry]]] = {
    "op": partial(op_entries, "op"),
    "no_grad": partial(op_entries, "no_grad"),
    "foreach": list_entries,
    "module": module_entries,
    "optim": optim_entries,
    "offset": offset_entries,
    "fused": fused_entries,
    "inplace": partial(inplace_entries, inplace_samples, "inplace"),
    "inplace_forms": partial(inplace_entries, inplace_form_samples, "inplace_forms"),
    "out": partial(out_entries, out_samples, "out"),
    "out_forms": partial(out_entries, out_form_samples, "out_forms"),
    "error": error_entries,
    "module_error": module_error_entries,
    "optim_error": optim_error_entries,
    "dtype": dtype_entries,
}


def entries(suite: str, dtype: str = "default") -> list[Entry]:
    """Those of another dtype than "default" have no sample where that dtype is not supported."""
    return SUITES[suite](None if dtype == "default" else getattr(torch, dtype))
