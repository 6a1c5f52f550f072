"""Which hand-written kernels are chosen, and that what is asked for compiles, without a device."""

import itertools

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from lazyeng.fuse.chosen import dropout, kernels
from lazyeng.fuse.chosen.calls import calls_from
from lazyeng.fuse.chosen.names import ALONE, LISTS, PAIRS
from lazyeng.fuse.chosen.requests import hand_written
from lazyeng.fuse.chosen.table import CHOICES, choose
from lazyeng.fuse.compiler import answers

pytestmark = pytest.mark.plain_process

ARCHES = (80, 90)
F32, F64, BF16, I64 = torch.float32, torch.float64, torch.bfloat16, torch.int64


def tensor(*sizes, dtype=F32, state="given", strides=None, aligned=True):
    if strides is None:
        strides = torch.empty(sizes, device="meta").stride()
    return dtype, sizes, strides, state, aligned


def made(*sizes, dtype=F32):
    return tensor(*sizes, dtype=dtype, state="made")


def dead(*sizes, dtype=F32):
    return tensor(*sizes, dtype=dtype, state="dead")


def calls(tensors, *rows, tf32=False):
    return calls_from({"tensors": tensors, "calls": rows, "tf32": tf32, "device": 0})


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """One with 132 multiprocessors whose torch draws as ours."""
    monkeypatch.setattr(dropout, "resident_blocks", lambda device: 132 * 8)
    monkeypatch.setattr(dropout, "is_torchs", lambda device, dtype, vector: True)


def drop(n, dtype, train=True, **look):
    tensors = tensor(n, dtype=dtype, **look), made(n, dtype=dtype), made(n, dtype=torch.bool)
    return calls(tensors, ("aten::native_dropout", (0, ..., train), (1, 2)))


def optimizer(op, n_lists, *options, dtype=F32, n=3):
    """Lists of n parameters, the numbers of their tensors one after another."""
    given = [tensor(5000 * (i % n + 1), dtype=dtype) for i in range(n * n_lists)]
    lists = [tuple(range(i * n, (i + 1) * n)) for i in range(n_lists)]
    return given, lists, op, options


def adam(op, amsgrad, dtype):
    given, lists, *_ = optimizer(op, 4 + amsgrad, dtype=dtype)
    steps = tuple(range(len(given), len(given) + 3))
    largest = lists[4] if amsgrad else ()
    arguments = (*lists[:4], largest, steps, ..., ..., ..., ..., ..., amsgrad, False, None, None)
    return calls([*given, tensor(), tensor(), tensor()], (op, arguments, ()))


def sgd(momentum, dtype):
    given, lists, *_ = optimizer("aten::_fused_sgd_", 2 + momentum, dtype=dtype)
    buffers = lists[2] if momentum else ()
    arguments = (*lists[:2], buffers, ..., ..., ..., ..., True, False, False, None, None)
    return calls(given, ("aten::_fused_sgd_", arguments, ()))


def layer_norm(rows, columns, dtype, weight=True):
    x, w = tensor(rows, columns, dtype=dtype), tensor(columns, dtype=dtype)
    statistics = made(rows, 1, dtype=F64 if dtype == F64 else F32)
    arguments = (0, [columns], *((1, 2) if weight else (None, None)), ...)
    results = [made(rows, columns, dtype=dtype), statistics, statistics]
    return calls([x, w, w, *results], ("aten::native_layer_norm", arguments, (3, 4, 5)))


def layer_norm_backward(rows, columns, dtype):
    x, w = tensor(rows, columns, dtype=dtype), tensor(columns, dtype=dtype)
    s = tensor(rows, 1, dtype=F64 if dtype == F64 else F32)
    results = [made(rows, columns, dtype=dtype), *[made(columns, dtype=dtype)] * 2]
    arguments = (0, 1, [columns], 2, 3, 4, 5, [True, True, True])
    name = "aten::native_layer_norm_backward"
    return calls([x, x, s, s, w, w, *results], (name, arguments, (6, 7, 8)))


def rms_norm(rows, columns, dtype, weight=True, eps=...):
    x, w = tensor(rows, columns, dtype=dtype), tensor(columns, dtype=dtype)
    rstd = made(rows, 1, dtype=F64 if dtype == F64 else F32)
    arguments = (0, [columns], 1 if weight else None, eps)
    results = [made(rows, columns, dtype=dtype), rstd]
    return calls([x, w, *results], ("aten::_fused_rms_norm", arguments, (2, 3)))


