"""`foreach`: PyTorch's data bases of functions over lists of tensors, which optimizers and the
clipping of gradients call; both forms, the one in place without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as data_bases

from .known import DEVICE
from .suites import Entry, Sample, build_call, op_dtype

NAMES = ("unary", "binary", "pointwise", "reduce", "other")


def all_lists() -> list[Any]:
    return [info for name in NAMES for info in getattr(data_bases, f"foreach_{name}_op_db", [])]


def list_samples(info: Any, wanted: torch.dtype | None) -> Iterator[Sample]:
    dtype = op_dtype(info, wanted)
    if dtype is None:
        return
    floats = dtype.is_floating_point or dtype.is_complex
    for function, label, grad in (
        (info.method_variant, "", info.supports_autograd and floats),
        (info.inplace_variant, " in place", False),
    ):
        if function is None:
            continue
        for i, sample in enumerate(info.sample_inputs(DEVICE, dtype, requires_grad=grad)):
            yield Sample(f"{i}{label}", partial(build_call, function, sample, backward=grad))


def list_entries(dtype: torch.dtype | None) -> list[Entry]:
    return [Entry("foreach", info.name, partial(list_samples, info, dtype)) for info in all_lists()]
