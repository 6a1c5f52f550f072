"""As for the hand-written kernels: bodies of tests run in Triton's interpreter, in a process of its
own, or on a GPU if there is one; those marked `plain_process` stay here."""

from tests.kernels.conftest import child, device, pytest_configure, pytest_pyfunc_call

__all__ = ["child", "device", "pytest_configure", "pytest_pyfunc_call"]
