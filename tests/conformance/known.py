"""Entries that are not compared in full, or not equal, each with its reason.

docs/conformance.md is generated from these tables: `python -m tests.conformance --docs`.
"""

import os

# Where samples are made. "cuda": on a GPU, against eager on the same one.
DEVICE = os.environ.get("LAZYENG_TEST_DEVICE", "cpu")

# "suite:name" -> reason. An entry here may differ from eager without failing the run; the full run
# reports entries that turned out equal, so that the table does not outlive its reasons.

_PRINTS = (
    "eager refuses this call too; its message prints the arguments (`argumentToIValue` of "
    "torch/csrc/jit/python/pybind_utils.h takes their repr), and a LazyTensor prints as one"
)

KNOWN: dict[str, str] = {
    "out:_batch_norm_with_update": _PRINTS,
    "out_forms:_batch_norm_with_update": _PRINTS,
}

if DEVICE == "cuda":
    _SEED = (
        "without dropout the seed and offset that it returns are uninitialised memory, in eager too"
    )
    KNOWN |= {
        "op:torch.ops.aten._flash_attention_forward": _SEED,
        "op:torch.ops.aten._efficient_attention_forward": _SEED,
        "op:_softmax_backward_data": (
            "CUDA's kernel, and nothing before it, refuses these dtypes: the error is raised where the "
            "result is read"
        ),
        "optim:ASGD": (
            "outside a block its numbers are plain tensors on the device, which a recorded op reads "
            "and the optimizer then changes: reported, as errors.md has it"
        ),
    }

# The same for LAZYENG_FUSION=on, in one dtype: groups round otherwise than eager there.
_ROUNDED_ONCE = (
    "eager (`rsqrt_kernel` of ATen's cpu/UnaryOpsKernel.cpp) rounds twice, 1 / sqrt(x), where elements "
    "fill no vector of the CPU (20 elements here), and once where they do (`Vectorized::rsqrt` in "
    "float32), as groups do everywhere; its gradient takes the cube of that difference"
)

_CANCELS = (
    "a gradient that is the difference of numbers which nearly cancel out, or a product of several, "
    "each rounded to bfloat16: eager's and the group's are some last places of these apart"
)
# tests/test_conformance.py looks that it is so.
_NO_FURTHER = ", the group's no further from float64. Eager's steps: "
# The formulas in PyTorch's source that gradients of these go by.
CANCELS = {
    "linalg.vector_norm": "`norm_backward` of torch/csrc/autograd/FunctionsManual.cpp",
    "nn.functional.cross_entropy": (
        "`grad - exp(output) * sum` in `_log_softmax_backward_data` "
        "(ATen's native/cpu/SoftMaxKernel.cpp)"
    ),
    "nn.functional.normalize": (
        "the quotient's gradient and `norm_backward` (torch/csrc/autograd/FunctionsManual.cpp), summed up"
    ),
    "special.xlog1py": "its line of tools/autograd/derivatives.yaml, an op for each operator there",
    "xlogy": "its line of tools/autograd/derivatives.yaml, an op for each operator there",
}

WITH_FUSION_ON: dict[tuple[str, str], str] = {
    ("op:rsqrt", "bfloat16"): _ROUNDED_ONCE,
    ("fused:rsqrt", "bfloat16"): _ROUNDED_ONCE,
    ("inplace:rsqrt", "bfloat16"): _ROUNDED_ONCE,
    ("inplace_forms:rsqrt", "bfloat16"): _ROUNDED_ONCE,
    **{
        (f"{suite}:{name}", "bfloat16"): _CANCELS + _NO_FURTHER + formula
        for name, formula in CANCELS.items()
        for suite in ("op", "fused")
    },
    ("module:nn.KLDivLoss", "bfloat16"): (
        f"{_CANCELS}. Eager's steps: `xlogy(target, target) - target * input` (`kl_div` of ATen's "
        "native/Loss.cpp)"
    ),
    ("optim:Adafactor", "bfloat16"): (
        "three steps (`_single_tensor_adafactor` of torch/optim/_adafactor.py) that amplify "
        "roundings: eager differs five times as much from the same steps in float64, and six times "
        "as much from itself with one parameter changed in its last place"
    ),
}

# Their results are uninitialised memory, in eager too: dtype, shape and strides are compared, the
# values are not.
METADATA_ONLY: dict[str, str] = {
    "op:empty": "uninitialised memory",
    "op:empty_like": "uninitialised memory",
    "op:empty_permuted": "uninitialised memory",
    "op:empty_strided": "uninitialised memory",
    "op:new_empty": "uninitialised memory",
    "op:new_empty_strided": "uninitialised memory",
}

