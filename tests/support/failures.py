"""Tensors whose op has failed, and the exceptions that are raised. (It imports no torch by itself:
programs that do without look at exceptions, too.)"""

import traceback


def failed(mode="deferred", index=7):
    """Made in a block by an op that raises IndexError when it runs."""
    import torch

    from lazyeng import lazy, wrap

    with lazy(mode):
        return wrap(torch.ones(3))[wrap(torch.tensor([index]))]


def raised_by(function):
    """The exception; that there is none is an error."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def text_of(error):
    """As Python prints it, with its causes and notes."""
    return "".join(traceback.format_exception(error))
