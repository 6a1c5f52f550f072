"""What generated kernels compute in more than an expression. ``source`` copies what it uses.

Formulas are those of torch's kernels. float32 division and square roots are the correctly rounded
ones, as in torch: Triton's ``/`` on float32 is an approximation. NaN passes through maximum,
minimum and clamp.
"""

# Stubs of libdevice return None.
# pyright: reportOperatorIssue=false, reportOptionalOperand=false, reportGeneralTypeIssues=false
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


@triton.jit
def hardswish_backward(grad, x):
    inside = tl.where(x <= -3, 0, grad * (div(x, tl.full((), 3, x.dtype)) + 0.5))
    return tl.where(x >= 3, grad, inside)


@triton.jit
def hardsigmoid_backward(grad, x):
    return tl.where((x > -3) & (x < 3), div(grad, tl.full((), 6, x.dtype)), 0)


@triton.jit
def hardtanh_backward(grad, x, low, high):
    return tl.where((x <= low) | (x >= high), 0, grad)


@triton.jit
def softplus_backward(grad, x, beta, threshold):
    scaled = x * beta
    z = libdevice.exp(scaled)
    return tl.where(scaled > threshold, grad, div(grad * z, z + 1))


@triton.jit
def elu_slope(x, alpha, scale, input_scale):
    return tl.where(x > 0, scale, input_scale * (alpha * scale) * libdevice.exp(x * input_scale))


@triton.jit
def elu_slope_of_result(y, alpha, scale, input_scale):
    return tl.where(y > 0, scale, input_scale * (y + alpha * scale))


@triton.jit
def mish(x):
    return x * libdevice.tanh(libdevice.log1p(libdevice.exp(x)))


@triton.jit
def mish_backward(grad, x):
    s, t = sigmoid(x), libdevice.tanh(libdevice.log1p(libdevice.exp(x)))
    return grad * (t + x * s * (1 - t * t))


@triton.jit
def log_sigmoid(x):
    return minimum(x, tl.full((), 0, x.dtype)) - libdevice.log1p(libdevice.exp(-tl.abs(x)))


@triton.jit
def log_sigmoid_backward(grad, x, buffer):  # (of exp(-|x|))
    part = div(buffer, 1 + buffer)
    return tl.where(x < 0, 1 - part, part) * grad


@triton.jit
def shrink(a, b, bound):
    return tl.where((b >= -bound) & (b <= bound), 0, a)


@triton.jit
def softshrink(x, bound):
    return tl.where(x > bound, x - bound, tl.where(x < -bound, x + bound, x * 0))


@triton.jit
def smooth_l1(a, b, beta):
    z = tl.abs(a - b)
    return tl.where(z >= beta, z - 0.5 * beta, div(0.5 * z * z, beta))


@triton.jit
def huber(a, b, delta):
    z = tl.abs(a - b)
    return tl.where(z >= delta, delta * (z - 0.5 * delta), 0.5 * z * z)


@triton.jit
def bounded_slope(x, bound, inside, at_bound):
    return tl.where(x >= bound, at_bound, tl.where(x <= -bound, at_bound * -1, inside))


@triton.jit
def smooth_l1_backward(grad, x, beta, norm):
    return bounded_slope(x, beta, div(norm * x * grad, beta), norm * grad)


@triton.jit
def huber_backward(grad, x, delta, norm):
    return bounded_slope(x, delta, norm * x * grad, norm * grad * delta)


@triton.jit
def nan_to_num(x, nan, most, least):
    bounded = tl.where(x == float("inf"), most, tl.where(x == -float("inf"), least, x))
    return tl.where(x != x, nan, bounded)


@triton.jit
def fmax(a, b):
    return tl.where((a >= b) | (b != b), a, b)


@triton.jit
def fmin(a, b):
    return tl.where((a <= b) | (b != b), a, b)


@triton.jit
def fmod(a, b):
    return libdevice.fmod(a, b) if a.dtype.is_floating() else a % b


@triton.jit
def remainder(a, b):  # (with the sign of b)
    rest = fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def floor_divide(a, b):
    rest = fmod(a, b)
    apart = (rest != 0) & ((b < 0) != (rest < 0))
    if a.dtype.is_floating():  # (by way of the remainder: a quotient may be rounded up)
        whole, ratio = div(a - rest, b), div(a, b)
        whole = tl.where(apart, whole - 1, whole)
        down = libdevice.floor(whole)
        down = tl.where(whole - down > 0.5, down + 1, down)
        down = tl.where(whole == 0, libdevice.copysign(whole, ratio), down)
        return tl.where(b == 0, ratio, down)
    else:
        quotient = a // b
        return tl.where(apart, quotient - 1, quotient)


@triton.jit
def shift_left(a, b):
    within = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(within, a << tl.where(within, b, 0), 0)


@triton.jit
def shift_right(a, b):  # (past the last place only the sign is left)
    most = a.dtype.primitive_bitwidth - 1
    within = (b >= 0) & (b <= most)
    left = (a >> tl.where(within, b, most)).to(a.dtype)
    return tl.where(within | (a < 0), left, 0)


@triton.jit
def power(base, exponent):  # (of integers; a negative exponent leaves what is left of 1 / power)
    result, square = tl.full((), 1, base.dtype), base
    bits: tl.constexpr = base.dtype.primitive_bitwidth
    for bit in tl.static_range(bits):
        result = tl.where(((exponent >> bit) & 1) != 0, result * square, result).to(base.dtype)
        square = (square * square).to(base.dtype)
    sign = tl.where((exponent & 1) != 0, base, base * base)
    unit = (base == 1) | (base + 1 == 0)
    return tl.where(exponent >= 0, result, tl.where(unit, sign, 0)).to(base.dtype)


@triton.jit
def equal_infinities(a, b):  # (their difference says nothing)
    return (a == b) & (tl.abs(a) == float("inf"))


@triton.jit
def logaddexp(a, b):
    added = maximum(a, b) + libdevice.log1p(libdevice.exp(-tl.abs(a - b)))
    return tl.where(equal_infinities(a, b), a, added)


@triton.jit
def logaddexp2(a, b):
    per_log2 = tl.full((), 1.4426950408889634, a.dtype)
    added = maximum(a, b) + libdevice.log1p(libdevice.exp2(-tl.abs(a - b))) * per_log2
    return tl.where(equal_infinities(a, b), a, added)


@triton.jit
def xlogy(x, y):
    return tl.where(y != y, y, tl.where(x == 0, 0, x * libdevice.log(y)))


@triton.jit
def xlog1py(x, y):
    return tl.where(y != y, y, tl.where(x == 0, 0, x * libdevice.log1p(y)))