def rms_norm_backward(rows, columns, dtype):
    x, w = tensor(rows, columns, dtype=dtype), tensor(columns, dtype=dtype)
    rstd = tensor(rows, 1, dtype=F64 if dtype == F64 else F32)
    results = [made(rows, columns, dtype=dtype), made(columns, dtype=dtype)]
    arguments = (0, 1, [columns], 2, 3, [True, True])
    return calls([x, x, rstd, w, *results], ("aten::_fused_rms_norm_backward", arguments, (4, 5)))


def rows(op, columns, dtype):
    x, y = tensor(30, columns, dtype=dtype), made(30, columns, dtype=dtype)
    if "backward" in op:
        return calls([x, x, y], (op, (0, 1, -1, 6), (2,)))
    return calls([x, y], (op, (0, 1, False), (1,)))


def nll(dtype, weight, reduction):
    given = [tensor(40, 70, dtype=dtype), tensor(40, dtype=I64), tensor(70, dtype=dtype)]
    results = [made(*([40] if reduction == 0 else []), dtype=dtype), made(dtype=dtype)]
    arguments = (0, 1, 2 if weight else None, reduction, -100)
    return calls([*given, *results], ("aten::nll_loss_forward", arguments, (3, 4)))


def nll_backward(dtype, reduction, pair):
    dy = tensor(*([40] if reduction == 0 else []), dtype=dtype)
    given = [dy, tensor(40, 70, dtype=dtype), tensor(40, dtype=torch.uint8),
             tensor(70, dtype=dtype), tensor(dtype=dtype)]  # fmt: skip
    first = ("aten::nll_loss_backward", (0, 1, 2, 3, reduction, -100, 4), (5,))
    if not pair:
        return calls([*given, made(40, 70, dtype=dtype)], first)
    second = ("aten::_log_softmax_backward_data", (5, 1, 1, 6), (6,))
    return calls([*given, dead(40, 70, dtype=dtype), made(40, 70, dtype=dtype)], first, second)


def linear(op, dtype, k, tf32=False, state=dead):
    given = [tensor(96, dtype=dtype), tensor(200, k, dtype=dtype),
             tensor(k, 96, dtype=dtype, strides=(1, k))]  # fmt: skip
    results = [state(200, 96, dtype=dtype), made(200, 96, dtype=dtype)]
    act = (3, "tanh") if op == "aten::gelu" else (3,)
    return calls([*given, *results], ("aten::addmm", (0, 1, 2, 1, 1), (3,)), (op, act, (4,)),
                 tf32=tf32)  # fmt: skip


def chain(dtype):
    """AdamW's second half: the roots are nobody's."""
    n = 3
    tensors = [tensor(5000 * (i % n + 1), dtype=dtype) for i in range(3 * n)]
    tensors += [dead(5000 * (i + 1), dtype=dtype) for i in range(n)]
    params, means, squares, roots = (tuple(range(i * n, (i + 1) * n)) for i in range(4))
    return calls(
        tensors, ("aten::_foreach_sqrt", (squares,), roots),
        ("aten::_foreach_div_.ScalarList", (roots, ...), ()),
        ("aten::_foreach_add_.Scalar", (roots, ...), ()),
        ("aten::_foreach_lerp_.Scalar", (means, squares, ...), ()),
        ("aten::_foreach_addcmul_.Scalar", (means, squares, roots, 1), ()),
        ("aten::_foreach_addcdiv_.ScalarList", (params, means, roots, ...), ()),
    )  # fmt: skip


def examples():
    for dtype in (F32, F64, BF16, torch.float16):
        yield layer_norm(70, 5000, dtype)
        yield layer_norm(70, 40, dtype, weight=False)
        yield layer_norm_backward(7000, 300, dtype)
        yield rms_norm(70, 5000, dtype, eps=None)
        yield rms_norm_backward(7000, 300, dtype)
        yield nll(dtype, weight=True, reduction=1)
        yield nll_backward(dtype, 0, pair=False)
        yield nll_backward(dtype, 1, pair=True)
        yield adam("aten::_fused_adamw_", True, dtype)
        yield sgd(True, dtype)
        yield chain(dtype)
        for op in ("aten::_softmax", "aten::_softmax_backward_data"):
            yield rows(op, 300, dtype)
    for n, dtype in ((4096, BF16), (4100, torch.float16), (4098, F32), (4097, F32), (4096, F64)):
        yield drop(n, dtype, None)
    for op in ("aten::_log_softmax", "aten::_log_softmax_backward_data"):
        yield rows(op, 40, F32)
        yield rows(op, 70000, BF16)
    yield rms_norm(70, 40, F32, weight=False)
    yield nll(F32, weight=False, reduction=0)
    yield adam("aten::_fused_adam_", False, F32)
    yield sgd(False, F32)
    for op, *settings in (
        ("aten::relu", (BF16, 1024), (F32, 128)),
        ("aten::gelu", (torch.float16, 64, False, made), (F32, 512, True)),
        ("aten::silu", (BF16, 64, False, made), (torch.float16, 128)),
    ):
        for given in settings:
            yield linear(op, *given)


