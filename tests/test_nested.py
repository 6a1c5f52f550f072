"""Strided nested tensors in blocks, and on the device "lazyeng"."""

import contextlib

import pytest
import torch

from lazyeng import lazy, wrap

pytestmark = pytest.mark.filterwarnings("ignore:.*nested:UserWarning")  # torch's: in beta state

F = torch.nn.functional

PROGRAMS = {
    "unbind": lambda n: n.unbind()[0].pow(2).sum(),
    "reshape": lambda n: n.reshape(2, -1, 3, 2).unbind()[1].sum(),
    "to_padded_tensor": lambda n: torch.nested.to_padded_tensor(n, 0.5).square().sum(),
    "mul": lambda n: (n * 2).unbind()[0].sum(),
    "transpose": lambda n: n.transpose(1, 2).unbind()[0].square().sum(),
    "linear": lambda n: F.linear(n, torch.ones(3, 6)).unbind()[1].sum(),
    "softmax": lambda n: torch.softmax(n, -1).unbind()[0][0, 0],
    "select": lambda n: n.select(0, 0).square().sum(),
    "sum": lambda n: n.sum(-1, keepdim=True).unbind()[0].square().sum(),
    "values": lambda n: n.values().square().sum(),
    "clone": lambda n: n.clone().unbind()[0].sum(),
    "attention": lambda n: F.scaled_dot_product_attention(*[n.unsqueeze(1)] * 3).unbind()[0].sum(),
}


def _gradients(program, block):
    torch.manual_seed(0)
    rows = [torch.randn(n, 6, requires_grad=True) for n in (2, 3)]
    with block:
        found = torch.autograd.grad(program(torch.nested.as_nested_tensor(rows)), rows)
        return [x.tolist() for x in found]


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program, mode):
    expected = _gradients(PROGRAMS[program], contextlib.nullcontext())
    assert _gradients(PROGRAMS[program], lazy(mode)) == expected


def _rows():
    return [torch.ones(2), torch.arange(3.0)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor(_rows(), device="lazyeng"),
        lambda: torch.nested.nested_tensor([wrap(x) for x in _rows()]),
        lambda: torch.nested.as_nested_tensor(_rows(), device=torch.device("lazyeng:0")),
        lambda: torch.nested.nested_tensor(_rows()).to("lazyeng"),
        lambda: (
            torch.zeros_like(torch.nested.nested_tensor(_rows()), device="lazyeng")
            + torch.nested.nested_tensor(_rows())
        ),
    ],
)
def test_on_the_device_they_are_plain(make):
    made = make()
    assert type(made) is torch.Tensor and made.device.type == "cpu"
    assert [x.tolist() for x in made.unbind()] == [[1.0, 1.0], [0.0, 1.0, 2.0]]
    assert [x.tolist() for x in (made + made).unbind()] == [[2.0, 2.0], [0.0, 2.0, 4.0]]
