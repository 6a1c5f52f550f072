"""Random models and training loops: a seed decides layers, loss, optimizer and what a loop does.

All layers take and give [batch, width], so that any may follow any other. Everything that a run
makes is compared: losses, predictions, parameters, buffers, averages and gradients.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

CLASSES, STEPS = 7, 6
WIDTHS, BATCHES = (8, 16, 24, 36, 72), (5, 8, 33, 64)
Choose = Callable[[Any], Any]


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.inner(x)


class Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, -1)
        return a * torch.sigmoid(b)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Masked(nn.Module):
    mask: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(width) % 3 > 0)

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(~self.mask, 0.1)


class RunningMean(nn.Module):
    mean: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.count += 1
        return x - self.mean


class Heads(nn.Module):
    """Attention over the batch."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width = x.shape
        q, k, v = self.qkv(x).view(batch, 3, self.heads, -1).permute(1, 2, 0, 3)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(0, 1).reshape(batch, width))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        return self.inner(x, x, x, need_weights=False)[0][0]


class Convolutions(nn.Module):
    def __init__(self, kernel: int, groups: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv1d(1, 4, kernel, padding=kernel // 2),
            nn.Conv1d(4, 4, 3, padding=1, groups=groups), nn.ReLU(), nn.Conv1d(4, 1, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, None])[:, 0]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.view(len(x), 1, 4, -1)).reshape(x.shape)


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.RNNBase], bidirectional: bool) -> None:
        super().__init__()
        self.inner = layer(4, 8, batch_first=True, bidirectional=bidirectional)
        self.out = nn.Linear(16 if bidirectional else 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x.view(len(x), -1, 4))[0]).reshape(x.shape)


class Cell(nn.Module):
    def __init__(self, cell: type[nn.Module], width: int) -> None:
        super().__init__()
        self.cell = cell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for _ in range(3):
            state = self.cell(x, state)
        return state[0] if isinstance(state, tuple) else state


