"""Networks as people write them: the architectures that the programs train, small."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """As torchvision's, with two stages."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.stages = nn.Sequential(
            ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2), ResidualBlock(16, 16, 1)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stages(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Two levels, skip connections, one way up learned and one interpolated; time is optional."""

    def __init__(self, channels: int = 1, outputs: int = 1) -> None:
        super().__init__()
        self.down1, self.down2 = double_conv(channels, 8), double_conv(8, 16)
        self.middle = double_conv(16, 16)
        self.up2 = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.dec2, self.dec1 = double_conv(32, 8), double_conv(16, 8)
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.head = nn.Conv2d(8, outputs, 1)

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        if t is not None:
            c = c + self.time(timestep_embedding(t, 16))[:, :, None, None]
        b = self.dec2(torch.cat([self.up2(c), b], dim=1))
        up = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.dec1(torch.cat([up, a], dim=1)))


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    """Sinusoidal, as in Ho, Jain and Abbeel, "Denoising Diffusion Probabilistic Models"."""
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.sin(), args.cos()], dim=-1)


class Tagger(nn.Module):
    """A bidirectional LSTM over packed sequences, then a GRU."""

    def __init__(self, words: int = 50, tags: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 10, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.gru = nn.GRU(20, 10, batch_first=True)
        self.out = nn.Linear(10, tags)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(x), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(self.gru(out)[0])


class VAE(nn.Module):
    """Kingma and Welling's, on 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.mu, self.logvar = nn.Linear(32, 4), nn.Linear(32, 4)
        self.fc3, self.fc4 = nn.Linear(4, 32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.mu(h), self.logvar(h)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


class DLRM(nn.Module):
    """Embedding bags, dot products of all pairs, two MLPs (Naumov et al., 2019)."""

    def __init__(self, tables: tuple[int, ...] = (20, 30, 15), sparse: bool = False) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, 8, mode="sum", sparse=sparse) for n in tables)
        self.bottom = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        pairs = (len(tables) + 1) * len(tables) // 2
        self.top = nn.Sequential(nn.Linear(8 + pairs, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, indices: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        bags = zip(self.bags, indices, offsets, strict=True)
        features = torch.stack([x, *(bag(i, o) for bag, i, o in bags)], dim=1)
        dots = torch.bmm(features, features.transpose(1, 2))
        i, j = torch.tril_indices(dots.shape[1], dots.shape[2], offset=-1)
        return self.top(torch.cat([x, dots[:, i, j]], dim=1)).squeeze(1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).split(dim, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).contiguous().view(batch, length, dim))


class GPT(nn.Module):
    """As nanoGPT, with tied weights."""

    def __init__(self, words: int = 40, dim: int = 16, block: int = 12) -> None:
        super().__init__()
        self.block = block
        self.wte, self.wpe = nn.Embedding(words, dim), nn.Embedding(block, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.attn, self.drop = Attention(dim, 2), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.wte(ids) + self.wpe(positions))
        x = x + self.attn(self.norms[0](x))
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x))

    @torch.no_grad()
    def generate(self, ids: Tensor, tokens: int, temperature: float, top_k: int) -> Tensor:
        for _ in range(tokens):
            logits = self(ids[:, -self.block :])[:, -1, :] / temperature
            kept, _ = torch.topk(logits, top_k)
            logits[logits < kept[:, [-1]]] = -float("inf")
            following = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
            ids = torch.cat((ids, following), dim=1)
        return ids


def mlp(*sizes: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), act()]
    return nn.Sequential(*layers[:-1])
