"""Large ops in parts, also by threads that wait (csrc/run/cores/parts.h): eager's bits."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import _C, lazy, wrap
from tests.support.threads import threads_of_torch

from .programs.image_programs import images

RUNS = 24  # the first few of a plan come before its trial


@pytest.fixture(autouse=True)
def always(request):
    parts = getattr(request, "param", True)
    _C.set_always_in_parts(parts)
    yield parts
    _C.set_always_in_parts(False)


def in_parts():
    return lazyeng.engine_stats()["in_parts"]


def sizes(draw):
    return [draw.choice((1, 16, 33, 64, 127, 128, 200, 256, 300)) for _ in range(3)]


def products(draw):
    m, k, n = sizes(draw)
    a, b = torch.randn(m, k), torch.randn(k, n)
    row, whole, column = torch.randn(n), torch.randn(m, n), torch.randn(m, 1)
    yield "mm", lambda: a @ b
    yield "mm of transposed", lambda: b.t() @ a.t()
    yield "linear", lambda: F.linear(a, b.t(), row)
    yield "addmm", lambda: torch.addmm(whole, a, b, beta=0.5, alpha=2)
    yield "addmm of a column", lambda: torch.addmm(column, a, b)
    yield "bmm", lambda: torch.bmm(a.expand(5, m, k), b.expand(5, k, n))
    yield "baddbmm", lambda: torch.baddbmm(whole, a.expand(4, m, k), b.expand(4, k, n))
    yield "float64", lambda: a.double() @ b.double()
    yield "bfloat16", lambda: a.bfloat16() @ b.bfloat16()


def groups(draw):
    x, y = torch.randn(draw.choice((100, 70_001, 150_000))), torch.randn(())
    yield "chain", lambda: ((x * 2 + y).clamp(-1, 1) - x) * x
    yield "in place", lambda: x.clone().mul_(0.5).add_(x).sub_(y)
    yield "largest", lambda: (x * 2 - 1).amax()


def bits(tensor):
    return lazyeng.unwrap(tensor).contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("programs", [products, images, groups])
@pytest.mark.parametrize("seed", range(6))
def test_bits_are_those_of_eager(programs, seed):
    torch.manual_seed(seed)
    for name, program in programs(random.Random(seed)):
        expected = program()
        with lazy():
            found = [program() for _ in range(RUNS)]
        for result in found:
            assert torch.equal(bits(result), bits(expected)), name


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one thread has no parts to give")
def test_parts_are_taken():
    """Of a group, and of a product unless the library's bits differ."""
    x = torch.randn(300_000)
    before = in_parts()
    with lazy():
        for _ in range(3):
            y = (x * 2 + 1) * x - 3
            y.wait()
    assert y.shape == x.shape and in_parts() > before


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one thread has no parts to give")
def test_images_are_taken_apart():
    """Some images for each thread; the gradient for the images, and that for the weight."""
    x = torch.randn(64, 16, 8, 8, requires_grad=True)
    w = torch.randn(32, 16, 3, 3, requires_grad=True)
    y = F.conv2d(x, w, padding=1)
    for program in (
        lambda: F.max_pool2d(x.detach(), 2),
        lambda: F.conv2d(x.detach(), w.detach()),
        lambda: torch.autograd.grad(y, [x, w], y, retain_graph=True),
    ):
        before = lazyeng.engine_stats()
        with lazy():
            for _ in range(RUNS + 4):
                program()
            lazyeng.synchronize()
        after = lazyeng.engine_stats()
        # (None, if not even one core has the bits of this library's kernels.)
        assert (
            after["in_parts"] > before["in_parts"] or after["on_one_core"] == before["on_one_core"]
        )


def gradients_of(grad, x, w, padding=1, mask=(True, True, True)):
    return torch.ops.aten.convolution_backward(
        grad, x, w, [len(w)], [1, 1], [padding, padding], [1, 1], False, [0, 0], 1, mask
    )


def added_up(grad, x, w, threads):
    """The gradients for weight and bias in shares of the images, each on one thread."""
    shares = zip(grad.tensor_split(threads), x.tensor_split(threads), strict=True)
    with threads_of_torch(1):
        _, *sums = gradients_of(*next(shares), w, mask=(False, True, True))
        for share in shares:
            for total, part in zip(sums, gradients_of(*share, w)[1:], strict=True):
                total += part
    return sums


