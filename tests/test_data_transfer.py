"""Copies to a device, without one: the same recorded ops, from ordinary memory to ordinary memory.

`device="cpu"` copies nothing, so these tests build a Transfer whose target is reached by a copy all
the same. Pinned memory and a copy that really is asynchronous need a GPU.
"""

import random

import pytest
import torch

import lazyeng
from lazyeng.data.transfer import Staging, Transfer, convert_to

DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8]


def transfer(generations, allocated=None):
    def allocate(size):
        if allocated is not None:
            allocated.append(size)
        return torch.empty(size, dtype=torch.uint8)

    return Transfer(torch.device("cpu"), Staging(generations, allocate))


def tensor(choose):
    shape = [choose.randint(0, 5) for _ in range(choose.randint(0, 3))]
    values = torch.randint(0, 9, shape).to(choose.choice(DTYPES))
    return values.t() if values.dim() == 2 and choose.random() < 0.5 else values


@pytest.mark.parametrize("generations", [1, 2, 4])
def test_values_survive_reused_buffers(generations, mode):
    """However late the copies run: a buffer is filled again only after the copy out of it."""
    choose = random.Random(generations)
    copy = transfer(generations)
    sources, copies = [], []
    with lazyeng.lazy(mode):
        for _ in range(60):
            source = [tensor(choose) for _ in range(choose.randint(1, 3))]
            sources.append([t.clone() for t in source])
            copies.append(copy.convert(source))
    for source, copied in zip(sources, copies, strict=True):
        for x, y in zip(source, copied, strict=True):
            assert type(y) is lazyeng.LazyTensor
            assert (y.shape, y.dtype, y.tolist()) == (x.shape, x.dtype, x.tolist())


def test_buffers_are_reused():
    allocated = []
    copy = transfer(3, allocated)
    for _ in range(50):
        copy.convert({"image": torch.ones(4, 4), "label": torch.ones(4, dtype=torch.int64)})
    assert allocated == [64, 32] * 3


def test_a_larger_batch_gets_a_larger_buffer():
    allocated = []
    copy = transfer(1, allocated)
    for length in (4, 2, 8, 6):
        assert copy.convert(torch.arange(float(length))).tolist() == list(range(length))
    assert allocated == [16, 32]


def test_copies_are_recorded_ops():
    with lazyeng.lazy("deferred"):
        copied = transfer(2).convert(torch.ones(3))
        assert not copied.is_ready()
    assert copied.tolist() == [1, 1, 1]


def test_a_failed_tensor_does_not_poison_a_buffer():
    with lazyeng.lazy("deferred"):
        bad = lazyeng.wrap(torch.ones(3))[lazyeng.wrap(torch.tensor([7]))]
        copy = transfer(1)
        failed, good = copy.convert(bad), copy.convert(torch.ones(1))
    with pytest.raises(IndexError):
        failed.item()
    assert good.item() == 1


def test_what_cannot_be_staged():
    sparse = torch.eye(2).to_sparse()
    leaf = torch.ones(2, requires_grad=True)
    copied_sparse, copied_leaf, text = transfer(1).convert((sparse, leaf, "text"))
    assert copied_sparse.is_sparse and copied_leaf.requires_grad and text == "text"


def test_the_cpu_needs_no_copy():
    source = torch.ones(3)
    assert convert_to("cpu", 1)(source).data_ptr() == source.data_ptr()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there():
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        lazyeng.prefetch([], device="cuda")
