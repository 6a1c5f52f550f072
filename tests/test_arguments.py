"""Arguments of lazyeng's own functions: what they take, and refuse at the call."""

import numpy as np
import pytest
import torch

import lazyeng

TAKE_INTS = {
    "set_num_workers": lazyeng.set_num_workers,
    "Lagged": lazyeng.Lagged,
    "prefetch": lambda n: next(lazyeng.prefetch([7], n)),
    "DataLoader": lambda n: next(iter(lazyeng.DataLoader([7], prefetch=n))),
}


@pytest.fixture
def same_workers():
    yield
    lazyeng.set_num_workers(2)


@pytest.mark.parametrize("name", TAKE_INTS)
def test_integers(name, same_workers):
    """Those of numpy too, as torch takes them."""
    for n in (1, np.int64(1), np.uint8(1)):
        TAKE_INTS[name](n)
    for wrong in (True, 1.0, "1", None, np.float32(1)):
        with pytest.raises(TypeError, match=f"an int, got {type(wrong).__name__}"):
            TAKE_INTS[name](wrong)


@pytest.mark.parametrize(
    "decorate", [lazyeng.lazy(), lazyeng.allow_sync("why"), lazyeng.profile("never.json")]
)
@pytest.mark.parametrize("wrong", [3, "f", int, None])
def test_what_is_no_function_is_not_decorated(decorate, wrong):
    with pytest.raises(TypeError, match="expected a function to decorate, got "):
        decorate(wrong)


@pytest.mark.parametrize("wrong", [1, 1.5, b"page.html", ["page.html"]])
def test_paths(wrong):
    graph = lazyeng.graph(lazyeng.wrap(torch.ones(2)))
    for function in (lazyeng.profile, graph.to_html):
        expected = f"path must be a str or a path, got {type(wrong).__name__}"
        with pytest.raises(TypeError, match=expected):
            function(wrong)
