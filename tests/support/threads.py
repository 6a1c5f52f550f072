"""How many intra-op threads torch has, for a while."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads_of_torch(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
