"""Every op of the table (csrc/fuse/op_table.cpp) as Triton: against eager in the interpreter or on
a GPU, and compiled."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from tests.fuse.compiling import compile_all, requests_of
from tests.fuse.programs import groups_of, plans_of
from tests.fuse.replay import Replay, check, close
from tests.support.outcomes import Raised, outcome
from tests.test_fusion_ops import OPS, Calls

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int8, torch.int64,
          torch.bool)  # fmt: skip
NAMES = sorted(name for name, op in OPS.items() if not op._schema.is_mutable)
CASE = "gaps", 1
PARTS = 8


class OrdinaryCalls(Calls):
    """Of numbers whose exponentials are finite: of others cosh and sinh are infinite in some of
    torch's loops."""

    def _tensor(self, argument, place, layout):
        x = super()._tensor(argument, place, layout)
        return x.clamp(max=80) if self.base in ("cosh", "sinh") and x.dtype != torch.bool else x


def calls_of(names, dtype):
    """The calls of these ops that eager does not refuse."""
    for name in names:
        calls = OrdinaryCalls(name, dtype, ordinary=True)
        if [*calls.cases()] and not isinstance(outcome(lambda c=calls: run(c)), Raised):
            yield calls


def run(calls, *tensors):
    """The op of these tensors, in place of the case's own."""
    arguments, named = calls.arguments(*CASE)
    left = list(tensors)
    if tensors:
        arguments = [left.pop(0) if torch.is_tensor(x) else x for x in arguments]
    made = calls.op(*arguments, **named)
    return [x.clone() for x in (made if isinstance(made, (tuple, list)) else [made])]


def tensors_of(calls):
    return [x for x in calls.arguments(*CASE)[0] if torch.is_tensor(x)]


@pytest.mark.limit(400)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_op_is_close_to_eager(part, device):
    ran = 0
    for dtype in DTYPES:
        for calls in calls_of(NAMES[part::PARTS], dtype):
            plans = plans_of(lambda *xs, calls=calls: run(calls, *xs), *tensors_of(calls))
            try:
                ran += check(Replay(plans, device, 1024), close)
            except Exception as error:
                raise AssertionError(f"{calls.describe(CASE)}: {error}") from error
    assert ran > 40


@pytest.mark.plain_process
@pytest.mark.limit(400)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.int8], ids=str)
def test_each_op_compiles(dtype, tmp_path):
    """A dozen of them in one kernel: the time goes by more than their number. (int64 stands for the
    signed integers. Every other op does for what is computed in float32 or int64, and only rounded,
    and for float64, which compiles slowest.)"""
    few = dtype in (torch.float64, torch.bfloat16, torch.uint8, torch.bool)
    all_calls = list(calls_of(NAMES[:: 1 + few], dtype))
    compiled = set()
    for start in range(0, len(all_calls), 12):
        some = all_calls[start : start + 12]

        def program(*tensors, some=some):
            left = list(tensors)
            return [y for c in some for y in run(c, *[left.pop(0) for _ in tensors_of(c)])]

        plans = plans_of(program, *(x for calls in some for x in tensors_of(calls)))
        compile_all(list(requests_of(plans, (90,))), tmp_path)
        compiled |= {op for group in groups_of(plans) for op in group.ops}
    assert len(compiled) >= 45 // (1 + few)
