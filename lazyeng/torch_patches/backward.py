"""Backward passes: torch is told which of them start from lazy tensors.

Gradients that autograd makes from zeros() have no tensor argument that would make them lazy; see
csrc/record/special/factories.h. And those on a GPU run in the thread that asked for them, which
would wait for it: autograd has a thread for each GPU, so that launches on several overlap, and
recording launches nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.autograd.graph

from lazyeng import _C, errors
from lazyeng.wrapping import wrap


def install() -> None:
    """Puts the telling function in place of torch's own. Once per process, at import."""
    original = torch.autograd.graph._engine_run_backward

    @functools.wraps(original)
    def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        lazy = [output for output in t_outputs if _C.is_lazy(output)]
        before = _C.set_backward_from_lazy(bool(lazy))
        threads = torch._C._is_multithreading_enabled()
        if any(output.is_cuda for output in lazy):
            torch._C._set_multithreading_enabled(False)
        try:
            grads = original(t_outputs, *args, **kwargs)
        except BaseException as error:
            errors.hide_in_deferred(error)  # (it may come from a thread of autograd's own)
            raise
        finally:
            torch._C._set_multithreading_enabled(threads)
            _C.set_backward_from_lazy(before)
        return _as_inputs(grads, args[3]) if isinstance(grads, tuple) and len(args) > 3 else grads

    torch.autograd.graph._engine_run_backward = run_backward
    setattr(torch.autograd, "_engine_run_backward", run_backward)  # noqa: B010 (imported there)


def _as_inputs(grads: tuple[Any, ...], inputs: Any) -> tuple[Any, ...]:
    """What a backward function has made of plain tensors alone becomes lazy as its input is."""
    if len(inputs) != len(grads):
        return grads
    return tuple(
        _as_input(grad, x) if type(grad) is torch.Tensor else grad
        for grad, x in zip(grads, inputs, strict=True)
    )


def _as_input(grad: torch.Tensor, x: Any) -> torch.Tensor:
    _, blocks = _C.thread_mode()
    if grad._is_zerotensor():
        return wrap(grad.clone()) if blocks or _C.is_lazy(x) else grad
    if not _C.is_lazy(x) or (grad.requires_grad and grad.is_leaf):  # (which was given as it is)
        return grad
    return wrap(grad)
