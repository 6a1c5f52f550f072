"""Random generators that a sampler draws from ahead of the consumer, set back when it stops early.

torch draws the indices of a batch when somebody asks for it. A loader that runs ahead has drawn
more; after an early `break` the generator would stand elsewhere, by a number of draws that depends
on timing, and so would the order of the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from lazyeng.data.passes import Life

State = tuple[torch.Tensor, ...]


def parts_of(samplers: Iterable[Any]) -> list[Any]:
    """These samplers and those inside them."""
    found: dict[int, Any] = {}
    pending = list(samplers)
    while pending:
        sampler = pending.pop()
        if sampler is not None and id(sampler) not in found:
            found[id(sampler)] = sampler
            inner = [value for value in _values(sampler) if isinstance(value, Sampler)]
            pending += [getattr(sampler, "sampler", None), *inner]
    return list(found.values())


def generators_of(samplers: Iterable[Any]) -> list[torch.Generator]:
    """The CPU generators that these samplers, and those inside them, were given."""
    found: dict[int, torch.Generator] = {}
    for part in parts_of(samplers):
        for value in (part, *_values(part)):
            if isinstance(value, torch.Generator) and value is not torch.default_generator:
                found[id(value)] = value
    return [generator for generator in found.values() if generator.device.type == "cpu"]


def _values(sampler: Any) -> list[Any]:
    return list(getattr(sampler, "__dict__", {}).values())


def snapshot_of(generators: Sequence[torch.Generator]) -> Callable[[], State]:
    """A function that returns the states of the generators."""
    return lambda: tuple(generator.get_state() for generator in generators)


def rewind(generators: Sequence[torch.Generator], life: Life) -> None:
    """Sets the generators back to where they stood after the item that was taken last.

    Unless somebody else drew from one since: its state is not the one after the last item made.
    """
    for generator, made, taken in zip(generators, life.channel.last_state, life.taken, strict=True):
        if torch.equal(generator.get_state(), made) and not torch.equal(made, taken):
            generator.set_state(taken)
