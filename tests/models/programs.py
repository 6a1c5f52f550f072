"""Models that train by the loop of training.train: one program each, without transformers."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.utils.data import DataLoader, TensorDataset

from tests.models import networks
from tests.models.training import STEPS, Program, Side, state, train

PROGRAMS: dict[str, Program] = {}


def program(run: Program) -> Program:
    PROGRAMS[run.__name__] = run
    return run


@program
def resnet(side: Side) -> Any:
    model = side(networks.ResNet())
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    found = train(model, lambda _: F.cross_entropy(model(x), y, label_smoothing=0.1), optimizer)
    model.eval()
    with torch.no_grad():
        return [*found, model(x), model(x).argmax(1)]


@program
def resnet_channels_last(side: Side) -> Any:
    model = side(networks.ResNet()).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(10, (4,))
    return train(model, lambda _: F.cross_entropy(model(x), y))


@program
def unet_segmentation(side: Side) -> Any:
    model = side(networks.UNet())
    x, y = torch.randn(2, 1, 16, 16), torch.randint(2, (2, 1, 16, 16)).float()

    def loss_of(_: int) -> Tensor:
        logits = model(x)
        p = logits.sigmoid()
        dice = 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, y) + dice

    return train(model, loss_of)


@program
def lstm_tagger(side: Side) -> Any:
    model = side(networks.Tagger())
    lengths = torch.tensor([5, 7, 3])
    mask = torch.arange(7)[None] < lengths[:, None]
    x = torch.randint(1, 50, (3, 7)) * mask
    y = torch.randint(5, (3, 7)).masked_fill(~mask, -100)
    return train(model, lambda _: F.cross_entropy(model(x, lengths).flatten(0, 1), y.flatten()))


@program
def vae(side: Side) -> Any:
    model = side(networks.VAE())
    x = torch.rand(8, 1, 8, 8)

    def loss_of(_: int) -> Tensor:
        recon, mu, logvar = model(x)
        bce = F.binary_cross_entropy(recon, x.view(-1, 64), reduction="sum")
        return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())

    return train(model, loss_of)


def bags(batch: int, tables: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    sizes = [torch.randint(1, 4, (batch,)) for _ in tables]
    indices = [torch.randint(n, (int(size.sum()),)) for n, size in zip(tables, sizes, strict=True)]
    return indices, [F.pad(size.cumsum(0)[:-1], (1, 0)) for size in sizes]


@program
def dlrm(side: Side) -> Any:
    model = side(networks.DLRM())
    dense, y = torch.randn(6, 13), torch.randint(2, (6,)).float()
    indices, offsets = bags(6, (20, 30, 15))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(dense, indices, offsets), y)

    return train(model, loss_of, optimizer)


@program
def dlrm_sparse_gradients(side: Side) -> Any:
    model = side(networks.DLRM(sparse=True))
    dense, y = torch.randn(6, 13), torch.randint(2, (6,)).float()
    indices, offsets = bags(6, (20, 30, 15))
    sparse = torch.optim.SparseAdam(model.bags.parameters(), lr=0.01)
    rest = torch.optim.SGD([*model.bottom.parameters(), *model.top.parameters()], lr=0.05)

    def loss_of(_: int) -> Tensor:
        sparse.zero_grad()
        return F.binary_cross_entropy_with_logits(model(dense, indices, offsets), y)

    return train(model, loss_of, rest, after=sparse.step)


@program
def gpt(side: Side) -> Any:
    """Trains, then generates; ids are drawn from the same generator as eager's."""
    model = side(networks.GPT())
    ids = torch.randint(40, (4, 13))

    def loss_of(_: int) -> Tensor:
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.view(-1, logits.size(-1)), ids[:, 1:].reshape(-1))

    found = train(model, loss_of)
    model.eval()
    return [*found, model.generate(ids[:, :3], 8, temperature=0.8, top_k=5)]


