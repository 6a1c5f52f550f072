"""What training code does around a model: one program each, over a network that is small."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import lr_scheduler, swa_utils
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.models import networks
from tests.models.training import STEPS, Program, Side, state, train

PROGRAMS: dict[str, Program] = {}


def program(run: Program) -> Program:
    PROGRAMS[run.__name__] = run
    return run


def classifier(side: Side) -> tuple[nn.Sequential, Tensor, Tensor]:
    model = nn.Sequential(
        nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Dropout(0.2), nn.Linear(12, 3)
    )
    return side(model), torch.randn(8, 6), torch.randint(3, (8,))


def loss_on(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    return lambda _: F.cross_entropy(model(x), y)


@program
def checkpointing_reentrant(side: Side) -> Any:
    return checkpointed(side, use_reentrant=True)


@program
def checkpointing(side: Side) -> Any:
    return checkpointed(side, use_reentrant=False)


def checkpointed(side: Side, use_reentrant: bool) -> Any:
    """Blocks with dropout: what is computed again has to draw the same numbers."""
    model = side(nn.ModuleList([
        nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh()),
    ]))  # fmt: skip
    x = torch.randn(4, 6, requires_grad=True)

    def loss_of(_: int) -> Tensor:
        h = checkpoint(model[0], x, use_reentrant=use_reentrant)
        assert isinstance(h, Tensor)
        h = checkpoint_sequential(model[1], 2, h, use_reentrant=use_reentrant)
        return h.square().mean()

    return [*train(model, loss_of), x.grad]


@program
def mixed_precision(side: Side) -> Any:
    """autocast to bfloat16 with a scaler, which reads whether gradients overflowed."""
    model, x, y = classifier(side)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y) * (float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses += [loss, norm, scaler.get_scale()]
    return [losses, state(model)]


@program
def autocast_convolutions(side: Side) -> Any:
    model = side(networks.ResNet())
    x, y = torch.randn(2, 3, 16, 16), torch.randint(10, (2,))

    def loss_of(_: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x), y)

    return train(model, loss_of)


@program
def bfloat16_model(side: Side) -> Any:
    model = side(networks.GPT().bfloat16())
    ids = torch.randint(40, (2, 9))
    return train(model, lambda _: F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:]))


@program
def averaged_weights(side: Side) -> Any:
    """An exponential average and SWA with its own schedule and statistics."""
    model = side(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    ema = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.8))
    swa = swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)

    def after() -> None:
        ema.update_parameters(model)
        swa.update_parameters(model)
        schedule.step()

    found = train(model, loss_on(model, x, y), optimizer, after)
    swa_utils.update_bn([x, x + 1], swa)
    return [*found, state(ema), state(swa), swa(x)]


@program
def gradient_clipping(side: Side) -> Any:
    model, x, y = classifier(side)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    norms: list[Tensor] = []

    def loss_of(step: int) -> Tensor:
        loss = F.cross_entropy(model(x), y) * 10
        kept = [p.register_hook(lambda g: g.clamp(-0.5, 0.5)) for p in model[0].parameters()]
        loss.backward(retain_graph=True)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=1 + step % 3))
        norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters()], float("inf")))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        for hook in kept:
            hook.remove()
        return loss

    return [*train(model, loss_of, optimizer), norms]


@program
def parameter_groups(side: Side) -> Any:
    """Groups with their own settings, one added later, one frozen and thawed."""
    model, x, y = classifier(side)
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 1e-2, "weight_decay": 0.1},
         {"params": model[1].parameters(), "betas": (0.8, 0.9)}], lr=1e-3,
    )  # fmt: skip
    model[4].requires_grad_(False)
    first = train(model, loss_on(model, x, y), optimizer)
    model[4].requires_grad_(True)
    optimizer.add_param_group({"params": model[4].parameters(), "amsgrad": True})
    return [copy.deepcopy(first), train(model, loss_on(model, x, y), optimizer)]


SCHEDULES = [
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=STEPS),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2),
    lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LambdaLR(o, lambda i: 0.9**i), lr_scheduler.PolynomialLR(o, 5)]
    ),
    lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=3, eta_min=1e-3),
    lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    lambda o: lr_scheduler.MultiplicativeLR(o, lambda i: 0.9),
    lambda o: lr_scheduler.ConstantLR(o, total_iters=3),
    lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    lambda o: lr_scheduler.PolynomialLR(o, 4, power=2.0),
]


@program
def schedulers(side: Side) -> Any:
    found = []
    for make in SCHEDULES:
        model, x, y = classifier(side)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        schedule = make(optimizer)
        for _ in range(STEPS):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            plateau = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
            schedule.step(loss) if plateau else schedule.step()
            found += [loss, schedule.get_last_lr()]
        found += state(model)
    return found


@program
def learning_rate_as_tensor(side: Side) -> Any:
    model, x, y = classifier(side)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))
    schedule = lr_scheduler.StepLR(optimizer, 2, 0.5)
    found = train(model, loss_on(model, x, y), optimizer, after=schedule.step)
    return [*found, schedule.get_last_lr()]


@program
def function_transforms(side: Side) -> Any:
    """torch.func: gradients for each sample, Jacobians, Hessians, tangents, an ensemble."""
    model = side(networks.mlp(4, 6, 2))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x, y = torch.randn(5, 4), torch.randn(5, 2)

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, p, (x[None],)), y[None])

    def f(x: Tensor) -> Tensor:
        return model(x).tanh()

    each = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0))
    models = [networks.mlp(4, 6, 2) for _ in range(3)]
    stacked, buffers = torch.func.stack_module_state([side(m) for m in models])
    ensemble = torch.func.vmap(lambda p, b: torch.func.functional_call(model, (p, b), (x,)))
    return [
        each(parameters, x, y),
        torch.func.grad(lambda p: loss(p, x[0], y[0]))(parameters),
        torch.func.jacrev(f)(x[0]), torch.func.jacfwd(f)(x[0]),
        torch.func.hessian(lambda x: f(x).sum())(x[0]),
        torch.func.jvp(f, (x,), (torch.ones_like(x),)),
        torch.func.vjp(f, x)[1](y),
        torch.func.vmap(f, chunk_size=2)(x),
        torch.func.vmap(lambda x: x + torch.rand(()), randomness="different")(x),
        ensemble(stacked, buffers),
    ]  # fmt: skip


@program
def functional_training(side: Side) -> Any:
    """MAML: steps inside a step, differentiated through."""
    model = side(networks.mlp(3, 8, 1))
    x, y = torch.randn(2, 6, 3), torch.randn(2, 6, 1)

    def loss_of(_: int) -> Tensor:
        total = torch.zeros(())
        for task in range(2):
            fast = dict(model.named_parameters())
            for _ in range(2):
                out = torch.func.functional_call(model, fast, (x[task],))
                grads = torch.autograd.grad(
                    F.mse_loss(out, y[task]), list(fast.values()), create_graph=True
                )
                pairs = zip(fast.items(), grads, strict=True)
                fast = {name: p - 0.1 * g for (name, p), g in pairs}
            out = torch.func.functional_call(model, fast, (x[task],))
            total = total + F.mse_loss(out, y[task])
        return total

    return train(model, loss_of)


@program
def distributions(side: Side) -> Any:
    """Samples, densities, moments, entropies, divergences, and gradients with regard to
    parameters."""
    p = side(torch.rand(3, 3) + 0.5).requires_grad_()
    scale = p @ p.mT + torch.eye(3)
    made = [
        D.Normal(p, p), D.Beta(p, p + 1), D.Gamma(p, p), D.Dirichlet(p), D.Laplace(p, p),
        D.LogNormal(p, p), D.StudentT(p + 2), D.Cauchy(p, p), D.Gumbel(p, p), D.Uniform(p, p + 1),
        D.HalfNormal(p), D.Pareto(p, p), D.Weibull(p, p), D.Kumaraswamy(p, p), D.VonMises(p, p),
        D.Categorical(logits=p), D.Bernoulli(logits=p), D.Poisson(p), D.Geometric(logits=p),
        D.OneHotCategoricalStraightThrough(logits=p), D.Binomial(4, logits=p),
        D.Multinomial(5, logits=p), D.RelaxedOneHotCategorical(p[0, 0], logits=p),
        D.MultivariateNormal(p, scale_tril=torch.linalg.cholesky(scale)),
        D.MultivariateNormal(p[0], covariance_matrix=scale),
        D.LowRankMultivariateNormal(p[0], p, p[1]), D.LKJCholesky(3, p[0, 0]),
        D.Independent(D.Normal(p, p), 1),
        D.MixtureSameFamily(D.Categorical(logits=p), D.Normal(p, p)),
        D.TransformedDistribution(D.Normal(p, p), [D.SigmoidTransform(), D.AffineTransform(1, 2)]),
        D.ContinuousBernoulli(logits=p), D.FisherSnedecor(p + 2, p + 2), D.Chi2(p),
        D.Exponential(p), D.InverseGamma(p + 1, p), D.NegativeBinomial(p + 1, logits=p),
        D.LogisticNormal(p, p), D.RelaxedBernoulli(p[0, 0], logits=p), D.HalfCauchy(p),
        D.OneHotCategorical(logits=p), D.GeneralizedPareto(p, p, p / 10),
        D.Wishart(p[0, 0] + 4, scale),
        D.TransformedDistribution(D.Normal(p, p), [D.ExpTransform(), D.PowerTransform(p[0, 0])]),
        D.TransformedDistribution(D.Normal(p, p), [D.StickBreakingTransform()]),
        D.TransformedDistribution(D.Normal(p, p), [
            D.SoftplusTransform(), D.ComposeTransform([D.AffineTransform(1, 2), D.TanhTransform()])
        ]),
    ]  # fmt: skip
    found: list[Any] = []
    for d in made:
        # (Wishart's rsample writes to a mask that backward needs; eager, too, refuses that.)
        by_parameters = d.has_rsample and not isinstance(d, D.Wishart)
        sample = d.rsample((2,)) if by_parameters else d.sample((2,))
        found += [sample, *moments(d)]
        value = d.log_prob(sample)
        (grad,) = torch.autograd.grad(value.sum() + sample.sum(), p, retain_graph=True)
        found += [value, grad]
    found += [D.kl_divergence(made[0], D.Normal(0.0, 1.0)), D.kl_divergence(made[3], made[3])]
    found += [made[0].entropy(), made[15].entropy(), made[23].entropy()]
    return found


def moments(d: D.Distribution) -> list[Tensor]:
    """Those that it has."""
    found = []
    for of in (lambda: d.mean, lambda: d.variance, lambda: d.mode, d.entropy):
        with contextlib.suppress(NotImplementedError):
            found.append(of())
    return found


@program
def hooks(side: Side) -> Any:
    """All that a module and a tensor can be hooked by; some change what they see."""
    model, x, y = classifier(side)
    seen: list[Any] = []
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 1.5,))
    model[0].register_forward_hook(lambda m, args, out: out + 0.1)
    model[1].register_forward_hook(lambda m, args, kwargs, out: seen.append(out), with_kwargs=True)
    model[2].register_full_backward_hook(lambda m, gin, gout: (gin[0] * 0.5,))
    model[4].register_full_backward_pre_hook(lambda m, gout: (gout[0] * 2,))
    model[4].weight.register_hook(lambda g: g * 0.9)
    model[4].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    model.register_state_dict_pre_hook(lambda *_: seen.append(1))

    def loss_of(_: int) -> Tensor:
        out = model(x)
        out.retain_grad()
        out.register_hook(lambda g: seen.append(g.norm()))
        return F.cross_entropy(out, y)

    found = train(model, loss_of)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        model(x).sum().backward()
    return [*found, seen, list(model.state_dict().values())]


@program
def reparametrized_weights(side: Side) -> Any:
    """Weight, spectral and orthogonal norm, one of its own, pruning; made lazy before and after."""

    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).mT

        def right_inverse(self, x: Tensor) -> Tensor:
            return x.triu()

    layers = [nn.Linear(6, 6) for _ in range(5)]
    model = side(nn.Sequential(*layers))
    parametrizations.weight_norm(layers[0])
    parametrizations.spectral_norm(layers[1], n_power_iterations=2)
    parametrizations.orthogonal(layers[2])
    parametrize.register_parametrization(layers[3], "weight", Symmetric())
    prune.l1_unstructured(layers[4], "weight", amount=0.3)
    model = side(model)
    x = torch.randn(4, 6)
    found = train(model, lambda _: model(x).square().sum())
    with parametrize.cached():
        found.append(model(x))
    for layer in layers[:4]:
        parametrize.remove_parametrizations(layer, "weight")
    prune.remove(layers[4], "weight")
    return [*found, model(x), state(model)]


@program
def old_norms(side: Side) -> Any:
    layers = [nn.Linear(6, 6), nn.Conv1d(4, 4, 3, padding=1)]
    model = side(nn.Sequential(*layers))
    nn.utils.weight_norm(layers[0])
    nn.utils.spectral_norm(layers[1])
    x = torch.randn(4, 6)
    found = train(model, lambda _: model(x).square().sum())
    nn.utils.remove_weight_norm(layers[0])
    return [*found, model(x)]


@program
def second_order_and_closures(side: Side) -> Any:
    """LBFGS, Hessian-vector products, penalties on gradients, gradients summed over batches."""
    model = side(networks.mlp(4, 8, 1))
    x, y = torch.randn(6, 4), torch.randn(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss  # type: ignore[return-value]

    losses = [optimizer.step(closure) for _ in range(3)]
    parameters = list(model.parameters())
    grads = torch.autograd.grad(F.mse_loss(model(x), y), parameters, create_graph=True)
    product = sum(((g * torch.ones_like(g)).sum() for g in grads), torch.zeros(()))
    hvp = torch.autograd.grad(product, parameters)
    for part in x.split(2):
        (model(part).mean() / 3).backward()
    flat = nn.utils.parameters_to_vector(parameters)
    nn.utils.vector_to_parameters(flat * 0.9, parameters)
    return [losses, hvp, [p.grad for p in parameters], flat, model(x)]