def test_each_choice_compiles():
    """Each kernel for both architectures, with other settings and dtypes for one of them by turns;
    the operands are all that the kernel takes."""
    seen, named, requests, turns = set(), set(), {}, itertools.cycle(ARCHES)
    for example in examples():
        launches = choose(example)
        assert launches is not None, example
        seen.add(tuple(call.op for call in example.calls if call.op not in LISTS))
        for launch in launches.kernels:
            arches = (next(turns),) if launch.kernel in named else ARCHES
            named.add(launch.kernel)
            for arch in arches:
                request = hand_written(launch, arch)
                requests[request.key()] = request
    assert seen - {()} == {*CHOICES}, {*CHOICES} - seen
    wanted = list(requests.values())
    for request, answer in zip(wanted, answers(wanted), strict=True):
        assert "error" not in answer, f"{answer['error']}\n{request}"
        assert f".target sm_{request.arch}" in answer["ptx"]


def test_a_chain_reads_and_writes_each_list_once():
    launches = choose(chain(BF16))
    assert launches is not None
    (kernel,) = launches.kernels
    assert kernel.text.count("tl.load(p") == 3 and kernel.text.count("tl.store(p") == 2
    assert [bool(column.places) for column in launches.tables[0].columns] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("numel", [1, 6, 4096, 4098, 300_001, 3_000_000])
def test_drawing_gives_each_element_a_number_of_its_own(numel, itemsize):
    """No number of a thread goes to two elements. Where a draw is for four of them torch moves the
    offset on by enough (otherwise it may not, and draws some numbers again later)."""
    drawing = dropout.Drawing.of(numel, itemsize, 132 * 8)
    places = {drawing.place(element) for element in range(0, numel, 7)}
    assert len(places) == len(range(0, numel, 7))
    assert all(thread < drawing.threads and which < 4 for thread, _, which in places)
    if drawing.vector in (1, 4):
        assert max(draw for _, draw, _ in places) * 4 < drawing.increment


def test_dropout_that_is_not_chosen(monkeypatch):
    for other in (
        drop(64, F32, train=False), drop(64, F32, aligned=False), drop(64, F32, strides=(2,)),
        drop(64, I64), drop(0, F32), drop(1 << 31, F32),
    ):  # fmt: skip
        assert choose(other) is None
    monkeypatch.setattr(dropout, "is_torchs", lambda device, dtype, vector: False)
    assert choose(drop(64, F32)) is None


def test_dropout_moves_on_the_generator():
    launches = choose(drop(132 * 8 * 256 * 4 + 4, F32))
    assert launches is not None
    assert launches.draws == 8
    assert {"seed", "offset"} <= {o.kind for o in launches.kernels[0].operands if o}


def test_a_label_out_of_range_is_an_assertion():
    launches = choose(nll(F32, weight=False, reduction=1))
    assert launches is not None
    (answer,) = answers([hand_written(launches.kernels[0], 90)])
    assert "__assertfail" in answer["ptx"]


def test_what_is_not_chosen():
    assert choose(layer_norm(0, 40, F32)) is None
    assert choose(linear("aten::relu", F32, 129)) is None
    assert choose(linear("aten::relu", F64, 16)) is None
    strided = tensor(30, 40, strides=(1, 30))
    assert choose(calls([strided, made(30, 40)], ("aten::_softmax", (0, 1, False), (1,)))) is None
    x = tensor(30, 40)
    assert choose(calls([x, made(30, 40)], ("aten::_softmax", (0, 0, False), (1,)))) is None
    assert choose(calls([x, made(30, 40)], ("aten::relu", (0,), (1,)))) is None


def test_the_table_names_ops_of_torch():
    assert {*CHOICES} == {*((op,) for op in ALONE), *PAIRS}
    for name in {*ALONE, *(op for pair in PAIRS for op in pair), *LISTS}:
        base, _, overload = name.partition(".")
        assert torch._C._get_schema(base, overload)


def test_texts_have_what_kernels_call():
    text = kernels.text_of("adamw", "adamw_counted_kernel")
    assert {"_adamw_chunk", "_adamw_block"} <= {
        line.split("(")[0].removeprefix("def ") for line in text.text.splitlines()
    }
    assert text.operands == ("table_ptr", "lr", "beta1", "beta2", "weight_decay", "eps")
    assert "adamw_kernel(" not in text.text
