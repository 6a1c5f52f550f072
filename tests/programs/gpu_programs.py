"""Programs for a real GPU alone (tests/real_cuda.py): what the simulated device has not."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lazyeng
from benchmarks.gpu_programs import SMALL_SHAPE, Llama
from lazyeng import _C
from tests.support.failures import raised_by
from tests.support.processes import printed_by

kernels: Any = None  # (tests/real_cuda.py)
MODES = ("async", "deferred", "sync")


def check_a_child_of_a_fork_has_the_gpu() -> None:
    """As without lazyeng: nothing has asked CUDA for anything when lazyeng is imported."""
    program = """
import os, torch, lazyeng
child = os.fork()
if child == 0:
    os._exit(7 if torch.ones(3, device="cuda").sum().item() == 3 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    printed_by(program, timeout=90)


def check_draws_equal_eager() -> None:
    def draw() -> list[Tensor]:
        torch.manual_seed(5)
        generator = torch.Generator("cuda").manual_seed(7)
        x = torch.rand(300, 7, device="cuda")
        made = [x.clone().uniform_(generator=generator), x.clone().normal_(), torch.rand_like(x),
                torch.randn(5, device="cuda", generator=generator), F.dropout(x, 0.3),
                torch.multinomial(x, 3), torch.randperm(50, device="cuda"),
                torch.randint(9, (40,), device="cuda"), x.bernoulli(), F.dropout(x[:, 1:], 0.5),
                torch.normal(x, 2.0), F.rrelu(x - 0.5, training=True)]  # fmt: skip
        return [*made, torch.cuda.get_rng_state(), generator.get_state()]

    expected = draw()
    for mode in MODES:
        for _ in range(3):
            with lazyeng.lazy(mode):
                found = lazyeng.unwrap(draw())
            for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                assert torch.equal(ours, theirs), (mode, i)
            kernels.wait()


def _layers() -> list[nn.Module]:
    return [
        nn.LSTM(6, 8, num_layers=2, bidirectional=True), nn.LSTM(6, 8, proj_size=3),
        nn.GRU(6, 8, batch_first=True), nn.RNN(6, 8, nonlinearity="relu"), nn.RNN(6, 8, bias=False),
    ]  # fmt: skip


def _recur(layer: nn.Module, x: Tensor, packed: bool) -> list[Tensor]:
    x = x.detach().requires_grad_()
    inputs: Any = x
    if packed:
        lengths = torch.tensor([5, 3, 2, 2])
        first = bool(getattr(layer, "batch_first", False))
        inputs = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first)
    output, state = layer(inputs)
    output = output.data if packed else output
    states = list(state) if isinstance(state, tuple) else [state]
    loss = output.square().sum() + sum(s.sin().sum() for s in states)
    grads = torch.autograd.grad(loss, [x, *layer.parameters()])
    return [output.detach(), *(s.detach() for s in states), *grads]


