"""Settings of the process are changed when everything recorded before has run.

A kernel reads them when it runs, which may be later than its call: the default dtype decides what a
mean of integers returns, `torch.use_deterministic_algorithms` what is refused, and what new memory
holds. Kernels of custom ops call other ops, so that all that decides a call matters to them: which
attention `sdpa_kernel` allows, whether autograd looks for anomalies. (Those of the thread go with
each op: csrc/run/caller/thread_settings.h.)
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C, errors
from lazyeng.torch_patches._patching import as_builtin_of

# Each with the function that tells what is set, if there is one.
_SETTERS = {
    "_set_default_dtype": torch.get_default_dtype,
    "_set_default_tensor_type": None,
    "_set_deterministic_fill_uninitialized_memory": "_get_deterministic_fill_uninitialized_memory",
    "_set_sdp_use_flash": "_get_flash_sdp_enabled",
    "_set_sdp_use_math": "_get_math_sdp_enabled",
    "_set_sdp_use_mem_efficient": "_get_mem_efficient_sdp_enabled",
    "_set_sdp_use_cudnn": "_get_cudnn_sdp_enabled",
    "_set_sdp_use_overrideable": "_get_overrideable_sdp_enabled",
    "_set_sdp_use_fa3": "_get_fa3_sdp_enabled",
    "_set_sdp_use_fa4": "_get_fa4_sdp_enabled",
    "_set_sdp_priority_order": "_get_sdp_priority_order",
    "_set_math_sdp_allow_fp16_bf16_reduction": "_get_math_sdp_allow_fp16_bf16_reduction",
    "_set_rocm_fa_preferred_backend": "_get_rocm_fa_preferred_backend",
    "_set_check_sparse_tensor_invariants": "_check_sparse_tensor_invariants",
    "_set_warnAlways": "_get_warnAlways",
    "set_anomaly_enabled": lambda: (
        torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    ),
}  # fmt: skip
# What has been found out about kernels no longer holds after these.
_CHOOSE_KERNELS = (
    "_set_deterministic_algorithms", "_set_float32_matmul_precision",
    "_set_fp32_precision_setter", "_set_blas_preferred_backend", "_set_linalg_preferred_backend",
    "_set_cpu_allow_fp16_reduced_precision_reduction", "_set_cublas_allow_tf32",
    "_set_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_set_cublas_allow_bf16_reduced_precision_reduction", "_set_cudnn_allow_tf32",
    "_set_cudnn_benchmark", "_set_cudnn_depthwise_kernel", "_set_cudnn_deterministic",
    "_set_cudnn_enabled", "_set_miopen_immediate", "_set_mkldnn_deterministic",
    "_set_mkldnn_enabled", "_set_nnpack_enabled", "_set_onednn_allow_tf32", "_set_qengine",
    "_set_sm_carveout_experimental", "_set_cublaslt_prefer_grouped_gemm",
    "_set_native_aot_enabled", "_set_native_aot_unconditional_masked",
)  # fmt: skip

# Those of them that C++ cannot read in each version of torch (csrc/fuse/graphs/observation.cpp).
_UNREAD = (
    "_set_blas_preferred_backend", "_set_linalg_preferred_backend", "_set_cudnn_depthwise_kernel",
    "_set_sm_carveout_experimental", "_set_cublaslt_prefer_grouped_gemm", "_set_native_aot_enabled",
    "_set_native_aot_unconditional_masked",
)  # fmt: skip

_Getter = Callable[[], Any]


def install() -> None:
    """Puts waiting setters in place of torch's. Once per process, at import."""
    _keep_warn_always()
    for name, getter in _SETTERS.items():
        _install(name, getattr(torch._C, getter, None) if isinstance(getter, str) else getter)
    for name in _CHOOSE_KERNELS:
        _install(name, getattr(torch._C, name.replace("_set_", "_get_"), None), True)
    _install_in_properties()


def _install_in_properties() -> None:
    """`torch.backends.mkldnn.enabled = False` calls what torch has found as it was imported."""
    for name, module in [*sys.modules.items()]:
        if not name.startswith("torch.backends."):
            continue
        for prop in vars(type(module)).values():
            if isinstance(prop, torch.backends.ContextProp):
                set_name = getattr(prop.setter, "__name__", "")
                if getattr(getattr(torch._C, set_name, None), "__wrapped__", None) is prop.setter:
                    prop.setter = getattr(torch._C, set_name)


def _install(name: str, now: _Getter | None, chooses_kernels: bool = False) -> None:
    original = getattr(torch._C, name, None)
    if original is None:
        return
    change = as_builtin_of(original, _waiting(original, now, chooses_kernels))
    setattr(torch._C, name, change)
    if not name.startswith("_"):  # torch has these of its own
        setattr(torch, name, change)


def _keep_warn_always() -> None:
    """lazyeng turns the switch itself on where it ignores what kernels warn of, and back later."""
    original = torch._C._set_warnAlways

    @functools.wraps(original)
    def set_warn_always(always: Any, /) -> None:
        if not isinstance(always, bool):
            original(always)  # refuses it
        _C.set_warn_always(always)

    torch._C._set_warnAlways = set_warn_always
    torch._C._get_warnAlways = _C.warns_always


def _waiting(
    original: Callable[..., Any], now: _Getter | None, chooses_kernels: bool
) -> Callable[..., Any]:
    @functools.wraps(original)
    @errors.boundary
    def change(*args: Any, **kwargs: Any) -> Any:
        # (Context managers set what is set already.)
        wanted = args[0] if len(args) == 1 else args
        if now is not None and not kwargs and wanted == now():
            return original(*args, **kwargs)
        _C.wait_for_all()
        result = original(*args, **kwargs)
        if chooses_kernels:
            _C.kernel_settings_changed(original.__name__ not in _UNREAD)
        return result

    return change
