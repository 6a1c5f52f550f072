"""Chains of 100,000 ops: nothing may walk them by recursion, neither to run nor to free them.

Usage: python -m tests.programs.deep_programs MODE [LENGTH]: all of PROGRAMS in this process, with
chains of so many ops. (test_hostile.py starts it with a small C stack.)
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import lazyeng

LENGTH = 100_000


def chain(x: Tensor) -> Tensor:
    """Pointwise ops: they run in groups."""
    for _ in range(LENGTH):
        x = x + 1
    return x


def products(x: Tensor) -> Tensor:
    """Each is an op of its own."""
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for _ in range(LENGTH):
        x = x @ swap
    return x


def writes(x: Tensor) -> Tensor:
    x = x.clone()
    for _ in range(LENGTH):
        x += 1
    return x


def views(x: Tensor) -> Tensor:
    """What is written to the last view is seen in the first tensor."""
    base = x.clone()
    view = base
    for _ in range(LENGTH):
        view = view.t()
    view += torch.tensor([1.0, 2.0])
    return base


def gradient(x: Tensor) -> Tensor:
    """The graph of autograd is as deep."""
    leaf = x.clone().requires_grad_()
    y = leaf
    for i in range(LENGTH):
        y = y * (1.0001 if i % 2 else 0.9999)
    y.sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def start() -> Tensor:
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@functools.cache
def expected(function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(start())


def agrees(function: Callable[[Tensor], Tensor], mode: str) -> None:
    with lazyeng.lazy(mode):
        got = function(lazyeng.wrap(start()))
    assert torch.equal(lazyeng.unwrap(got), expected(function))


def dropped(mode: str) -> None:
    """Nobody reads the chain, nor the gradients of another; what is alive goes on."""
    with lazyeng.lazy(mode):
        kept = lazyeng.wrap(torch.ones(2, 2)) * 3
        last = chain(kept)
        leaf = kept.detach().requires_grad_()
        root = leaf
        for _ in range(LENGTH):
            root = root * 1
    del last, root, leaf
    lazyeng.synchronize()
    assert kept.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def failing(mode: str) -> None:
    """The first op fails, and all that follow; the message does not grow with their number."""
    table, there, not_there = torch.ones(3, 2), torch.tensor([1, 2]), torch.tensor([1, 7])
    with lazyeng.lazy(mode):
        other = chain(table[there])
    try:
        with lazyeng.lazy(mode):
            last = chain(table[not_there])
        last.tolist()
    except IndexError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        assert re.match("index 7 is out of bounds for dimension 0 with size 3", text), text
        assert len(text) < 2000, text
    else:
        raise AssertionError("no failure")
    assert other.tolist() == [[LENGTH + 1.0] * 2] * 2


def drawn(mode: str) -> None:
    """`lazyeng.graph` of what is pending, and its texts."""
    with lazyeng.lazy(mode):
        last = products(lazyeng.wrap(torch.eye(2)))
        graph = lazyeng.graph(last)
        assert mode != "deferred" or len(graph) > LENGTH // 10
        assert len(str(graph).splitlines()) >= len(graph)
        if mode == "deferred":  # (in the others it is a matter of luck what is pending)
            labels = [op.label for op in graph.ops]
            assert all(op.reads[:1] == (before,) for op, before in
                       zip(graph.ops[-1000:], labels[-1001:-1], strict=True))  # fmt: skip
            assert graph.to_dot().count(" -> ") >= len(graph) - 1
    assert last.tolist() == [[1.0, 0.0], [0.0, 1.0]]


PROGRAMS: dict[str, Callable[[str], None]] = {
    **{
        function.__name__: lambda mode, function=function: agrees(function, mode)
        for function in (chain, products, writes, views, gradient)
    },
    **{program.__name__: program for program in (dropped, failing, drawn)},
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        LENGTH = int(sys.argv[2])
    for name, program in PROGRAMS.items():
        program(sys.argv[1])
        print(name, flush=True)
