"""Programs of benchmarks/gpu.py: eager code that knows no lazyeng, on any device.

`small` makes each small enough for a test on a CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads import Step, mlp, sac


def head(width: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(24, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def ppo(device: str = "cpu") -> Step:
    """A minibatch of 64 of a clipped policy update, 24-64-64-6 and 24-64-64-1, as CleanRL's."""
    with torch.device(device):
        policy, critic = head(64, 6), head(64, 1)
        seen, action = torch.randn(64, 24), torch.randint(0, 6, (64,))
        before, advantage, gain = torch.randn(64) - 2, torch.randn(64), torch.randn(64)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)

    def step() -> torch.Tensor:
        chances = F.log_softmax(policy(seen), -1)
        ratio = (chances.gather(1, action[:, None]).squeeze(1) - before).exp()
        wanted = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = torch.max(-wanted * ratio, -wanted * ratio.clamp(0.8, 1.2)).mean()
        entropy = -(chances.exp() * chances).sum(-1).mean()
        loss = surrogate - 0.01 * entropy + 0.5 * F.mse_loss(critic(seen).squeeze(1), gain)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        return loss.detach()

    return step


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a Llama: that of Llama-3.2-1B."""

    layers: int = 16
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    words: int = 128_256
    tokens: int = 512  # that the caches hold


SMALL_SHAPE = Shape(layers=2, width=32, heads=4, kv_heads=2, hidden=64, words=50, tokens=64)


class Layer(nn.Module):
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.head = shape, shape.width // shape.heads
        kv = self.head * shape.kv_heads
        self.norm1, self.norm2 = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.q, self.o = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(shape.width, kv, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, shape.kv_heads, shape.tokens, self.head))

    def forward(self, x: torch.Tensor, at: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor],
                mask: torch.Tensor) -> torch.Tensor:  # fmt: skip
        h = self.norm1(x)
        q = rotated(self.q(h).view(1, 1, -1, self.head).transpose(1, 2), *turn)
        k = rotated(self.k(h).view(1, 1, -1, self.head).transpose(1, 2), *turn)
        v = self.v(h).view(1, 1, -1, self.head).transpose(1, 2)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        repeats = self.shape.heads // self.shape.kv_heads
        keys = self.keys.repeat_interleave(repeats, 1)
        values = self.values.repeat_interleave(repeats, 1)
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.o(seen.transpose(1, 2).reshape(1, 1, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: https://arxiv.org/abs/2104.09864."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Llama(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor
    token: torch.Tensor
    at: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        head = shape.width // shape.heads
        angles = torch.outer(
            torch.arange(shape.tokens), 500_000.0 ** (-torch.arange(0, head, 2) / head)
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.ones(shape.tokens, shape.tokens).tril().bool())
        # (Buffers: torch.compile captures graphs only if what a graph changes stays where it is.)
        self.register_buffer("token", torch.zeros(1, dtype=torch.long))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self) -> torch.Tensor:
        """The likeliest next token, which is the next input."""
        x = self.embedding(self.token).view(1, 1, -1)
        turn = self.cos[self.at], self.sin[self.at]
        for layer in self.layers:
            x = layer(x, self.at, turn, self.mask[self.at])
        token = F.linear(self.norm(x), self.embedding.weight).argmax(-1).view(1)
        self.token.copy_(token)
        self.at.add_(1).remainder_(len(self.mask))
        return token


def decode(device: str = "cpu", small: bool = False) -> Step:
    """One more token of a Llama in bfloat16, batch 1."""
    with torch.device(device):
        model = Llama(SMALL_SHAPE if small else Shape()).to(torch.bfloat16)
    return torch.no_grad()(model)


LAUNCH_BOUND: dict[str, Callable[[str], Step]] = {
    "MLP, AdamW": mlp, "SAC, twin critics": sac, "PPO": ppo,
}  # fmt: skip


def chain(x: torch.Tensor) -> torch.Tensor:
    """20 pointwise ops."""
    y = x
    for _ in range(5):
        y = (y * 0.99 + x).relu() - 0.25
    return y


def activation(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * x + 1


CHAINS = {"20-op chain": chain, "silu(x) * x + 1": activation}
