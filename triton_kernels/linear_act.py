"""A linear layer with its activation in one kernel: y = act(x weight^T + bias).

The product is blocked as in the Triton tutorial "Matrix Multiplication", with its order of programs
for the L2 cache; bias and activation are applied to the float32 sums while they are in registers.
The backward applies the activation's derivative in one pass and leaves the products to torch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from . import _launch

OP = "linear_act"
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


@triton.jit
def _tanh(x):
    # Exact at both ends: exp gives inf or 0. (libdevice's tanh is missing in the interpreter.)
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.where(x <= 0, 0.0, x)  # NaN stays
    if ACTIVATION == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    if ACTIVATION == "gelu_tanh":
        x = 0.5 * x * (1 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    if ACTIVATION == "silu":
        x = x / (1 + tl.exp(-x))
    return x


@triton.jit
def _derivative(x, ACTIVATION: tl.constexpr):
    """Of the activation at x; for relu x may also be its result."""
    if ACTIVATION == "relu":
        x = tl.where(x <= 0, 0.0, 1.0)
    if ACTIVATION == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        x = 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * density
    if ACTIVATION == "gelu_tanh":
        t = _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
        inner = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x)
        x = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner
    if ACTIVATION == "silu":
        s = 1 / (1 + tl.exp(-x))
        x = s * (1 + x * (1 - s))
    return x


@triton.jit
def linear_act_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, pre_ptr, n_rows, n_cols, n_inner,
                      stride_xm, stride_xk, stride_wn, stride_wk, ACTIVATION: tl.constexpr,
                      HAS_BIAS: tl.constexpr, STORE_PRE: tl.constexpr, PRECISION: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                      GROUP_M: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """One [BLOCK_M, BLOCK_N] tile of y. With STORE_PRE also what the activation is applied to."""
    # Programs that run together share GROUP_M blocks of rows of x and few of weight, so that both
    # are found in the L2 cache; row by row, all of weight would pass through it for each row.
    pid = tl.program_id(0)
    blocks_m = tl.cdiv(n_rows, BLOCK_M)
    in_group = GROUP_M * tl.cdiv(n_cols, BLOCK_N)
    first_m = pid // in_group * GROUP_M
    group_m = tl.minimum(blocks_m - first_m, GROUP_M)
    rows = ((first_m + pid % in_group % group_m) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (pid % in_group // group_m * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    inner = tl.arange(0, BLOCK_K)
    along = inner.to(tl.int64)
    x_ptrs = x_ptr + rows[:, None] * stride_xm + along[None, :] * stride_xk
    w_ptrs = weight_ptr + along[:, None] * stride_wk + cols[None, :] * stride_wn
    x_step = tl.full((), stride_xk, tl.int64) * BLOCK_K
    w_step = tl.full((), stride_wk, tl.int64) * BLOCK_K
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, n_inner, BLOCK_K):
        inside = start + inner < n_inner
        x = tl.load(x_ptrs, mask=(rows < n_rows)[:, None] & inside[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=inside[:, None] & (cols < n_cols)[None, :], other=0.0)
        if UPCAST:  # loses nothing, and the tensor cores too make float32 products
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        total = tl.dot(x, w, total, input_precision=PRECISION)
        x_ptrs += x_step
        w_ptrs += w_step
    if HAS_BIAS:
        total += tl.load(bias_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)[None, :]
    offsets = rows[:, None] * n_cols + cols[None, :]
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    if STORE_PRE:
        tl.store(pre_ptr + offsets, total, mask=mask)
    tl.store(y_ptr + offsets, _activate(total, ACTIVATION), mask=mask)


@triton.jit
def act_backward_kernel(dy_ptr, pre_ptr, dz_ptr, n_elements, ACTIVATION: tl.constexpr,
                        BLOCK_SIZE: tl.constexpr):  # fmt: skip
    """dz = dy act'(z)."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    z = tl.load(pre_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(dz_ptr + offsets, dy * _derivative(z, ACTIVATION), mask=mask)


def _fake_forward(x, weight, bias, activation, store_pre=False):
    y = x.new_empty((x.shape[0], weight.shape[0]))
    return y, torch.empty_like(y) if store_pre else y.new_empty(0)


