"""What generated kernels compute in more than an expression. ``source`` copies what it uses.

Formulas are those of torch's kernels. float32 division and square roots are the correctly rounded
ones, as in torch: Triton's ``/`` on float32 is an approximation. NaN passes through maximum,
minimum and clamp.
"""

# Stubs of libdevice return None.
# pyright: reportOperatorIssue=false
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def div(a, b):
    if a.dtype == tl.float64 or b.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def sqrt(x):
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def reciprocal(x):
    return div(tl.full((), 1, x.dtype), x)


@triton.jit
def rsqrt(x):
    return reciprocal(sqrt(x))


@triton.jit
def abs(x):  # (the name of the op)
    return tl.abs(x) if x.dtype.is_floating() else tl.where(x < 0, 0 - x, x)


@triton.jit
def maximum(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def total(a, b):
    return a + b


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def clamp(x, low, high):
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def lerp(a, b, weight):
    near_b = b - (1 - weight) * (b - a)
    return tl.where(tl.abs(weight) < 0.5, a + weight * (b - a), near_b)


@triton.jit
def sigmoid(x):
    return reciprocal(1 + libdevice.exp(-x))


@triton.jit
def silu(x):
    return div(x, 1 + libdevice.exp(-x))


@triton.jit
def silu_backward(grad, x):
    s = sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@triton.jit
def gelu(x):
    half_root = tl.full((), 0.7071067811865476, x.dtype)
    return x * 0.5 * (1 + libdevice.erf(x * half_root))


@triton.jit
def gelu_backward(grad, x):
    half_root = tl.full((), 0.7071067811865476, x.dtype)
    density = tl.full((), 0.3989422804014327, x.dtype)  # 1 / sqrt(2 pi)
    cdf = 0.5 * (1 + libdevice.erf(x * half_root))
    return grad * (cdf + x * density * libdevice.exp(x * x * -0.5))


@triton.jit
def gelu_tanh(x):
    beta = tl.full((), 0.7978845608028654, x.dtype)  # sqrt(2 / pi)
    kappa = tl.full((), 0.044715, x.dtype)
    return 0.5 * x * (1 + libdevice.tanh(beta * (x + kappa * x * x * x)))


@triton.jit
def gelu_tanh_backward(grad, x):
    beta = tl.full((), 0.7978845608028654, x.dtype)
    kappa = tl.full((), 0.044715, x.dtype)
    t = libdevice.tanh(beta * (x + kappa * x * x * x))
    inner = beta * (1 + 3 * kappa * x * x)
    return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)


@triton.jit
def leaky_relu(x, slope):
    return x * tl.where(x > 0, 1, slope)


@triton.jit
def leaky_relu_backward(grad, x, slope):
    return grad * tl.where(x > 0, 1, slope)


@triton.jit
def elu(x, alpha, scale, input_scale):
    return tl.where(x >= 0, x * scale, libdevice.expm1(x * input_scale) * (alpha * scale))


@triton.jit
def softplus(x, beta, threshold):
    scaled = x * beta
    return tl.where(scaled > threshold, x, div(libdevice.log1p(libdevice.exp(scaled)), beta))


@triton.jit
def hardsigmoid(x):
    return div(clamp(x + 3, 0, 6), tl.full((), 6, x.dtype))


@triton.jit
def hardswish(x):
    return div(x * clamp(x + 3, 0, 6), tl.full((), 6, x.dtype))


@triton.jit
def threshold_backward(grad, x, threshold):
    return tl.where(x <= threshold, 0, grad)
