"""What Triton's interpreter lacks, or does otherwise than a GPU, so that generated kernels run in
it as they are: libdevice (it has none), rounding to bfloat16 (it cuts off), what a comparison of
two scalars is (it takes it for one of their type), and numbers (`mend_numbers`). And
folds in NumPy, which it makes element by element."""

from __future__ import annotations

import functools
import linecache
import os
import types

import numpy as np
import torch
import triton.language as tl
from triton.language import semantic
from triton.runtime import interpreter

_count = 0


def load(text: str) -> dict:
    """The names that a generated source defines."""
    global _count
    _count += 1
    file = f"<group {_count}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict = {"__name__": file}
    exec(compile(text, file, "exec"), names)
    if interpreted():
        names["libdevice"] = LIBDEVICE
        mend()
    return names


def interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _function(name: str):
    def call(*operands):
        values = [torch.from_numpy(np.asarray(operand.handle.data)) for operand in operands]
        result = TORCH_NAMES.get(name, getattr(torch, name, None))(*values)
        dtype = operands[0].dtype
        return tl.tensor(interpreter.TensorHandle(result.numpy(), dtype), operands[0].type)

    return call


TORCH_NAMES = {"rint": torch.round}
FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sinh",
    "cosh", "erf", "erfc", "floor", "ceil", "trunc", "rint", "pow", "acos", "acosh", "asin",
    "asinh", "atan", "atanh", "atan2", "hypot", "erfinv", "lgamma", "copysign", "fmod",
)  # fmt: skip
LIBDEVICE = types.SimpleNamespace(**{name: _function(name) for name in FUNCTIONS})
FOLDS = {
    "total": np.sum,
    "product": np.prod,
    "maximum": np.max,
    "minimum": np.min,
}  # (NaN wins in NumPy's)
FLOATS = {tl.float32: np.float32, tl.float64: np.float64}


@functools.cache
def mend() -> None:
    """Casts between float32 and bfloat16 by torch: a GPU rounds to the nearest, or to even."""

    def fold(self, inputs):
        fold, data = FOLDS[self.combine_fn.__name__], inputs[0].handle.data
        values = fold(data, axis=self.axis, keepdims=self.keep_dims)
        return (self.to_tensor(values.astype(data.dtype), inputs[0].dtype),)

    before = interpreter.InterpreterBuilder.cast_impl

    def splat(self, type, scalar):
        del self
        return interpreter.TensorHandle(np.full(type.shape, scalar.data), scalar.dtype.scalar)

    def cast(self, source, target):
        kinds = source.dtype.scalar, target.scalar
        if kinds == (tl.float32, tl.bfloat16):
            narrow = torch.from_numpy(np.array(source.data)).bfloat16().view(torch.int16)
            return interpreter.TensorHandle(narrow.numpy().view(np.uint16), target.scalar)
        if kinds == (tl.bfloat16, tl.float32):
            narrow = torch.from_numpy(np.array(source.data).view(np.int16)).view(torch.bfloat16)
            return interpreter.TensorHandle(narrow.float().numpy(), target.scalar)
        return before(self, source, target)

    interpreter.InterpreterBuilder.cast_impl = cast
    interpreter.InterpreterBuilder.create_splat = splat
    interpreter.ReduceOps.generic_reduce = fold
    mend_numbers()


def mend_numbers() -> None:
    """What Triton 3.7's does otherwise: bool arguments and ~ of unsigned integers raise, and -0.0
    among the arguments is 0.0 (floats are constants to it, on a GPU they are not)."""
    convert = interpreter._implicit_cvt
    constant = semantic.TritonSemantic.scalar_constant

    def scalar(value, type, dtype):
        return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=type), dtype), dtype)

    def argument(value):
        return scalar(value, np.bool_, tl.int1) if isinstance(value, bool) else convert(value)

    def scalar_constant(self, value, dtype):
        zero = dtype in FLOATS and value == 0
        return scalar(value, FLOATS[dtype], dtype) if zero else constant(self, value, dtype)

    def all_ones(self, type):
        del self
        ones = np.full(1, -1).astype(interpreter._get_np_dtype(type))
        return interpreter.TensorHandle(ones, type.scalar)

    interpreter._implicit_cvt = argument
    semantic.TritonSemantic.scalar_constant = scalar_constant
    interpreter.InterpreterBuilder.get_all_ones_value = all_ones