def check_attention_is_recorded() -> None:
    """Fused kernels return numbers beside tensors."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        q, k, v = (torch.randn(2, 4, 64, 32, device="cuda").to(dtype) for _ in range(3))
        mask = torch.ones(64, 64, device="cuda").tril().bool()

        def attend(
            q: Tensor = q, k: Tensor = k, v: Tensor = v, mask: Tensor = mask
        ) -> list[Tensor]:
            q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
            results = []
            for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
                y = F.scaled_dot_product_attention(q, k, v, **options)
                results += [y.detach(), *torch.autograd.grad(y.float().square().sum(), [q, k, v])]
            return results

        expected = attend()
        for mode in ("async", "deferred", "deferred"):
            before = lazyeng.engine_stats()["fallbacks"]
            with lazyeng.lazy(mode):
                found = attend()
            ran = lazyeng.engine_stats()["fallbacks"] - before
            torch.testing.assert_close(lazyeng.unwrap(found), expected, rtol=2e-2, atol=2e-2)
        print(f"{dtype}: {ran} ops ran at the call")
        assert ran == 0, ran


def check_decoding_in_graphs_equals_eager() -> None:
    """Layers with weights and caches of their own; attention, indexing. With the bits of eager's
    kernels, as the next token depends on each."""
    _C.set_inexact_device_fusion(False)
    _C.set_chosen_ops([], [], [])
    tokens = {}
    for way in ("eager", "lazy", "graphs"):
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = Llama(SMALL_SHAPE).to(torch.bfloat16)
        nn.init.normal_(model.norm.weight)  # (else the likeliest next token is the last one)

        @torch.no_grad()
        def step(model: Llama = model) -> Tensor:
            token = model()
            model.token.add_(model.at).remainder_(SMALL_SHAPE.words)  # (a tour of all words)
            return token

        _C.set_cuda_graphs(way == "graphs")
        before, made = lazyeng.engine_stats()["graph_launches"], []
        for _ in range(4):
            with contextlib.nullcontext() if way == "eager" else lazyeng.lazy():
                made += [step() for _ in range(50)]
            lazyeng.synchronize()
        tokens[way] = torch.cat(lazyeng.unwrap(made)).tolist()
    launched = lazyeng.engine_stats()["graph_launches"] - before
    print(f"{launched} launches of graphs for 200 tokens")
    assert tokens["lazy"] == tokens["eager"]
    assert tokens["graphs"] == tokens["eager"]
    assert len(set(tokens["eager"])) > 5 and launched > 50, (launched, tokens["eager"])


def check_recurrent_layers_equal_eager() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        for i, layer in enumerate(_layers()):
            layer = layer.to("cuda", dtype)
            shape = (4, 5, 6) if i == 2 else (5, 4, 6)
            x = torch.randn(shape, device="cuda").to(dtype)
            for packed in (False, True):
                expected = _recur(layer, x, packed)
                for mode in MODES:
                    for _ in range(2):
                        with lazyeng.lazy(mode):
                            found = lazyeng.unwrap(_recur(layer, x, packed))
                        torch.testing.assert_close(found, expected, msg=lambda m, i=i: f"{i}: {m}")
                wrapped = lazyeng.wrap(copy.deepcopy(layer))
                found = lazyeng.unwrap(_recur(wrapped, lazyeng.wrap(x), packed))
                torch.testing.assert_close(found, expected)


def check_dropout_between_recurrent_layers() -> None:
    """(By cells: torch keeps the state of cuDNN's dropout to itself.)"""
    layer = nn.LSTM(6, 8, num_layers=2, dropout=0.5).cuda()
    with lazyeng.lazy():
        found = lazyeng.unwrap(_recur(layer, torch.randn(5, 4, 6, device="cuda"), False))
    assert all(x.isfinite().all() for x in found)
    layer.eval()
    x = torch.randn(5, 4, 6, device="cuda")
    with torch.no_grad():
        expected = layer(x)[0]
        with lazyeng.lazy():
            torch.testing.assert_close(lazyeng.unwrap(layer(x)[0]), expected)


def check_kernels_of_jiterator() -> None:
    code = "template <typename T> T twice(T x, T y, T by) { return by * x + y; }"
    twice = torch.cuda.jiterator._create_jit_fn(code, by=2.0)
    x, y = torch.rand(5, device="cuda"), torch.rand(5, device="cuda")
    expected = twice(x, y, by=3.0)
    assert torch.equal(lazyeng.unwrap(twice(lazyeng.wrap(x), y, by=3.0)), expected)
    for first in (x, lazyeng.wrap(x) * 1):
        with lazyeng.lazy("deferred"):
            found = twice(first, y, by=3.0)
            assert type(found) is lazyeng.LazyTensor
            assert torch.equal(lazyeng.unwrap(found), expected)


def check_out_of_memory_is_an_error_of_its_op_alone() -> None:
    for mode in ("async", "deferred"):
        with lazyeng.lazy(mode):
            x = torch.ones(1000, device="cuda")
            large = x.view(1000, 1, 1).expand(1000, 10_000, 10_000) + 1  # 400 GB
            after = large * 2
            total = x.sum()
        error = raised_by(after.sum().item)
        assert isinstance(error, torch.OutOfMemoryError), repr(error)
        assert error.op == "aten.add.Tensor", error.op  # type: ignore[attr-defined]
        assert total.item() == 1000
        del large, after, error
        assert (lazyeng.wrap(torch.ones(3, device="cuda")) + 1).tolist() == [2.0] * 3


def check_a_wait_for_the_device_can_be_interrupted() -> None:
    x = lazyeng.wrap(torch.ones(3, device="cuda"))
    (x + 1).wait()
    torch.cuda._sleep(8_000_000_000)  # some seconds
    y = x + 1
    for wait in (y.wait, lazyeng.synchronize, y.tolist):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            wait()
        except KeyboardInterrupt:
            assert time.monotonic() - begin < 2
            continue
        raise AssertionError(f"{wait} was not interrupted")
    assert y.tolist() == [2.0] * 3


def check_the_peak_of_a_chain() -> None:
    """30 ops on 64 MiB: at most 3 buffers, once its kernel is there."""
    x = torch.rand(16 << 20, device="cuda")

    def chain() -> Tensor:
        y = x
        for i in range(10):
            y = (y * 0.99 + i).relu() - 0.25
        return y

    expected = chain()
    for _ in range(3):
        with lazyeng.lazy("deferred"):
            found = chain()
        torch.testing.assert_close(lazyeng.unwrap(found), expected)
        kernels.wait()
        del found
    del expected
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with lazyeng.lazy("deferred"):
        found = chain()
    found.wait()  # type: ignore[attr-defined]
    buffers = (torch.cuda.max_memory_allocated() - before) / x.nbytes
    print(f"peak of a chain of 30 ops: {buffers:.2f} buffers more than its input")
    assert buffers <= 3, buffers


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(*t.shape[:2], 4, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def _transformer(width: int = 64) -> nn.Module:
    torch.manual_seed(3)
    blocks = [_Block(width) for _ in range(3)]
    return nn.Sequential(nn.Embedding(50, width), *blocks, nn.Linear(width, 50)).cuda()


Optimizer = Callable[[Any], torch.optim.Optimizer]


def _losses(optimizer: Optimizer, mode: Any, steps: int = 16) -> list[float]:
    model = _transformer()
    update = optimizer(model.parameters())
    text = torch.randint(50, (steps, 8, 17), generator=torch.Generator().manual_seed(4))
    losses = []

    def step(tokens: Tensor) -> Tensor:
        tokens = tokens.cuda()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        update.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        return loss.detach()

    for tokens in text:
        if mode is None:
            losses.append(step(tokens))
            continue
        with lazyeng.lazy(mode):
            losses.append(step(tokens))
        if mode == "deferred":
            losses[-1].item()
            kernels.wait()
    return [float(loss) for loss in losses]


OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def check_training_a_transformer_equals_eager() -> None:
    for name, optimizer in OPTIMIZERS.items():
        expected = _losses(optimizer, None)
        for mode in ("deferred", "async", "sync"):
            found = _losses(optimizer, mode)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4,
                                       msg=lambda m, n=name, k=mode: f"{n} {k}: {m}")  # fmt: skip


def check_training_in_cuda_graphs_equals_eager() -> None:
    lazyeng._C.set_cuda_graphs(True)
    for name in ("sgd", "adamw"):
        before = lazyeng.engine_stats()["graph_launches"]
        expected = _losses(OPTIMIZERS[name], None, 24)
        found = _losses(OPTIMIZERS[name], "deferred", 24)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        launched = lazyeng.engine_stats()["graph_launches"] - before
        print(f"{name}: {launched} graph launches in 24 steps")
        assert launched > 0


def check_a_device_assertion_in_training_names_its_line() -> None:
    """Memory of copies, which streams share, is freed after the device is lost."""
    model = nn.Embedding(10, 4).cuda()
    with lazyeng.lazy():
        totals = []
        for i in range(5):
            tokens = torch.tensor([1, 2, 3 if i != 3 else 30]).to("cuda", non_blocking=True)
            totals.append(model(tokens).sum())  # here
    error = raised_by(lambda made=totals: torch.stack(made).tolist())
    assert isinstance(error, torch.AcceleratorError), repr(error)
    assert isinstance(error, lazyeng.LazyError)
    assert error.op == "aten.embedding", error.op
    del totals, model
