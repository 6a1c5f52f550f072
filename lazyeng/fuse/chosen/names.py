"""The ops of the table by name: all that the core needs to know, and all that is imported at start.

A test keeps it and the functions of ``table`` together.
"""

from __future__ import annotations

#: What a kernel runs by itself.
ALONE = (
    "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::_fused_rms_norm",
    "aten::_fused_rms_norm_backward", "aten::_softmax", "aten::_log_softmax",
    "aten::_softmax_backward_data", "aten::_log_softmax_backward_data",
    "aten::nll_loss_forward", "aten::nll_loss_backward", "aten::_fused_adamw_",
    "aten::_fused_adam_", "aten::_fused_sgd_", "aten::native_dropout",
)  # fmt: skip
#: What one runs as one: the first tensor of the second is what the first makes.
PAIRS = (
    ("aten::nll_loss_backward", "aten::_log_softmax_backward_data"),
    ("aten::addmm", "aten::relu"), ("aten::addmm", "aten::gelu"), ("aten::addmm", "aten::silu"),
)  # fmt: skip
_OVERLOADS = {
    "lerp": (".Scalar", ".ScalarList", ".List"), "addcmul": (".Scalar", ".ScalarList"),
    "addcdiv": (".Scalar", ".ScalarList"),
} | dict.fromkeys(("sqrt", "rsqrt", "reciprocal", "neg"), ("",))  # fmt: skip
#: Ops over lists of tensors, of which one kernel runs any number: op -> operation of
#: lazyeng.fuse.expressions; the arguments are its operands, in order.
LISTS = {
    f"aten::_foreach_{name}{place}{overload}": name
    for name in (
        "add", "sub", "mul", "div", "maximum", "minimum", "lerp", "addcmul", "addcdiv", "sqrt",
        "rsqrt", "reciprocal", "neg",
    )
    for place in ("", "_")
    for overload in _OVERLOADS.get(name, (".Scalar", ".ScalarList", ".List"))
}  # fmt: skip