@program
def transformer(side: Side) -> Any:
    """nn.Transformer with masks; its encoder's fast path in eval."""
    model = side(nn.Transformer(16, 2, 1, 1, 32, batch_first=True))
    source, target = torch.randn(3, 6, 16), torch.randn(3, 5, 16)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.arange(6)[None] >= torch.tensor([[6], [4], [5]])

    def out() -> Tensor:
        return model(
            source, target, tgt_mask=causal,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip

    found = train(model, lambda _: F.mse_loss(out(), target))
    model.eval()
    with torch.no_grad():
        return [*found, model.encoder(source, src_key_padding_mask=padding), out()]


@program
def diffusion(side: Side) -> Any:
    """DDPM training steps and an average of the weights; then ancestral sampling."""
    model = side(networks.UNet())
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    betas = torch.linspace(1e-4, 0.02, 20)
    alphas = torch.cumprod(1 - betas, dim=0)
    x0 = torch.randn(2, 1, 16, 16)

    def loss_of(_: int) -> Tensor:
        t = torch.randint(0, 20, (x0.shape[0],))
        noise = torch.randn_like(x0)
        a = alphas[t][:, None, None, None]
        return F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)

    found = train(model, loss_of, after=lambda: ema.update_parameters(model))
    return [*found, state(ema), sample(ema, betas, alphas)]


@torch.no_grad()
def sample(model: nn.Module, betas: Tensor, alphas: Tensor) -> Tensor:
    x = torch.randn(1, 1, 16, 16)
    for t in reversed(range(16, 20)):
        noise = model(x, torch.full((1,), t))
        mean = (x - betas[t] / (1 - alphas[t]).sqrt() * noise) / (1 - betas[t]).sqrt()
        x = mean + betas[t].sqrt() * torch.randn_like(x) if t > 16 else mean
    return x


@program
def gan_with_gradient_penalty(side: Side) -> Any:
    """Two optimizers, detached samples, a second derivative (WGAN-GP)."""
    gen, critic = side(networks.mlp(4, 16, 8)), side(networks.mlp(8, 16, 1))
    opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    real, losses = torch.randn(6, 8), []
    for _ in range(STEPS):
        fake = gen(torch.randn(6, 4)).detach()
        eps = torch.rand(6, 1)
        mixed = (eps * real + (1 - eps) * fake).requires_grad_()
        (grad,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
        loss_c = critic(fake).mean() - critic(real).mean() + 10 * penalty
        opt_c.zero_grad(set_to_none=True)
        loss_c.backward()
        opt_c.step()
        loss_g = -critic(gen(torch.randn(6, 4))).mean()
        opt_g.zero_grad(set_to_none=True)
        loss_g.backward()
        opt_g.step()
        losses += [loss_c, loss_g, penalty]
    return [losses, state(gen), state(critic)]


@program
def ppo(side: Side) -> Any:
    """Rollout, generalised advantages, clipped updates over shuffled minibatches."""
    actor, critic = side(networks.mlp(4, 16, 3)), side(networks.mlp(4, 16, 1))
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3, eps=1e-5)
    obs, rewards, logged = torch.randn(12, 4), torch.randn(12), []
    with torch.no_grad():
        dist = Categorical(logits=actor(obs))
        actions = dist.sample()
        old, values = dist.log_prob(actions), critic(obs).squeeze(-1)
    advantages, last = torch.zeros(12), torch.tensor(0.0)
    for t in reversed(range(11)):
        delta = rewards[t] + 0.99 * values[t + 1] - values[t]
        last = advantages[t] = delta + 0.99 * 0.95 * last
    returns = advantages + values
    for _ in range(STEPS):
        for index in torch.randperm(12).split(4):
            dist = Categorical(logits=actor(obs[index]))
            ratio = (dist.log_prob(actions[index]) - old[index]).exp()
            adv = advantages[index]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            policy = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            value = F.mse_loss(critic(obs[index]).squeeze(-1), returns[index])
            loss = policy + 0.5 * value - 0.01 * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            logged += [loss.item(), norm]
    return [logged, actions, state(actor), state(critic)]


