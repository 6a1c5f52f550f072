"""A linear layer with its activation as one kernel (linear_act.py).

torch's products are the vendor's, which are faster than this kernel; what it saves is writing the
sums and reading them again. So it is for sums of few products. The bounds are estimates from an
H100's data sheet (half of them were enough if it did two thirds of the vendor's speed): nothing of
this was measured.
"""

from __future__ import annotations

import torch

from lazyeng.fuse.chosen.calls import Call, Calls
from lazyeng.fuse.chosen.launches import Launches, block_of, cdiv, fit, stride

# dtype -> the most products in a sum. (float32 without tensor cores computes for longer.)
MOST = {torch.bfloat16: 1024, torch.float16: 1024, torch.float32: 128}
MOST_TF32 = 512


def linear_act(calls: Calls) -> Launches | None:
    """addmm, and an activation of what it makes."""
    product, act = calls.calls
    activation = _activation(act)
    (pre,), (y,) = product.results, act.results
    places = [product[name] for name in ("self", "mat1", "mat2")]
    bias, x, weight = (calls.tensors[place] for place in places)
    if activation is None or pre is None or y is None or not fit(bias, calls.tensors[y]):
        return None
    (m, k), n = x.sizes, weight.sizes[1]
    dtypes = {tensor.dtype for tensor in (bias, x, weight, calls.tensors[pre], calls.tensors[y])}
    most = MOST_TF32 if calls.tf32 and x.dtype == torch.float32 else MOST.get(x.dtype, 0)
    if len(dtypes) > 1 or not 0 < k <= most or bias.sizes != (n,) or not calls.tensors[pre].numel:
        return None
    if product["beta"] is ... or product["alpha"] is ... or not calls.tensors[pre].contiguous:
        return None
    exact = x.dtype == torch.float32 and not calls.tf32
    # tl.dot takes 16 or more. With tensor cores 128 x 128 sums are 64 registers of each thread of 8
    # warps; without the operands need registers too.
    tile = 64 if exact else 128
    block_m, block_n = (max(16, block_of(size, tile)) for size in (m, n))
    dead = calls.tensors[pre].state == "dead"
    made = Launches(calls)
    made.add(
        "linear_act", "linear_act_kernel", (cdiv(m, block_m) * cdiv(n, block_n),),
        made.tensor(product["mat1"]), made.tensor(product["mat2"]), made.tensor(product["self"]),
        made.tensor(y), None if dead else made.tensor(pre), m, n, k, *map(stride, x.strides),
        *map(stride, reversed(weight.strides)), ACTIVATION=activation, HAS_BIAS=True,
        STORE_PRE=not dead, PRECISION="tf32" if calls.tf32 else "ieee", BLOCK_M=block_m,
        BLOCK_N=block_n, BLOCK_K=32 if x.dtype == torch.float32 else 64,  # a line of the cache
        GROUP_M=8, UPCAST=False, elements=block_m * block_n // 2, options={"num_stages": 3},
    )  # fmt: skip
    return made


def _activation(call: Call) -> str | None:
    if call.op == "aten::gelu":
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(call["approximate"])
    return call.op.removeprefix("aten::")
