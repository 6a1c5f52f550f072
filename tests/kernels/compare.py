"""Comparing a kernel with eager PyTorch, and compiling it without a device."""

import contextlib

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ARCHES = [80, 90]
# 16-bit results of the same float32 arithmetic may round to neighbours.
TOLERANCES = {torch.bfloat16: (1.6e-2, 1e-2), torch.float16: (2e-3, 2e-3)}


def assert_same(actual, expected, tolerances=None):
    """Values within (rtol, atol), by default the dtype's, and dtype, shape and device; for each of
    several."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, tolerances)
    elif expected is None:
        assert actual is None
    else:
        rtol, atol = tolerances or TOLERANCES.get(expected.dtype, (None, None))
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def with_gradients(function, *tensors):
    """(result, gradients) of function at copies of the tensors, for one fixed upstream gradient."""
    leaves = [t.detach().clone().requires_grad_() if t is not None else None for t in tensors]
    result = function(*leaves)
    generator = torch.Generator(result.device).manual_seed(1)
    upstream = torch.randn(
        result.shape, generator=generator, device=result.device, dtype=torch.float32
    ).to(result.dtype)
    needed = [leaf for leaf in leaves if leaf is not None]
    return result.detach(), torch.autograd.grad(result, needed, upstream)


def assert_same_as_eager(kernel, eager, *tensors, tolerances=None):
    """Results and gradients of both."""
    ours, ours_gradients = with_gradients(kernel, *tensors)
    theirs, their_gradients = with_gradients(eager, *tensors)
    assert_same(ours, theirs, tolerances)
    assert_same(ours_gradients, their_gradients, tolerances)


def assert_same_error(kernel, eager, text):
    """Both raise the same type; ours has `text` in its message."""
    with pytest.raises(Exception) as theirs:
        eager()
    with pytest.raises(type(theirs.value)) as ours:
        kernel()
    assert type(ours.value) is type(theirs.value), repr(ours.value)
    assert text in str(ours.value), str(ours.value)
    assert str(ours.value).startswith("["), str(ours.value)


def kernels_of(module):
    """Names of the kernels in a file of the package."""
    return {name for name in vars(module) if name.endswith("_kernel")}


@contextlib.contextmanager
def compiling(arch, tmp_path, monkeypatch):
    """Within it a launch compiles the kernel, as for these arguments, for a GPU of `arch`, and runs
    nothing. Yields the set of names of kernels of which a cubin came out."""
    import triton
    from lazyeng.triton_kernels import _launch
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    target = GPUTarget("cuda", arch, 32)
    backend = make_backend(target)
    compiled = set()

    def compile_instead(self, *args, grid, warmup, **kwargs):
        kwargs.setdefault("debug", self.debug)
        bind = create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, options = bind(*args, **kwargs)
        options, *source = self._pack_args(backend, kwargs, bound, specialization, options)
        kernel = triton.compile(ASTSource(self, *source), target, options.__dict__)
        assert f".target sm_{arch}" in kernel.asm["ptx"]
        assert kernel.asm["cubin"]
        compiled.add(self.__name__)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_launch, "runs_on", lambda device: True)
    monkeypatch.setattr(JITFunction, "run", compile_instead)
    yield compiled
