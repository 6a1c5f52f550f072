"""Backward passes: torch is told which of them start from lazy tensors.

Gradients that autograd makes from zeros() have no tensor argument that would make them lazy; see
csrc/record/factories.h.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.autograd.graph

from lazyeng import _C, errors


def install() -> None:
    """Puts the telling function in place of torch's own. Once per process, at import."""
    original = torch.autograd.graph._engine_run_backward

    @functools.wraps(original)
    def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        before = _C.set_backward_from_lazy(any(_C.is_lazy(output) for output in t_outputs))
        try:
            return original(t_outputs, *args, **kwargs)
        except BaseException as error:
            errors.hide_in_deferred(error)  # (it may come from a thread of autograd's own)
            raise
        finally:
            _C.set_backward_from_lazy(before)

    torch.autograd.graph._engine_run_backward = run_backward
    setattr(torch.autograd, "_engine_run_backward", run_backward)  # noqa: B010 (imported there)
