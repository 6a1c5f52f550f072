"""Small programs, of the kind that fills scripts: loops over rows, buffers filled step by step,
values looked at all the time, shapes that are never twice the same.

Each step is given its number, and returns a tensor of one element.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads import Step

NumberedStep = Callable[[int], torch.Tensor]


def rows(count: int) -> torch.Tensor:
    """[count, 64]"""
    return torch.randn(count, 64)


def read_numbers() -> NumberedStep:
    """Four sums, each read at once."""
    data = rows(4096)

    def step(i: int) -> torch.Tensor:
        return torch.tensor(sum(data[(4 * i + k) % 4096].sum().item() for k in range(4)))

    return step


def branch_on_values() -> NumberedStep:
    data = rows(4096)

    def step(i: int) -> torch.Tensor:
        row = data[i % 4096]
        if (row > 2.5).any():
            row = row * 2
        if row.abs().max() > 100:
            row = row * 0
        return row.sum()

    return step


def accuracy() -> NumberedStep:
    """Of 256 predictions of 10 classes."""
    scores, labels = rows(4096), torch.randint(0, 10, (4096,))

    def step(i: int) -> torch.Tensor:
        part = slice(i % 3840, i % 3840 + 256)
        return (scores[part, :10].argmax(1) == labels[part]).float().mean()

    return step


def fill_a_buffer() -> NumberedStep:
    """16 rows of a rollout buffer [128, 8, 4] and its values."""
    data, buffer, values = rows(4096).view(-1, 8, 8), torch.zeros(128, 8, 4), torch.zeros(128, 8)

    def step(i: int) -> torch.Tensor:
        for t in range(16):
            buffer[t] = data[(i + t) % 4000, :, :4]
            values[t] = buffer[t].sum(-1)
        return values.mean()

    return step


def discounted_advantages() -> NumberedStep:
    """Generalized advantage estimation over 32 steps of 8 environments."""
    rewards, values = torch.randn(128, 8), torch.randn(129, 8)

    def step(_: int) -> torch.Tensor:
        advantage, found = torch.zeros(8), []
        for t in reversed(range(32)):
            delta = rewards[t] + 0.99 * values[t + 1] - values[t]
            advantage = delta + 0.9405 * advantage
            found.append(advantage)
        return torch.stack(found).mean()

    return step


def act() -> NumberedStep:
    """A policy 4-64-2 asked for one action, which is read."""
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def step(i: int) -> torch.Tensor:
        with torch.no_grad():
            action = policy(torch.as_tensor([0.1 * i, 0.2, 0.3, 0.4])).argmax().item()
        return torch.tensor(action)

    return step


def sample_actions() -> NumberedStep:
    """torch.distributions, which checks its arguments by reading them."""
    data, actor = rows(4096), nn.Linear(64, 6)

    def step(i: int) -> torch.Tensor:
        actions = torch.distributions.Categorical(logits=actor(data[i % 4000 : i % 4000 + 8]))
        return actions.log_prob(actions.sample()).sum() + actions.entropy().sum()

    return step


def new_lengths() -> NumberedStep:
    """Attention without heads over 5 to 1004 words, each length once."""
    data, weights = rows(4096), torch.randn(64, 64)

    def step(i: int) -> torch.Tensor:
        words = data[: 5 + (i * 37) % 1000]
        return torch.softmax(torch.relu(words @ weights) @ weights.t(), -1).sum()

    return step


def collate() -> NumberedStep:
    """A batch of 32 rows, stacked."""
    data = rows(4096)

    def step(i: int) -> torch.Tensor:
        return torch.stack([data[(i * 37 + j) % 4096] for j in range(32)]).mean()

    return step


def loss_by_sample() -> NumberedStep:
    data, labels = rows(4096), torch.randint(0, 10, (4096,))

    def step(i: int) -> torch.Tensor:
        first = i % 4000
        parts = range(first, first + 16)
        losses = [F.cross_entropy(data[j : j + 1, :10], labels[j : j + 1]) for j in parts]
        return torch.stack(losses).sum()

    return step


def recurrent_cell() -> NumberedStep:
    """LSTMCell(32, 32), batch 8, 1 to 20 steps."""
    data, cell = rows(64)[:, :32], nn.LSTMCell(32, 32)

    def step(i: int) -> torch.Tensor:
        hidden = state = torch.zeros(8, 32)
        with torch.no_grad():
            for t in range(1 + i % 20):
                hidden, state = cell(data[t : t + 8], (hidden, state))
        return hidden.sum()

    return step


def moving_average() -> NumberedStep:
    """Of the four parameters of two layers 64-64."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    average = copy.deepcopy(model)

    def step(_: int) -> torch.Tensor:
        pairs = zip(average.parameters(), model.parameters(), strict=True)
        with torch.no_grad():
            return torch.stack([mean.lerp_(new, 0.01).sum() for mean, new in pairs]).sum()

    return step


def masked_values() -> NumberedStep:
    data = rows(200)

    def step(i: int) -> torch.Tensor:
        values = data + i % 3
        values[values > 1] = 0.0
        return values.sum()

    return step


def conditions() -> NumberedStep:
    """where, where, clamp, on [512, 64]."""
    data = rows(512)

    def step(_: int) -> torch.Tensor:
        inner = torch.where(data < -1, data + 1, data)
        return torch.where(data > 0, data * 2, inner).clamp(-3, 3).mean()

    return step


def pointwise_on_a_megapixel() -> NumberedStep:
    data = torch.randn(1000, 1000)

    def step(_: int) -> torch.Tensor:
        return ((data * 2 + 1).relu() - 0.5).sum()

    return step


def cells_of_a_table() -> NumberedStep:
    """Counts of 32 pairs of classes; then warping of 6 by 6 numbers, cell by cell."""
    a, b = torch.randint(0, 5, (4096,)), torch.randint(0, 5, (4096,))

    def step(i: int) -> torch.Tensor:
        first = i % 4000
        counts = torch.zeros(5, 5)
        for row, column in zip(a[first : first + 32], b[first : first + 32], strict=True):
            counts[row, column] += 1
        paths = torch.full((6, 6), 1e9)
        paths[0, 0] = 0
        for j in range(1, 6):
            for k in range(1, 6):
                before = min(paths[j - 1, k], paths[j, k - 1], paths[j - 1, k - 1])
                paths[j, k] = counts[j - 1, k - 1] + before
        return paths[5, 5]

    return step


def arrays_and_back() -> NumberedStep:
    """A policy 8-16-3 asked by an environment that is numpy's, eight times."""
    policy = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def step(i: int) -> torch.Tensor:
        state = np.full((4, 8), i % 7 / 7, np.float32)
        with torch.inference_mode():
            for _ in range(8):
                actions = policy(torch.from_numpy(state)).softmax(-1).numpy()
                state = state * np.float32(0.9) + actions.max()
        return torch.tensor(state.sum())

    return step


def numbered(make: Callable[[], NumberedStep]) -> Step:
    step, numbers = make(), iter(range(10**9))
    return lambda: step(next(numbers))


SMALL_PROGRAMS: dict[str, Callable[[], Step]] = {
    make.__name__.replace("_", " "): lambda make=make: numbered(make)
    for make in (
        read_numbers, branch_on_values, accuracy, fill_a_buffer, discounted_advantages, act,
        sample_actions, new_lengths, collate, loss_by_sample, recurrent_cell, moving_average,
        masked_values, conditions, pointwise_on_a_megapixel, cells_of_a_table, arrays_and_back,
    )
}  # fmt: skip
