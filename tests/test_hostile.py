"""Programs that no one writes on purpose: very long chains of ops, and tensors of odd layouts."""

import functools
import os
import resource
import subprocess
import sys

import pytest
import torch

import lazyeng
from lazyeng import _C
from tests.support.outcomes import Raised, outcome

from .programs.deep_programs import PROGRAMS

# --- 100,000 ops in a row


@pytest.mark.parametrize("name", PROGRAMS)
def test_deep(name, mode):
    PROGRAMS[name](mode)


def small_stack():
    """Of the program's thread and, since it is their default, of all that it starts."""
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (512 << 10, most))


@pytest.mark.limit(300)
def test_deep_with_a_small_stack(mode):
    """Each level of a recursion would have 26 bytes, less than a frame has. And all ops are
    pending at once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.deep_programs", mode, "20000"],
        env=os.environ | {"LAZYENG_MAX_PENDING_OPS": "1000000"},
        preexec_fn=small_stack, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [*PROGRAMS]


# --- odd layouts


def numbers(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def complex_numbers(*shape):
    return torch.complex(numbers(*shape), numbers(*shape) / 2)


FAR = 1 << 40  # elements: no storage has so many
TENSORS = {
    "empty": lambda: torch.empty(0),
    "no rows": lambda: torch.empty(0, 3),
    "no columns": lambda: torch.empty(2, 0),
    "no rows, far apart": lambda: torch.empty(0).as_strided((0, 3), (FAR, FAR << 10)),
    "number": lambda: torch.tensor(2.5),
    "number in a storage": lambda: numbers(9)[4],
    "complex number": lambda: torch.tensor(1 - 2j).conj(),
    "number, repeated": lambda: torch.tensor(2.5).expand(2, 3),
    "one, far apart": lambda: numbers(1).as_strided((1, 1), (FAR, FAR << 10)),
    "far apart": lambda: numbers(1 << 14).as_strided((2, 3), (1 << 13, 1 << 10)),
    "column, far apart": lambda: numbers(8).as_strided((2, 1, 3), (3, FAR, 1)),
    "row, repeated": lambda: numbers(3).expand(2, 3),
    "overlapping": lambda: numbers(9).as_strided((2, 3), (1, 1)),
    "windows": lambda: numbers(8).unfold(0, 3, 2),
    "integers, overlapping": lambda: numbers(9, dtype=torch.int64).as_strided((2, 3), (2, 1)),
    "bool, transposed": lambda: numbers(3, 2, dtype=torch.bool).t(),
    "conjugate": lambda: complex_numbers(2, 3).conj(),
    "adjoint": lambda: complex_numbers(3, 2).mH,
    "negative": lambda: torch._neg_view(numbers(2, 3)),
    "imaginary": lambda: complex_numbers(2, 3).conj().imag,
    "conjugate, negative": lambda: torch._neg_view(complex_numbers(2, 3).conj())[:, 1:],
}

# `x` is the tensor, `y` one of the usual kind, of shape (2, 3).
EXPRESSIONS = (
    "x + 1", "(x * 2 + y).abs()", "x * x - x", "-x", "x.exp()", "(x + y).relu() * 2", "x / 0",
    "x.sin().cos() + x", "x == y", "x > 0", "x.to(torch.bfloat16)", "x.to(torch.complex64) * 1j",
    "x.double() + 1", "x.clone()", "x.contiguous()", "torch.where(y > 0, x, y)", "x.maximum(y)",
    "x.sum()", "(x * 2).sum(0)", "x.mean()", "x.mean(-1) + 1", "x.amax()", "x.max(0)", "x.argmax()",
    "x.prod(-1, keepdim=True)", "x.std()", "x.norm()", "x.softmax(-1)", "x.cumsum(0)", "x.all()",
    "x.sort()", "x.unique()", "x.nonzero()", "x.median()", "x.sum(2)", "x.item()", "x.tolist()",
    "x.t()", "x.mT + 1", "x.view(-1)", "x.reshape(-1) * 2", "x.view(3, 2)", "x[0]", "x[-1] + x[0]",
    "x[..., 1:] - x[..., :-1]", "x.flip(0)", "x.squeeze()", "x.unsqueeze(0) + y", "x.diagonal()",
    "x.expand(4, 2, 3) * 1", "x.as_strided((2,), (1,), 1)", "x.view(torch.int32)", "x.conj() * x",
    "torch.view_as_real(x)", "x.real + 1", "x.imag + 1", "x.resolve_conj()", "x.resolve_neg()",
    "x.chunk(2)", "x.unbind()", "torch.cat([x, x], -1)", "torch.stack([x, y])", "torch.cat([x, y])",
    "x @ y", "x @ y.t()", "y.t() @ x", "torch.einsum('ij,kj->ik', x, x)", "x.dot(x)", "x.bmm(y)",
    "x[torch.tensor([0, 1])]", "x[torch.tensor([7])]", "x[x == x]", "x.gather(0, y.long() * 0)",
    "x.index_select(0, torch.tensor([0]))", "F.linear(x, y)", "F.layer_norm(x, (3,))",
    "F.pad(x, (1, 1))", "x.repeat(2, 1)", "x.new_zeros(2) + 1", "torch.zeros_like(x)", "x.numpy()",
    "x.squeeze(5)", "x.permute(1, 1)", "x.view(7)", "x.expand(5)", "x + torch.ones(7)", "x + None",
    "torch.add(x, y, out=torch.empty(0))", "torch.mul(x, 2, out=x)", "x.data_ptr() == 0",
    "x.is_contiguous(), x.stride(), x.storage_offset(), x.numel()", "torch.equal(x, x * 1)",
)  # fmt: skip
STATEMENTS = (
    "x += 1", "x *= y", "x /= 2", "x.add_(x)", "x.copy_(y)", "x.zero_(); x += 3", "x.fill_(2j)",
    "x[0] = 5", "x[..., 1:] += 1", "x.t_()", "x.unsqueeze_(0); x += 1", "x.resize_(3); x.zero_()",
    "x[x == x] = 1", "x.index_add_(0, torch.tensor([0]), y)", "x.masked_fill_(y > 0, 7)",
    "x.view(-1).mul_(2)", "x.set_(y)", "x.sub_(torch.ones(7))", "x.conj_physical_()", "x.relu_()",
    "x.neg_()", "a = x * 2; x += 1; y += a", "a = x.view_as(x); x += 1; b = a * 2; x -= b",
    "x.data += 1", "x.requires_grad_(); (x.abs() * y).sum().backward(); y = x.grad",
    "x.swapaxes_(0, -1); x *= 2",
)  # fmt: skip
# Of which the gradient with regard to `x` is looked at.
LOSSES = (
    "(x * y).sum()", "x.exp().sum()", "(x @ y.t()).sum()", "x.softmax(-1).norm()", "x.std()",
    "F.layer_norm(x, (3,)).abs().sum()", "x.unfold(-1, 2, 1).square().sum()", "x.cumsum(0).sum()",
    "torch.where(y > 0, x, y).prod()", "x.amax(0).sum()", "x[..., 1:].mul(2).sum()",
    "(x.t() @ x).sum()", "x.index_select(0, torch.tensor([0])).sum()", "x.abs().sqrt().sum()",
    "torch.cat([x, x]).square().sum()", "x.expand(4, *x.shape).sum()", "x.real.sum()",
    "x.imag.square().sum()", "x.view(3, 2).sin().sum()", "x.diagonal().mean()", "x.max(0)[0].sum()",
    "F.linear(x, y).relu().sum()", "x.sort()[0].square().sum()", "x.flip(0).cumprod(-1).sum()",
)  # fmt: skip


def operands(name):
    return TENSORS[name](), numbers(2, 3)


def seen(code, x, y):
    """What the program returns or leaves behind, or its exception; of LOSSES the gradient."""
    values = {"torch": torch, "F": torch.nn.functional, "x": x, "y": y}

    def run():
        if code in STATEMENTS:
            exec(code, values)
            return look([values["x"], values["y"]])
        if code in LOSSES:
            loss = eval(code, values | {"x": x.requires_grad_()})
            return look(torch.autograd.grad(loss.abs(), x))
        return look(eval(code, values))

    made = outcome(run, Exception)
    return [made] if isinstance(made, Raised) else made


def look(found):
    """All that can be seen of it, in a list: tensors, which hold values only, and what is equal."""
    if isinstance(found, (list, tuple)):
        return [seen for x in found for seen in look(x)]
    if not isinstance(found, torch.Tensor):
        return [repr(found)]
    x = lazyeng.unwrap(found.detach())
    metadata = (x.dtype, x.shape, x.stride(), x.storage_offset(), x.is_conj(), x.is_neg())
    return [metadata, x.resolve_conj().resolve_neg().contiguous()]


@functools.cache
def in_eager(code, name):
    return seen(code, *operands(name))


def check(code, got, expected, fusion):
    assert [x for x in got if not isinstance(x, torch.Tensor)] == [
        x for x in expected if not isinstance(x, torch.Tensor)
    ], code
    tolerance = {} if fusion == "on" else {"rtol": 0, "atol": 0}
    for x, y in zip(got, expected, strict=True):
        if isinstance(x, torch.Tensor):
            torch.testing.assert_close(x, y, equal_nan=True, **tolerance, msg=f"{code}: {x}, {y}")


@pytest.fixture
def fusion(request):
    _C.set_fusion(request.param != "off")
    _C.set_inexact_fusion(request.param == "on")
    yield request.param
    _C.set_fusion(True)
    _C.set_inexact_fusion(False)


# The last is where operands come from: they are made in the block, or before it.
WAYS = [
    ("auto", "async", "inside"),
    ("auto", "deferred", "inside"),
    ("auto", "sync", "inside"),
    ("on", "deferred", "inside"),
    ("off", "async", "inside"),
    ("off", "deferred", "wrapped"),
    ("auto", "async", "plain"),
    ("auto", "deferred", "plain"),
]


def compare(codes, name, fusion, mode, made):
    """The second run takes ways that the first one has prepared."""
    for code in codes:
        for _ in range(2):
            given = operands(name)
            with lazyeng.lazy(mode):
                if made == "inside":
                    given = operands(name)
                if made != "plain":
                    given = map(lazyeng.wrap, given)
                got = seen(code, *given)
            check(code, got, in_eager(code, name), fusion)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("fusion, mode, made", WAYS, indirect=["fusion"])
def test_odd_layouts(name, fusion, mode, made):
    compare((*EXPRESSIONS, *STATEMENTS), name, fusion, mode, made)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fusion, mode, made", WAYS, indirect=["fusion"])
def test_gradients_at_odd_layouts(fusion, mode, made):
    for name in TENSORS:
        compare(LOSSES, name, fusion, mode, made)


@pytest.mark.parametrize("n", [3, 20])
def test_a_kernel_that_sets_the_conjugate_bit_of_what_it_is_given(n):
    a, b = torch.randn(2, n, n, dtype=torch.complex64), torch.randn(2, 4, n, dtype=torch.complex64)
    factors = torch.linalg.lu_factor(a)
    expected = torch.linalg.lu_solve(*factors, b, left=False, out=torch.empty_like(b))
    for mode in ("async", "deferred", "async", "sync"):
        given = torch.empty_like(b)
        with lazyeng.lazy(mode):
            out = lazyeng.wrap(given)
            torch.linalg.lu_solve(*map(lazyeng.wrap, factors), lazyeng.wrap(b), left=False, out=out)
            assert out.is_conj() == expected.is_conj()
        torch.testing.assert_close(lazyeng.unwrap(out), expected)
