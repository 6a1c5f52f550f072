"""One thread for each kernel: networks this small gain nothing from more, and wait for them."""

import pytest

from tests.support.threads import threads_of_torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    with threads_of_torch(1):
        yield
