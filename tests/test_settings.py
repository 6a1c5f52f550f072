"""Settings of the process: kernels find those of the call, whenever they run."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lazyeng import lazy, synchronize, unwrap, wrap
from lazyeng.torch_patches import settings

# Setters that nothing has to wait for. (Of all versions of torch.)
_OF_THE_THREAD = {  # or each op has them, or they are asked for before it is recorded
    "_set_dispatch_mode", "_set_fwd_grad_enabled", "_set_grad_enabled",
    "_set_meta_in_tls_dispatch_include", "_set_multithreading_enabled",
    "_set_only_lift_cpu_tensors", "_set_skip_next_torch_function", "_set_thread_name",
    "_set_torch_function_state", "_set_tracing_state", "_set_value_trace",
    "_set_view_replay_enabled",
    "set_autocast_cache_enabled", "set_autocast_cpu_dtype", "set_autocast_cpu_enabled",
    "set_autocast_dtype", "set_autocast_enabled", "set_autocast_gpu_dtype",
    "set_autocast_ipu_dtype", "set_autocast_ipu_enabled", "set_autocast_xla_dtype",
    "set_autocast_xla_enabled", "set_flush_denormal", "set_num_threads",
}  # fmt: skip
_OF_TENSORS = {
    "_set_conj", "_set_fake_constant", "_set_neg", "_set_storage_access_error_msg",
    "_set_storage_data_ptr_access_error_msg", "_set_tensor_metadata",
    "_set_throw_on_mutable_data_ptr", "_set_warn_deprecated_on_mutable_data_ptr",
}  # fmt: skip
_READ_AT_THE_CALL = {  # by autograd, DTensor and what parses arguments
    "_set_autograd_fallback_mode", "_set_backcompat_broadcast_warn",
    "_set_backcompat_keepdim_warn", "_set_dtensor_allow_implicit_replication",
    "_set_grad_layout_enforcement_enabled", "_set_override_stale_capture_stream",
    "_set_warn_on_accumulate_grad_stream_mismatch",
}  # fmt: skip
_OF_NO_KERNEL = {  # compilers, serialization, data loaders, what is set before the first op
    "_set_cached_tensors_enabled", "_set_default_mobile_cpu_allocator", "_set_generator_metaclass",
    "_set_graph_exec_group", "_set_graph_executor_optimize",
    "_set_print_stack_traces_on_fatal_signal", "_set_should_use_format_with_string_table",
    "_set_worker_pids", "_set_worker_signal_handlers", "set_num_interop_threads", "set_vital",
}  # fmt: skip
_HARMLESS = _OF_THE_THREAD | _OF_TENSORS | _READ_AT_THE_CALL | _OF_NO_KERNEL


def test_setters_of_torch_wait_or_are_known_to_be_harmless():
    """A setter that is new in torch stands in no list: look at what reads it."""
    setters = {name for name in dir(torch._C) if name.startswith(("_set_", "set_"))}
    waiting = {*settings._SETTERS, *settings._CHOOSE_KERNELS}
    assert not waiting & _HARMLESS
    assert setters <= waiting | _HARMLESS
    for name in setters & waiting:
        setter = getattr(torch._C, name)
        assert hasattr(setter, "__wrapped__"), name
        assert getattr(torch, name, setter) is setter


def kernel_that_sees(see: Callable[[], Any], seen: list[Any]) -> Callable[[], None]:
    """Records a call of a custom op, that adds to what was seen and runs when all else has run."""

    @torch.library.custom_op(f"lazyeng_test::see_{uuid.uuid4().hex[:8]}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        seen.append(see())
        return x.clone()

    op.register_fake(torch.empty_like)
    return lambda: (op(wrap(torch.ones(2))), None)[1]


def attention() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()


# For each: what a kernel may ask, and what sets it to True or to False (so that it is seen).
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[bool], Any]]] = {
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "math": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "efficient": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "reduced": (
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "order": (
        lambda: torch._C._get_sdp_priority_order()[0] == 0,
        lambda on: torch._C._set_sdp_priority_order([0, 1, 2, 3, 4] if on else [1, 2, 0, 3, 4]),
    ),
    "warnings": (torch.is_warn_always_enabled, torch.set_warn_always),
    "sparse": (
        torch.sparse.check_sparse_tensor_invariants.is_enabled,
        torch._C._set_check_sparse_tensor_invariants,
    ),
    "anomalies": (torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on)),
    "anomalies, torch's": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_kernel_of_a_custom_op_finds_the_setting_of_its_call(setting: str):
    get, change = SETTINGS[setting]
    before, seen = get(), []
    record = kernel_that_sees(get, seen)
    try:
        with lazy("deferred"):
            for on in (True, False, False, True):
                change(on)
                record()
    finally:
        change(before)
    synchronize()
    assert seen == [True, False, False, True]


def test_attention_in_a_kernel_is_that_of_the_block_around_the_call():
    seen: list[Any] = []
    record = kernel_that_sees(attention, seen)
    before = attention()
    with lazy("deferred"):
        record()
        with sdpa_kernel(SDPBackend.MATH):
            record()
            assert attention() == (False, False, False)
        record()
    synchronize()
    assert seen == [before, (False, False, False), before]


def test_attention_in_a_kernel_has_the_bits_of_the_block_around_the_call(mode):
    @torch.library.custom_op(f"lazyeng_test::attend_{uuid.uuid4().hex[:8]}", mutates_args=())
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    attend.register_fake(lambda q, k, v: torch.empty_like(q))
    q, k, v = torch.randn(3, 2, 4, 128, 32).unbind(0)
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(q, k, v)
    with lazy(mode):
        with sdpa_kernel(SDPBackend.MATH):
            found = attend(q + 0, k, v)
    assert torch.equal(found, expected)


# --- warnings, which lazyeng ignores where it looks ahead


def test_warn_always_is_the_programs_while_warnings_are_ignored():
    """(They are while a fake kernel runs.)"""
    seen = []

    @torch.library.custom_op(f"lazyeng_test::warn_{uuid.uuid4().hex[:8]}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def fake(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_warn_always_enabled())
        thread = threading.Thread(target=torch.set_warn_always, args=(True,))
        thread.start()
        thread.join()
        seen.append(torch.is_warn_always_enabled())
        return torch.empty_like(x)

    op.register_fake(fake)
    assert not torch.is_warn_always_enabled()
    try:
        with lazy("deferred"):
            op(torch.ones(3))
        assert seen == [False, True]
        assert torch.is_warn_always_enabled()
    finally:
        torch.set_warn_always(False)
    assert not torch.is_warn_always_enabled()


def test_warn_always_takes_a_bool():
    with pytest.raises((TypeError, RuntimeError), match="expects a bool"):
        torch.set_warn_always(1)  # pyright: ignore[reportArgumentType]
    assert not torch.is_warn_always_enabled()


# --- settings of the thread


def threads_of_a_new_thread() -> int:
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_kernels_leave_alone_how_many_threads_new_threads_have():
    """That is what any thread has set last; engine threads take over what some thread had."""
    seen: list[int] = []
    record = kernel_that_sees(torch.get_num_threads, seen)

    def other_thread() -> None:
        torch.set_num_threads(1)
        record()

    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        record()
        synchronize()
        assert seen == [1, 3] and threads_of_a_new_thread() == 1
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("first", [True, False])
def test_helpers_of_a_kernel_flush_denormals_as_its_caller(first: bool):
    tiny = torch.full((1 << 18,), 1e-39)
    seen: list[float] = []
    record = kernel_that_sees(lambda: ((tiny + tiny) != 0).float().mean().item(), seen)
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for flushes in (first, not first, first):
            if not torch.set_flush_denormal(flushes):
                pytest.skip("this processor cannot flush denormals")
            for _ in range(2):
                record()
        torch.set_num_threads(1)  # (the second thread of the team takes no part)
        torch.set_flush_denormal(not first)
        record()
        torch.set_num_threads(2)
        record()
        synchronize()
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(usual)
    kept = float(not first)
    assert seen == [kept, kept, 1 - kept, 1 - kept, kept, kept, 1 - kept, 1 - kept]


def gradients(x, w, b):
    x.grad = b.grad = None
    F.conv2d(x, w, b).sum().backward()
    return x.grad, b.grad


def set_attribute(enabled: bool) -> None:
    with torch.backends.__allow_nonbracketed_mutation():  # (torch's own tests forbid it)
        torch.backends.mkldnn.enabled = enabled


@pytest.mark.parametrize("turn", [torch.backends.mkldnn.set_flags, set_attribute])
def test_kernels_of_another_library_from_the_next_call_on(turn):
    """What was recorded before has the old ones; strides, and what is left out, may be others."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 7, 7).to(memory_format=torch.channels_last).requires_grad_()
    w, b = torch.randn(32, 16, 3, 3), torch.randn(32, requires_grad=True)
    try:
        expected = []
        for enabled in (True, False):
            turn(enabled)
            expected.append([grad.clone() for grad in gradients(x, w, b)])
        with lazy("deferred"):
            for i in (0, 1, 0, 1):
                turn(i == 0)
                for found, wanted in zip(gradients(x, w, b), expected[i], strict=True):
                    recorded = found * 1
                    turn(i != 0)  # (before it has run)
                    assert torch.equal(unwrap(recorded), wanted)
                    assert found.stride() == wanted.stride()
                    turn(i == 0)
    finally:
        turn(True)
