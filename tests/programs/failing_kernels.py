"""Custom ops whose kernels, written in Python, raise; used by failing_programs.py.

In a file of its own: what is compared there is the innermost line of the *program*.
"""

import subprocess

import torch


class SeveralArguments(Exception):  # noqa: N818
    """Cannot be made from its message alone."""

    def __init__(self, code, *, where):
        super().__init__(code, where)
        self.code, self.where = code, where

    def __str__(self):
        return f"code {self.code} in {self.where}"


def _third_party():
    import jinja2  # torch depends on it

    jinja2.Template("{{ a.b.c }}").render()


def _chained():
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


def _several():
    raise SeveralArguments(7, where="a kernel")


def _plain():
    raise Exception("of no class of its own")


RAISERS = {
    "Exception": _plain,
    "ValueError": lambda: int("x1"),
    "KeyError": lambda: {}["missing"],
    "ZeroDivisionError": lambda: 1 // 0,
    "FileNotFoundError": lambda: open("/nonexistent/file"),  # noqa: SIM115
    "UnicodeDecodeError": lambda: b"\xff".decode(),
    "AttributeError": lambda: object().missing,
    "AssertionError": lambda: torch.testing.assert_close(torch.ones(1), torch.zeros(1)),
    "StopIteration": lambda: next(iter(())),
    "CalledProcessError": lambda: subprocess.run(["false"], check=True),
    "third party": _third_party,
    "several arguments": _several,
    "chained": _chained,
    "of torch": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
}


def _register(name, raiser):
    @torch.library.custom_op(f"lazyeng_failing::{name}", mutates_args=())
    def raising(x: torch.Tensor) -> torch.Tensor:
        raiser()
        return x.clone()

    raising.register_fake(torch.empty_like)
    return raising


RAISING = {
    name: _register("k" + str(i), raiser) for i, (name, raiser) in enumerate(RAISERS.items())
}


@torch.library.custom_op("lazyeng_failing::mutates", mutates_args=("x",))
def mutates(x: torch.Tensor) -> None:
    x.zero_()
    raise ValueError("after it wrote")


@torch.library.custom_op("lazyeng_failing::two", mutates_args=())
def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    raise ValueError("of two results")


two.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))


@torch.library.custom_op("lazyeng_failing::copied", mutates_args=())
def copied(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("lazyeng_failing::gradient", mutates_args=())
def gradient(grad: torch.Tensor) -> torch.Tensor:
    return grad.clone()


copied.register_fake(torch.empty_like)
gradient.register_fake(torch.empty_like)
copied.register_autograd(lambda _, grad: RAISING["ValueError"](grad))
gradient.register_autograd(lambda _, grad: RAISING["KeyError"](grad))


@torch.library.custom_op("lazyeng_failing::once_differentiable", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda _, grad: gradient(grad))