@_launch.recorded(_fake_forward)
def linear_act_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    store_pre: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, pre), each [m, n]; x [m, k] and weight [n, k] with any strides, bias [n]. pre, what the
    activation is applied to, is [0] without `store_pre`."""
    (m, k), n = x.shape, weight.shape[0]
    float32, tf32 = x.dtype == torch.float32, torch.backends.cuda.matmul.allow_tf32
    y, pre = _fake_forward(x, weight, bias, activation, store_pre)
    if y.numel():
        # tl.dot takes 16 or more. With tensor cores 128 x 128 sums are 64 registers of each thread
        # of 8 warps; without (float32 as it is) the operands need registers too.
        tile = 64 if float32 and not tf32 else 128
        block_m, block_n = (max(16, _launch.block_of(size, tile)) for size in (m, n))
        _launch.launch(
            linear_act_kernel, (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),), x, weight,
            bias.contiguous() if bias is not None else None, y, pre if store_pre else None, m, n, k,
            *x.stride(), *weight.stride(), ACTIVATION=activation,
            HAS_BIAS=bias is not None, STORE_PRE=store_pre,
            PRECISION="tf32" if tf32 else "ieee", BLOCK_M=block_m, BLOCK_N=block_n,
            BLOCK_K=32 if float32 else 64,  # 128 bytes: one line of the cache
            UPCAST=_launch.INTERPRETED,  # which multiplies the bits of bfloat16 as integers
            GROUP_M=8, num_stages=3, elements=block_m * block_n // 2,
        )  # fmt: skip
    return y, pre


@_launch.recorded(lambda dy, pre, activation: torch.empty_like(
    dy, memory_format=torch.contiguous_format))  # fmt: skip
def act_backward(dy: torch.Tensor, pre: torch.Tensor, activation: str) -> torch.Tensor:
    """dz = dy act'(pre), all [m, n]; for relu `pre` may be the result."""
    dy, pre = dy.contiguous(), pre.contiguous()
    dz = torch.empty_like(dy)
    if dz.numel():
        _launch.launch(
            act_backward_kernel, (triton.cdiv(dz.numel(), 1024),), dy, pre, dz, dz.numel(),
            ACTIVATION=activation, BLOCK_SIZE=1024, elements=1024,
        )  # fmt: skip
    return dz


class _LinearAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, activation):
        needs_pre = any(ctx.needs_input_grad) and activation not in ("none", "relu")
        y, pre = linear_act_forward(x, weight, bias, activation, needs_pre)
        # relu's derivative can be told from its result.
        kept = y if activation == "relu" else pre if needs_pre else None
        ctx.save_for_backward(x, weight, kept)
        ctx.activation = activation
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, kept = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        dz = dy if kept is None else act_backward(dy, kept, ctx.activation)
        dx = dz @ weight if needs_x else None
        dweight = dz.t() @ x if needs_weight else None
        dbias = dz.sum(0) if needs_bias else None
        return dx, dweight, dbias, None


def linear_act(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """`act(F.linear(x, weight, bias))`: x [..., k], weight [n, k], bias [n] -> [..., n].

    activation: "none", "relu", "gelu", "gelu_tanh" (`F.gelu(approximate="tanh")`) or "silu".
    dtypes: float32, bfloat16, float16, one for all tensors; sums are float32. Products of float32
    use TF32 only if `torch.backends.cuda.matmul.allow_tf32` is set. Raises NotImplementedError for
    other dtypes, RuntimeError for dtypes or shapes that do not fit, ValueError for the activation.
    """
    _check(x, weight, bias, activation)
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    y = _LinearAct.apply(rows, weight, bias, activation)
    return y.view(*x.shape[:-1], weight.shape[0])


def _check(x, weight, bias, activation) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"[{OP}] unknown activation, got {activation!r}, "
            f"expected one of {', '.join(map(repr, ACTIVATIONS))}"
        )
    dtypes = tuple(dtype for dtype in _launch.FLOATS if dtype != torch.float64)
    _launch.check_tensors(OP, dtypes, x=x, weight=weight, bias=bias)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != x.dtype:
            raise RuntimeError(
                f"[{OP}] dtype of {name} differs from x, got {tensor.dtype}, expected {x.dtype}"
            )
    if weight.dim() != 2:
        raise RuntimeError(f"[{OP}] weight has {weight.dim()} dims, got {list(weight.shape)}, "
                           "expected [n, k]")  # fmt: skip
    if not x.dim() or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"[{OP}] shape of x does not fit, got {list(x.shape)}, "
            f"expected [..., {weight.shape[1]}] for weight of {list(weight.shape)}"
        )
    _launch.check_shape(OP, "bias", bias, (weight.shape[0],))
