"""One table: what each operation of a program is in Triton.

The operations are those of ``Opcode`` (csrc/fuse/tiles/tile_kernel.h), which
``csrc/fuse/op_table.cpp`` gives to the names of aten ops; ``{0}``, ``{1}``, ... are their operands.
What takes more than an expression is a function of ``functions.py``, named ``{f}...`` here. Where
bool has a meaning of its own, or floats do not compute as the operator says, the key names the
type, or its kind.
"""

from __future__ import annotations

FLOATS = ("f32", "f64")
TRITON_TYPES = {
    "b8": "tl.int1", "u8": "tl.uint8", "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32",
    "i64": "tl.int64", "f32": "tl.float32", "f64": "tl.float64", "f16": "tl.float16",
    "bf16": "tl.bfloat16",
}  # fmt: skip

_LIBDEVICE = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh erf erfc floor ceil trunc pow "
    "acos acosh asin asinh atan atanh atan2 hypot erfinv lgamma copysign"
)
_SAME_NAME = (  # functions.py has a function of this name
    "abs div reciprocal sqrt rsqrt maximum minimum clamp sign lerp sigmoid gelu gelu_tanh silu "
    "leaky_relu elu softplus hardswish hardsigmoid threshold_backward silu_backward gelu_backward "
    "gelu_tanh_backward leaky_relu_backward mish mish_backward log_sigmoid log_sigmoid_backward "
    "shrink softshrink smooth_l1 smooth_l1_backward huber huber_backward hardswish_backward "
    "hardsigmoid_backward hardtanh_backward softplus_backward elu_slope elu_slope_of_result "
    "fmax fmin fmod remainder floor_divide shift_left shift_right nan_to_num logaddexp logaddexp2 "
    "xlogy xlog1py"
)

EXPRESSIONS: dict[str | tuple[str, str], str] = {
    "copy": "{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    ("add", "b8"): "{0} | {1}",
    ("mul", "b8"): "{0} & {1}",
    ("maximum", "b8"): "{0} | {1}",
    ("minimum", "b8"): "{0} & {1}",
    "add_scaled": "{0} + {1} * {2}",
    ("add_scaled", "float"): "tl.fma({1}, {2}, {0})",
    "neg": "-{0}",
    ("neg", "float"): "{0} * -1",  # (Triton 3.7 makes 0 - x of -x, which loses the sign of 0.0)
    "square": "{0} * {0}",
    "relu": "tl.where({0} < 0, 0, {0})",  # (NaN and -0.0 stay)
    "round": "libdevice.rint({0})",
    "addcmul": "tl.fma({3} * {1}, {2}, {0})",
    ("addcmul", "integer"): "{0} + {3} * {1} * {2}",
    "addcdiv": "{0} + div({3} * {1}, {2})",
    ("pow", "integer"): "power({0}, {1})",
    "trunc_divide": "{0} // {1}",
    "frac": "{0} - libdevice.trunc({0})",
    ("fmax", "integer"): "maximum({0}, {1})",
    ("fmin", "integer"): "minimum({0}, {1})",
    ("fmax", "b8"): "{0} | {1}",
    ("fmin", "b8"): "{0} & {1}",
    "heaviside": "tl.where({0} == 0, {1}, ({0} > 0).to({0}.dtype))",
    ("heaviside", "b8"): "{0} | {1}",
    ("sign", "b8"): "{0}",
    ("sign_bit", "f32"): "{0}.to(tl.int32, bitcast=True) < 0",
    ("sign_bit", "f64"): "{0}.to(tl.int64, bitcast=True) < 0",
    "sign_bit": "{0} < 0",
    ("sign_bit", "b8"): "{0} != {0}",
    "tanh_backward": "{0} * (1 - {1} * {1})",
    "sigmoid_backward": "{0} * (1 - {1}) * {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) ^ ({1} != 0)",
    "logical_not": "{0} == 0",
    "select": "tl.where({0}, {1}, {2})",
    "bit_and": "{0} & {1}",
    "bit_or": "{0} | {1}",
    "bit_xor": "{0} ^ {1}",
    "bit_not": "~{0}",
    ("bit_not", "b8"): "{0} == 0",
    "round_f16": "{0}.to(tl.float16).to(tl.float32)",
    "round_bf16": "{0}.to(tl.bfloat16).to(tl.float32)",
}
EXPRESSIONS |= {name: f"libdevice.{name}" for name in _LIBDEVICE.split()}
EXPRESSIONS["exp_u20"] = "libdevice.exp"
EXPRESSIONS |= dict.fromkeys(_SAME_NAME.split(), "")
EXPRESSIONS |= {
    (name, "integer"): "{0}" for name in ("floor", "ceil", "trunc", "round")
}  # as torch's kernels for integers


def expression(operation: str, type: str, operands: list[str]) -> str:
    """Triton's text for the operation in this type of register.

    Raises:
        KeyError: the operation is not in the table.
    """
    kind = "float" if type in FLOATS else "integer"
    for key in ((operation, type), (operation, kind)):
        if key in EXPRESSIONS:
            return EXPRESSIONS[key].format(*operands)
    text = EXPRESSIONS[operation]
    if "{" in text:
        return text.format(*operands)
    return f"{text or operation}({', '.join(operands)})"


def cast(operand: str, source: str, target: str) -> str:
    """The operand, of one type, in another one, as torch converts."""
    if source == target:
        return operand
    if target == "b8":
        return f"{operand} != 0"
    if source in FLOATS and target == "u8":  # negative numbers wrap around, as in torch
        return f"{operand}.to(tl.int64).to(tl.uint8)"
    return f"{operand}.to({TRITON_TYPES[target]})"