class Einsum(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 4, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,ikj->bkj", x, self.weight).amax(1)


class Mixture(nn.Module):
    """Of experts, two for each row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(2, -1)
        total = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            total = total + expert(x) * (weight * (chosen == k)).sum(-1, keepdim=True)
        return total


class Grouped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        group = torch.arange(len(x)) % 3
        sums = torch.zeros(3, x.shape[1], dtype=x.dtype).index_add(0, group, x)
        return x - 0.1 * sums[group]


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, ::2] *= 0.5
        y[1:] += y[:-1].detach() * 0.1
        return y.clamp_(-3, 3)


def channels(inner: nn.Module) -> nn.Module:
    """Four channels for it."""
    return nn.Sequential(nn.Unflatten(1, (4, -1)), inner, nn.Flatten())


ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    F.relu, F.gelu, F.silu, F.elu, F.mish, F.hardswish, F.softplus, F.hardtanh, F.softsign,
    torch.tanh, torch.sigmoid, torch.sin, lambda x: F.leaky_relu(x, 0.2),
    lambda x: F.gelu(x, approximate="tanh"), lambda x: x.relu().square(),
    lambda x: x * torch.sigmoid(1.7 * x), lambda x: F.threshold(x, 0.1, 0.0),
]  # fmt: skip

OF_ROWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.softmax(-1) * x, lambda x: x.softmax(0) + x, lambda x: x.log_softmax(-1) * 0.3,
    lambda x: x - x.logsumexp(-1, keepdim=True) / 4, lambda x: F.normalize(x, dim=-1),
    lambda x: x / (x.std(-1, keepdim=True) + 0.1), lambda x: x.cumsum(-1) / x.shape[-1],
    lambda x: x * (x.var(-1, keepdim=True) + 1).rsqrt(), lambda x: x.sort(-1)[0],
    lambda x: x - x.mean(0, keepdim=True), lambda x: x - x.amax(-1, keepdim=True) * 0.1,
    lambda x: x.flip(-1) + x.roll(1, -1), lambda x: torch.where(x > x.median(), x, 0.1 * x),
    lambda x: F.glu(torch.cat([x, x * 0.5], -1)), lambda x: torch.stack([x, x * 2]).mean(0),
    lambda x: x @ (x.t() @ x) / len(x) / 10, lambda x: torch.lerp(x, x.detach().mean(), 0.2),
    lambda x: F.pad(x.unfold(-1, 3, 1).mean(-1), (1, 1)),
    lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True) * 0.1 + x,
    lambda x: (x.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1).neg().softmax(-1) @ x,
]  # fmt: skip

LAYERS: list[Callable[[Choose, int], nn.Module]] = [
    *[lambda choose, n: nn.Linear(n, n, bias=choose([True, False]))] * 5,
    *[lambda choose, n: Function(choose(ACTIVATIONS))] * 3,
    *[lambda choose, n: Function(choose(OF_ROWS))] * 3,
    *[lambda choose, n: Residual(layers(choose, n, 2), choose([0.5, 1.0]))] * 2,
    lambda choose, n: nn.LayerNorm(n),
    lambda choose, n: nn.RMSNorm(n),
    lambda choose, n: nn.BatchNorm1d(n, momentum=choose([0.1, None]), affine=choose([True, False])),
    lambda choose, n: channels(nn.GroupNorm(2, 4)),
    lambda choose, n: channels(nn.InstanceNorm1d(4, affine=True)),
    lambda choose, n: channels(choose([nn.MaxPool1d, nn.AvgPool1d])(3, 1, 1)),
    lambda choose, n: nn.Dropout(choose([0.1, 0.5])),
    lambda choose, n: Gate(n),
    lambda choose, n: Noise(),
    lambda choose, n: Masked(n),
    lambda choose, n: RunningMean(n),
    lambda choose, n: Heads(n),
    lambda choose, n: Attention(n),
    lambda choose, n: Convolutions(choose([1, 3, 5]), choose([1, 2, 4])),
    lambda choose, n: Images(),
    lambda choose, n: Recurrent(choose([nn.LSTM, nn.GRU, nn.RNN]), choose([True, False])),
    lambda choose, n: Cell(choose([nn.LSTMCell, nn.GRUCell, nn.RNNCell]), n),
    lambda choose, n: Einsum(n),
    lambda choose, n: Mixture(n),
    lambda choose, n: Grouped(),
    lambda choose, n: InPlace(),
    lambda choose, n: nn.utils.parametrizations.weight_norm(nn.Linear(n, n)),
    lambda choose, n: nn.utils.parametrizations.spectral_norm(nn.Linear(n, n)),
    lambda choose, n: nn.TransformerEncoderLayer(
        n, 2, 2 * n, batch_first=True, norm_first=choose([True, False])
    ),
]

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
LOSSES: list[Loss] = [
    lambda o, y, t: F.cross_entropy(o, y),
    lambda o, y, t: F.cross_entropy(o, y, label_smoothing=0.1),
    lambda o, y, t: (F.cross_entropy(o, y, reduction="none") * t[:, 0].abs()).mean(),
    lambda o, y, t: F.nll_loss(o.log_softmax(1), y, reduction="sum") / len(y),
    lambda o, y, t: F.mse_loss(o, t),
    lambda o, y, t: F.l1_loss(o, t),
    lambda o, y, t: F.huber_loss(o, t),
    lambda o, y, t: F.smooth_l1_loss(o, t),
    lambda o, y, t: F.binary_cross_entropy_with_logits(o, (t > 0).to(o.dtype)),
    lambda o, y, t: F.kl_div(o.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
    lambda o, y, t: 1 - F.cosine_similarity(o, t).mean(),
    lambda o, y, t: F.multi_margin_loss(o, y),
    lambda o, y, t: F.gaussian_nll_loss(o, t, o.square() + 0.1),
    lambda o, y, t: F.triplet_margin_loss(o, t, o.roll(1, 0)),
    lambda o, y, t: F.soft_margin_loss(o, t.sign()),
    lambda o, y, t: F.poisson_nll_loss(o.clamp(max=3), t.abs()),
]

Parameters = list[nn.Parameter]
OPTIMIZERS: list[Callable[[Choose, Parameters], torch.optim.Optimizer]] = [
    lambda choose, p: torch.optim.SGD(p, lr=0.01),
    lambda choose, p: torch.optim.SGD(
        p, lr=0.01, momentum=0.9, nesterov=choose([True, False]), weight_decay=choose([0, 0.01])
    ),
    *[lambda choose, p: torch.optim.Adam(p, lr=0.01, amsgrad=choose([True, False]))] * 2,
    *[lambda choose, p: torch.optim.AdamW(p, lr=0.01, foreach=choose([None, True, False]))] * 2,
    lambda choose, p: torch.optim.RMSprop(p, centered=choose([True, False]), momentum=0.5),
    lambda choose, p: torch.optim.Adagrad(p),
    lambda choose, p: torch.optim.NAdam(p),
    lambda choose, p: torch.optim.RAdam(p),
    lambda choose, p: torch.optim.Adadelta(p),
    lambda choose, p: torch.optim.Adamax(p),
    lambda choose, p: torch.optim.Rprop(p),
]

SCHEDULERS: list[Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler | None]] = [
    lambda optimizer: None,
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
]


def layers(choose: Choose, width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(choose(LAYERS)(choose, width) for _ in range(count)))


def clip_by_hand(parameters: Parameters) -> None:
    for p in parameters:
        if p.grad is not None:
            p.grad.nan_to_num_().clamp_(-1, 1)


CLIPS: list[Callable[[Parameters], object]] = [
    lambda p: None,
    lambda p: nn.utils.clip_grad_norm_(p, 1.0),
    lambda p: nn.utils.clip_grad_value_(p, 0.1),
    clip_by_hand,
]


class Training:
    """One program: eager code, but for what `side` does to the model and to inputs."""

    def __init__(self, seed: int, side: Callable[[Any], Any] = lambda x: x) -> None:
        rng = random.Random(seed)
        choose, chance = rng.choice, rng.random
        torch.manual_seed(seed)
        width, self.batch = choose(WIDTHS), choose(BATCHES)
        self.side, self.model = side, layers(choose, width, rng.randint(1, 6))
        self.model.append(nn.Linear(width, CLASSES))
        rows = 3 * self.batch
        self.x, self.y = torch.randn(rows, width), torch.randint(CLASSES, (rows,))
        self.targets = torch.randn(rows, CLASSES)
        if chance() < 0.15:
            self.model, self.x, self.targets = (
                it.double() for it in (self.model, self.x, self.targets)
            )
        if chance() < 0.15:
            next(self.model.parameters()).requires_grad_(False)
        self.model = side(self.model)
        self.loss: Loss = choose(LOSSES)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = choose(OPTIMIZERS)(choose, trained)
        self.scheduler = choose(SCHEDULERS)(self.optimizer)
        self.clip, self.accumulated = choose(CLIPS), choose([1, 1, 2])
        self.set_to_none, self.reads = choose([True, False]), chance() < 0.3
        self.averages, self.evaluates = chance() < 0.3, chance() < 0.4
        self.switches_mode = chance() < 0.5
        self.regularised, self.checkpoints = chance() < 0.2, chance() < 0.1
        self.autocast = chance() < 0.1

    def run(self, block: AbstractContextManager[object]) -> list[Tensor]:
        averages = [p.detach().clone() for p in self.model.parameters()] if self.averages else []
        losses: list[Tensor] = []
        with block:
            if self.evaluates:
                losses.append(self._accuracy(self.side(self.x[: self.batch]), self.y[: self.batch]))
            for step in range(STEPS):
                losses += self._step(step)
                if self.averages:
                    with torch.no_grad():
                        for average, p in zip(averages, self.model.parameters(), strict=True):
                            average.lerp_(p, 0.1)
        tensors = [*losses, *averages, *self.model.buffers()]
        for p in self.model.parameters():
            tensors += [p.detach()] if p.grad is None else [p.detach(), p.grad]
        return tensors

    def _step(self, step: int) -> list[Tensor]:
        part = slice(step % 3 * self.batch, (step % 3 + 1) * self.batch)
        x = self.side(self.x[part])
        if step % self.accumulated == 0:
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
        loss = self.loss(self._predict(x), self.y[part], self.targets[part])
        if self.regularised:
            loss = loss + 1e-3 * sum(p.square().sum() for p in self.model.parameters())
        loss.backward()
        if (step + 1) % self.accumulated == 0:
            self.clip(list(self.model.parameters()))
            self.optimizer.step()
            if self.scheduler:
                self.scheduler.step()
        made = [torch.tensor(loss.item()) if self.reads else loss.detach()]
        return [*made, self._accuracy(x, self.y[part])] if self.evaluates else made

    def _predict(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            if self.checkpoints:
                predicted = checkpoint(self.model, x, use_reentrant=False)
            else:
                predicted = self.model(x)
        assert isinstance(predicted, Tensor)
        return predicted.to(self.targets.dtype)

    def _accuracy(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.train(not self.switches_mode)
        with torch.no_grad():
            right = (self.model(x).argmax(-1) == y).float().mean()
        self.model.train()
        return right