CONVOLUTIONS = [  # images, channels in and out, size
    (64, 16, 32, 8), (64, 1, 16, 8), (33, 8, 8, 12), (3, 16, 16, 16), (32, 3, 64, 9), (1, 8, 8, 9),
]  # fmt: skip


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one thread has no parts to give")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("always", [False, True], indirect=True)
@pytest.mark.parametrize("n, c, k, size", CONVOLUTIONS)
def test_gradients_of_convolutions_are_taken_apart(n, c, k, size, always, channels_last):
    """Also where one core has other bits than all of them, as it sums up in another order."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(n, c, size, size).to(memory_format=layout)
    w, grad = torch.randn(k, c, 3, 3), torch.randn(n, k, size, size).to(memory_format=layout)
    threads = torch.get_num_threads()
    expected = gradients_of(grad, x, w)
    in_shares = n >= threads and all(map(torch.equal, added_up(grad, x, w, threads), expected[1:]))
    before = lazyeng.engine_stats()["on_one_core"]
    with lazy():
        found = [gradients_of(grad, x, w) for _ in range(RUNS)]
    for result in found:
        for ours, theirs in zip(result, expected, strict=True):
            assert torch.equal(bits(ours), bits(theirs))
            assert ours.stride() == theirs.stride()
    # (It is tried for the 20th time, or the third. While the program waits, all cores may do it.)
    if in_shares and always:
        assert lazyeng.engine_stats()["on_one_core"] > before


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one thread has no parts to give")
def test_shares_that_are_negative_zeros_add_up_to_eagers_zero():
    """What underflows in each share is -0.0 there; a library adds it to a zero."""
    torch.manual_seed(0)
    x, grad = torch.randn(8, 24, 16, 8) * 1e-23, torch.randn(8, 16, 4, 6) * 1e-23
    w = torch.randn(16, 24, 5, 3)
    a, b = torch.randn(1, 512) * 1e-23, torch.randn(512, 256) * 1e-23

    def program():
        gradients = torch.ops.aten.convolution_backward(
            grad, x, w, [16], [3, 1], [2, 0], [2, 1], False, [0, 0], 1, (True, True, True)
        )
        return [*gradients, a @ b]

    expected = program()
    with lazy():
        found = [program() for _ in range(RUNS)]
    for results in found:
        assert all(map(torch.equal, map(bits, results), map(bits, expected)))


def halves(a, b):
    middle = (a.shape[1] + 1) // 2
    return a[:, :middle] @ b[:middle] + a[:, middle:] @ b[middle:]


@pytest.mark.skipif(torch.get_num_threads() != 2, reason="the library has other shares then")
@pytest.mark.parametrize("always", [False, True], indirect=True)
@pytest.mark.parametrize("k, n", [(256, 256), (513, 100), (1000, 64)])
def test_the_inner_dim_of_a_row_times_a_matrix_is_taken_apart(k, n, always):
    torch.manual_seed(0)
    a, b = torch.randn(1, k), torch.randn(k, n)
    expected = a @ b
    with threads_of_torch(1):
        in_halves = torch.equal(halves(a, b), expected)
    before = lazyeng.engine_stats()["on_one_core"]
    with lazy():
        found = [a @ b for _ in range(RUNS)]
    assert all(torch.equal(bits(result), bits(expected)) for result in found)
    if in_halves:  # (most libraries do so on two threads)
        assert lazyeng.engine_stats()["on_one_core"] > before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_narrow_dtypes_have_eagers_width(dtype):
    """Rounded as they are, they seldom show in which order they were added up."""
    torch.manual_seed(0)
    a, b = torch.randn(64, 256).to(dtype), torch.randn(256, 64).to(dtype)
    x, w = torch.randn(8, 8, 12, 12).to(dtype), torch.randn(8, 8, 3, 3).to(dtype)
    before = lazyeng.engine_stats()["on_one_core"]
    with lazy():
        for _ in range(RUNS):
            a @ b, F.conv2d(x, w), gradients_of(torch.ones_like(x), x, w), a.softmax(-1)
        lazyeng.synchronize()
    assert lazyeng.engine_stats()["on_one_core"] == before


def test_many_threads_that_wait():
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    expected = (a @ b).relu() + a

    def are_equal(_):
        return torch.equal(lazyeng.unwrap((wrap(a) @ wrap(b)).relu() + a), expected)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(are_equal, range(200)))


def test_a_program_trains_as_in_eager():
    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = torch.randn(128, 64), torch.randint(8, (128,))
        losses = []
        for _ in range(RUNS):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train()
    with lazy():
        assert train() == expected