@program
def sac(side: Side) -> Any:
    """Twin critics with slow targets, a squashed Gaussian policy, a learned temperature."""
    actor = side(networks.mlp(4, 16, 4))
    critics = side(nn.ModuleList(networks.mlp(6, 16, 1) for _ in range(2)))
    targets = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = side(torch.zeros(1)).requires_grad_()
    opt_a = torch.optim.Adam(actor.parameters(), lr=1e-3)
    opt_c = torch.optim.Adam(critics.parameters(), lr=1e-3)
    opt_t = torch.optim.Adam([log_alpha], lr=1e-3)
    replay = [torch.randn(64, 4), torch.randn(64, 2).tanh(), torch.randn(64), torch.randn(64, 4)]
    losses = []

    def act(obs: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_std = actor(obs).chunk(2, dim=-1)
        normal = Normal(mu, log_std.clamp(-5, 2).exp())
        u = normal.rsample()
        action = u.tanh()
        log_prob = normal.log_prob(u) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(-1)

    def q(which: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([obs, action], -1)
        return torch.stack([c(x).squeeze(-1) for c in which.children()])

    for _ in range(STEPS):
        index = torch.randint(64, (8,))
        obs, action, reward, following = (x[index] for x in replay)
        with torch.no_grad():
            a, logp = act(following)
            soft = q(targets, following, a).amin(0) - log_alpha.exp() * logp
            backup = reward + 0.99 * soft
        loss_c = (q(critics, obs, action) - backup).pow(2).mean(1).sum()
        step(opt_c, loss_c)
        critics.requires_grad_(False)
        a, logp = act(obs)
        loss_a = (log_alpha.exp().detach() * logp - q(critics, obs, a).amin(0)).mean()
        step(opt_a, loss_a)
        critics.requires_grad_(True)
        step(opt_t, -(log_alpha * (logp.detach() - 2)).mean())
        with torch.no_grad():
            for p, target in zip(critics.parameters(), targets.parameters(), strict=True):
                target.mul_(0.995).add_(p, alpha=0.005)
        losses += [loss_c, loss_a]
    return [losses, log_alpha, state(actor), state(critics), state(targets)]


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@program
def speech_ctc(side: Side) -> Any:
    model = side(nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.BatchNorm1d(16), nn.Hardswish(),
                               nn.Conv1d(16, 6, 1)))  # fmt: skip
    x, targets = torch.randn(3, 8, 20), torch.randint(1, 6, (3, 5))
    lengths, sizes = torch.tensor([20, 18, 15]), torch.tensor([5, 3, 4])

    def loss_of(_: int) -> Tensor:
        log_probs = model(x).permute(2, 0, 1).log_softmax(-1)
        return F.ctc_loss(log_probs, targets, lengths, sizes, zero_infinity=True)

    return train(model, loss_of)


@program
def graph_network(side: Side) -> Any:
    """Message passing by index_add and scatter, batch norm, a pool over nodes of each graph."""
    layers = side(nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]))
    norm, head = side(nn.BatchNorm1d(8)), side(nn.Linear(8, 2))
    x, edges = torch.randn(20, 8), torch.randint(20, (2, 50))
    graph, y = torch.arange(20) // 5, torch.tensor([0, 1, 1, 0])
    degree = torch.bincount(edges[1], minlength=20).clamp(min=1).unsqueeze(1)
    both = nn.ModuleList([layers, norm, head])

    def loss_of(_: int) -> Tensor:
        h = x
        for layer in layers:
            messages = torch.zeros_like(h).index_add_(0, edges[1], layer(h)[edges[0]])
            h = norm(F.elu(h + messages / degree))
        pooled = torch.zeros(4, 8).scatter_reduce_(
            0, graph[:, None].expand(-1, 8), h, "amax", include_self=False
        )
        return F.cross_entropy(head(pooled), y)

    return train(both, loss_of)


@program
def loader_and_checkpoint(side: Side) -> Any:
    """An epoch of a DataLoader, a checkpoint in the middle, metrics read at each step."""
    torch.manual_seed(1)
    model = side(networks.mlp(6, 16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    data = TensorDataset(torch.randn(20, 6), torch.randint(3, (20,)))
    log, saved = [], None
    for i, (x, y) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
        out = model(x)
        step(optimizer, F.cross_entropy(out, y))
        log.append((out.argmax(1) == y).float().mean().item())
        if i == 1:
            saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    assert saved is not None
    after = state(model)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    step(optimizer, model(torch.ones(2, 6)).square().sum())
    return [log, [x.clone() for x in after], state(model)]
