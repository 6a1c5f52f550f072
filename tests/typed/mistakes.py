# tests/typed/mistakes.py: programs that a type checker has to refuse.
#
# `make lint` checks this file with pyright, which fails if a line is not refused: an ignored error
# that does not come is an error (reportUnnecessaryTypeIgnoreComment). Nothing here is run.
import torch

import lazyeng


def modes(text: str):
    lazyeng.lazy("bogus")  # pyright: ignore[reportArgumentType]
    lazyeng.lazy(text)  # pyright: ignore[reportArgumentType]
    lazyeng.lazy(mode=1)  # pyright: ignore[reportArgumentType]
    lazyeng.set_sync_debug_mode("bogus")  # pyright: ignore[reportArgumentType]
    lazyeng.set_sync_debug_mode("async")  # pyright: ignore[reportArgumentType]
    lazyeng.allow_sync()  # pyright: ignore[reportCallIssue]


def loaders(dataset: torch.utils.data.Dataset[int]):
    lazyeng.DataLoader(dataset, batchsize=3)  # pyright: ignore[reportCallIssue]
    lazyeng.DataLoader(dataset, batch_size="a")  # pyright: ignore[reportArgumentType]
    lazyeng.DataLoader(dataset, "a")  # pyright: ignore[reportArgumentType]
    lazyeng.DataLoader(dataset, prefetch="a")  # pyright: ignore[reportArgumentType]
    lazyeng.DataLoader()  # pyright: ignore[reportCallIssue]
    lazyeng.prefetch(3)  # pyright: ignore[reportArgumentType]


def lazy_tensors(x: lazyeng.LazyTensor):
    x.waits()  # pyright: ignore[reportAttributeAccessIssue]
    x + "a"  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    x["a"]  # pyright: ignore[reportArgumentType]
    lazyeng.LazyTensor()  # pyright: ignore[reportCallIssue]
    lazyeng.LazyTensor([1.0], requires_grads=True)  # pyright: ignore[reportCallIssue]
    lazyeng.unwrap(x).wait()  # pyright: ignore[reportAttributeAccessIssue]
    x.numpy().wait()  # pyright: ignore[reportAttributeAccessIssue]


def lagged():
    lazyeng.Lagged(by="a")  # pyright: ignore[reportArgumentType]
    lazyeng.Lagged[torch.Tensor]().push(1.0)  # pyright: ignore[reportArgumentType]
