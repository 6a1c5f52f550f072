"""Runs test functions in a process where TRITON_INTERPRET is set. See conftest.py."""

import contextlib
import importlib
import os
import traceback
import warnings


def serve(connection):
    """Receives (module, function, arguments), sends (outcome, text); ends with the other end."""
    os.environ["TRITON_INTERPRET"] = "1"  # before anything here imports Triton
    import torch

    # inf - inf and the like are part of the tests; a GPU says nothing of them.
    warnings.filterwarnings("ignore", module="triton.runtime.interpreter")
    with contextlib.suppress(ImportError):
        let_tensors_be_indices()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):
        while True:
            module, function, arguments = connection.recv()
            torch.manual_seed(0)
            connection.send(outcome(module, function, arguments))


def let_tensors_be_indices():
    """`range(0, n, BLOCK_SIZE)` with Triton 3.6 and NumPy 2.4, which Triton learned later:
    https://github.com/triton-lang/triton/issues/9171"""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch_with_index


def outcome(module, function, arguments):
    import pytest

    try:
        getattr(importlib.import_module(module), function)(**arguments)
    except pytest.skip.Exception as skipped:
        return "skipped", str(skipped)
    except BaseException as error:
        # Without the frame above; the message of assert_close says what differs.
        shown = error.with_traceback(error.__traceback__.tb_next)
        return "failed", "".join(traceback.format_exception(shown))
    return "passed", ""
