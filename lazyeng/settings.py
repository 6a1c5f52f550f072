"""Settings of the process are changed when everything recorded before has run.

A kernel reads them when it runs, which may be later than its call: the default dtype decides what a
mean of integers returns, `torch.use_deterministic_algorithms` what is refused, and what new memory
holds. (Those of the thread go with each op: csrc/run/thread_settings.h.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lazyeng import _C, errors

_SETTERS = (
    "_set_default_dtype", "_set_default_tensor_type",
    "_set_deterministic_fill_uninitialized_memory",
)  # fmt: skip
# What has been found out about kernels no longer holds after these.
_CHOOSE_KERNELS = (
    "_set_deterministic_algorithms", "_set_float32_matmul_precision",
    "_set_fp32_precision_setter", "_set_blas_preferred_backend", "_set_linalg_preferred_backend",
    "_set_cpu_allow_fp16_reduced_precision_reduction", "_set_cublas_allow_tf32",
    "_set_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_set_cublas_allow_bf16_reduced_precision_reduction", "_set_cudnn_allow_tf32",
    "_set_cudnn_benchmark", "_set_cudnn_deterministic", "_set_cudnn_enabled",
    "_set_mkldnn_deterministic", "_set_mkldnn_enabled", "_set_nnpack_enabled",
    "_set_onednn_allow_tf32", "_set_qengine",
)  # fmt: skip


def install() -> None:
    """Puts waiting setters in place of torch's. Once per process, at import."""
    for name in _SETTERS + _CHOOSE_KERNELS:
        if original := getattr(torch._C, name, None):
            setattr(torch._C, name, _waiting(original, _getter(name), name in _CHOOSE_KERNELS))


def _getter(setter: str) -> Callable[[], Any] | None:
    if setter == "_set_default_dtype":
        return torch.get_default_dtype
    return getattr(torch._C, setter.replace("_set_", "_get_"), None)


def _waiting(
    original: Callable[..., Any], now: Callable[[], Any] | None, chooses_kernels: bool
) -> Callable[..., Any]:
    @functools.wraps(original)
    @errors.boundary
    def change(*args: Any, **kwargs: Any) -> Any:
        # (Context managers set what is set already.)
        unchanged = now is not None and len(args) == 1 and not kwargs and args[0] == now()
        if unchanged:
            return original(*args, **kwargs)
        _C.wait_for_all()
        result = original(*args, **kwargs)
        if chooses_kernels:
            _C.kernel_settings_changed()
        return result

    return change