# Messages of errors that depend on values: these are raised where the result is read. What depends
# on arguments, shapes and dtypes has to be raised at the call.
DEPENDS_ON_VALUES: tuple[str, ...] = (
    # gather, scatter, ...: ATen's native/cpu/ScatterGatherKernel.cpp
    r"index -?\d+ is out of bounds for dimension",
    # an embedding: ATen's native/TensorAdvancedIndexing.cpp
    r"index out of range in self",
    # ATen's native/Distributions.cpp and native/cpu/MultinomialKernel.cpp
    r"probability tensor contains|invalid multinomial distribution",
    # masked_fill by a tensor, whose value is asked for: c10/util/TypeCast.h
    r"value cannot be converted to type \w+ without overflow",
)

# Entries with nothing to run: PyTorch itself has no CPU kernel or no sample for them.
NOT_APPLICABLE_REASON = "no dtype is supported on the CPU, or PyTorch has no sample for it"

# Why device-generic tests of PyTorch fail for "lazyeng" (generic.py): a pattern, searched in
# "file:Class.test: exception: first line @ file:line", and what it is due to.
_NAME = (
    "compares a device with the name that it asked for: lazy tensors report the real device, and "
    "results may be plain tensors of it"
)
_VALUES = "the error depends on values, so it is raised at the read, or warned of"

GENERIC: dict[str, str] = {
    r"device\(type='cpu'\) != device\(type='lazyeng'": _NAME,
    r"device\(type='lazyeng', index=0\) != device\(type='cpu'": _NAME,
    r"String comparison failed: 'lazyeng(:0)?' != 'cpu'": _NAME,
    r"String comparison failed: 'cpu' != 'lazyeng(:0)?'": _NAME,
    r"device type lazyeng does not match device type of out parameter \(cpu\)": "`out=` beside "
    '`device="lazyeng"`: torch\'s argument parser compares the two names',
    r"can't alias tensor from device 'cpu' to 'lazyeng|test_alias_from_dlpack": "`torch.asarray("
    '..., device="lazyeng")` compares the names in C++, and copies or refuses',
    r"test_block_diag_lazyeng|_cross_devices_|_different_devices_|test_grad_assignment_lazyeng"
    r"|test_nonzero_lazyeng_": (
        "expects an error for tensors of two devices; lazy and plain tensors of one real device go "
        "together"
    ),
    r"test_advancedindex|test_trivial_fancy_out_of_bounds|test_normal_std_error"
    r"|test_masked_scatter_\w+: AssertionError: RuntimeError not raised": _VALUES,
    r"test_warn_invalid_degrees_of_freedom|test_nondeterministic_alert_\w+: AssertionError: UserWarning"
    r"|test_bucketization|test_complex_half_experimental_warning": (
        "expects a warning of a kernel at the call: it comes when the kernel runs, at the next wait"
    ),
    r"test_lazy_clone|cow_materialize": (
        "asks a tensor for torch's copy-on-write storage, which a lazy tensor does not show"
    ),
    r"a storage cannot be made on the device": (
        "makes a storage without a tensor on the device, which has no memory of its own"
    ),
    r"test_deepcopy_\w+: RuntimeError: lazyeng: a recorded write to this tensor is not complete": (
        "reads the memory of a storage that it was given before a write was recorded: an error that "
        "says so (docs/syncs.md), in place of stale memory"
    ),
    r"test_LSTM_grad_and_gradgrad_lazyeng|test_batchnorm_grad_lazyeng|test_mv_grad_stride_0_lazyeng": (
        "writes a plain tensor through `.data` (whose writes have no version) while recorded calls "
        "have yet to read it: docs/wrap.md, plain tensors that change; equal in mode sync"
    ),
    r"test_fmod_remainder_by_zero_integral_\w+: RuntimeError: ZeroDivisionError"
    r"|test_upsamplingBiMode2d_nonsupported_dtypes\w+_uint8|not implemented for 'ComplexHalf'": (
        "expects what other devices do of every one but cpu; the real device is cpu, and does as that"
    ),
    r"test_as_tensor_cpu|test_shared_buffer_cpu": (
        "numpy looks at memory that a recorded write of the block has yet to reach: complete when the "
        "tensor is read or the block ends"
    ),
    r"test_float_power_exceptions": "looks for tensors by `type(x) == torch.Tensor`",
    r"test_pickle_gradscaler_lazyeng|test_grad_scaler_deprecated_warning": _NAME,
}
