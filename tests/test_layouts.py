"""Results have eager's shape and strides, also for dims of one element, where none shows them."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lazyeng
from tests.support.outcomes import metadata, outcome

DTYPES = [torch.int64, torch.float32, torch.float64, torch.bool, torch.bfloat16]
UNARY = ["exp", "sqrt", "sigmoid", "neg", "logical_not", "isfinite", "clone", "abs"]
BINARY = ["add", "true_divide", "atan2", "pow", "gt", "eq", "maximum", "logical_and", "copysign"]


def layouts(count):
    """Shapes with dims of one element, and strides that repeat elements, leave gaps, or both."""
    rng = random.Random(7)
    for _ in range(count):
        shape = tuple(rng.choice([1, 1, 2, 4]) for _ in range(rng.randrange(1, 4)))
        yield shape, tuple(rng.choice([0, 1, 2, 4, 8]) for _ in shape), rng.randrange(4)


def seen(function, args):
    return outcome(lambda: metadata(function(*args)))


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unary(mode, dtype):
    base = torch.ones(64, dtype=dtype)
    for name, layout in itertools.product(UNARY, layouts(150)):
        function = getattr(torch, name)
        expected = seen(function, [base.as_strided(*layout)])
        with lazyeng.lazy(mode):
            got = seen(function, [lazyeng.wrap(base).as_strided(*layout)])
        assert got == expected, (name, layout)


@pytest.mark.parametrize("mode", ["async", "deferred"])
@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES[:3])), ids=str)
def test_binary(mode, dtypes):
    bases = [torch.ones(64, dtype=dtype) for dtype in dtypes]
    lazy = [lazyeng.wrap(base) for base in bases]
    for name, (first, second) in itertools.product(BINARY, itertools.pairwise(layouts(80))):
        function = getattr(torch, name)
        expected = seen(function, [bases[0].as_strided(*first), bases[1].as_strided(*second)])
        with lazyeng.lazy(mode):
            args = [lazy[0].as_strided(*first), lazy[1].as_strided(*second)]
            got = seen(function, args)
        assert got == expected, (name, first, second)


def test_an_index_is_not_promoted(lazy_mode):
    """It has another dtype than the result and may repeat elements: that decides no strides."""
    x = lazyeng.wrap(torch.rand(300, 200))
    index = lazyeng.wrap(torch.randint(300, (250, 1))).expand(250, 200)
    lazyeng.set_sync_debug_mode("error")
    try:
        with lazyeng.lazy(lazy_mode):
            result = (x * 2).gather(
                0, index
            )  # (of what is pending: learning from a run would wait)
    finally:
        lazyeng.set_sync_debug_mode("off")
    expected = (lazyeng.unwrap(x) * 2).gather(0, lazyeng.unwrap(index))
    assert torch.equal(lazyeng.unwrap(result), expected)


def numpy_memory(side):
    """A resize beyond memory that cannot grow is refused at the call."""
    x = side(torch.from_numpy(np.ones(3, dtype="float32")))
    x.resize_(2)
    with pytest.raises(RuntimeError) as caught:
        x.resize_(10)
    if type(x) is lazyeng.LazyTensor:  # (eager has changed the shape by then)
        assert x.tolist() == [1.0, 1.0]
    return str(caught.value)


def nested_tensors(side):
    parts = [side(torch.arange(3.0)), side(torch.arange(5.0)) * 2]
    made = [torch.nested.nested_tensor(parts), torch.nested.as_nested_tensor(parts)]
    return [
        (repr(n), repr(n * 2), n.to_padded_tensor(0.0).tolist(), n.unbind()[1].tolist())
        for n in made
    ]


def sparse_products(side):
    mask = torch.eye(3).to_sparse_csr().requires_grad_()
    a, b = side(torch.ones(3, 2)).requires_grad_(), side(torch.ones(2, 3)).requires_grad_()
    torch.sparse.sampled_addmm(mask, a, b * 2).to_dense().sum().backward()
    return a.grad.tolist(), b.grad.tolist(), str(mask.grad)


def clones_on_write(side):
    x = side(torch.ones(3))
    y = torch._lazy_clone(x)
    x.add_(1)
    z = torch._lazy_clone(y)
    z.mul_(5)
    return x.tolist(), y.tolist(), z.tolist()


@pytest.mark.parametrize(
    "program", [numpy_memory, nested_tensors, sparse_products, clones_on_write]
)
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning", "ignore:The PyTorch API of nested")
def test_memory_and_layouts_of_other_kinds(program):
    expected = program(lambda x: x)
    assert program(lazyeng.wrap) == expected
    if program is numpy_memory:  # (a product has memory of its own)
        return
    with lazyeng.lazy("deferred"):
        found = program(lambda x: x * 1)
    assert found == expected


def resizes_beyond_memory():
    """Each message is of its own call, though eager leaves sizes that no tensor can have."""
    x, said = torch.empty((), dtype=torch.float64), []
    for sizes in ([2, 4, 2**29, 2**29], [8, 8, 2**29, 2**29], [0, 4, 2**61]):
        with pytest.raises(RuntimeError) as caught:
            x.resize_(sizes)
        said.append((str(caught.value), tuple(x.shape)))
    return said


def test_refused_resizes_of_a_plain_tensor(mode):
    expected = resizes_beyond_memory()
    with lazyeng.lazy(mode):
        found = resizes_beyond_memory()
    assert found == expected


X, WEIGHT, BIAS = torch.randn(3, 16), torch.randn(8, 16), torch.randn(8)
IMAGES, FILTERS, CHANNEL = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.ones(3)
BESIDE_MKLDNN = {
    "linear": lambda to, side: F.linear(to(X), side(WEIGHT), side(BIAS)),
    "conv2d": lambda to, side: torch.conv2d(to(IMAGES), side(FILTERS)),
    "conv2d with a bias": lambda to, side: torch.conv2d(to(IMAGES), side(FILTERS), side(BIAS[:4])),
    "batch_norm": lambda to, side: F.batch_norm(
        to(IMAGES), side(CHANNEL * 0), side(CHANNEL), side(CHANNEL * 2), side(CHANNEL)
    ),
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a build without oneDNN")
@pytest.mark.parametrize("name", BESIDE_MKLDNN)
def test_dense_tensors_beside_mkldnn_ones(name, lazy_mode):
    """They go to oneDNN's kernels by the other's dispatch key, past ours."""
    program = BESIDE_MKLDNN[name]
    expected = program(lambda t: t.to_mkldnn(), lambda t: t).to_dense()
    wrapped = program(lambda t: t.to_mkldnn(), lazyeng.wrap).to_dense()
    with lazyeng.lazy(lazy_mode):
        pending = program(lambda t: t.to_mkldnn(), lambda t: t * 1).to_dense()
        plain = WEIGHT.clone()
        plain.mul_(1)  # (a pending write of a plain tensor)
        if name == "linear":
            assert torch.equal(F.linear(X.to_mkldnn(), plain, BIAS).to_dense(), expected)
    assert torch.equal(wrapped, expected) and torch.equal(pending, expected)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a build without oneDNN")
def test_gradients_beside_mkldnn_tensors(lazy_mode):
    def gradients():
        weight, bias = WEIGHT.clone().requires_grad_(), BIAS.clone().requires_grad_()
        F.linear(X.to_mkldnn(), weight, bias).to_dense().square().sum().backward()
        return [weight.grad.tolist(), bias.grad.tolist()]

    expected = gradients()
    with lazyeng.lazy(lazy_mode):
        assert gradients() == expected
