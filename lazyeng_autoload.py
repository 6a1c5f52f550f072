"""What torch calls while it is imported: the entry point of group "torch.backends".

A module of its own, next to the package: a lazyeng that was built for another PyTorch refuses to be
imported, and must not keep the program from importing torch.
"""

from __future__ import annotations

import warnings

_NOT_FOR_THIS_TORCH = ("torch", "lazyeng._C")  # what lazyeng/_check_torch.py says is unusable


def load() -> None:
    """Imports lazyeng, which registers the device "lazyeng".

    Warns:
        RuntimeWarning: lazyeng cannot be used with this PyTorch or Python; it says what to do.
            ``import lazyeng`` raises the ImportError.
    """
    try:
        import lazyeng  # noqa: F401 (if that is what imports torch, it is found half imported)
    except ImportError as error:
        if error.name not in _NOT_FOR_THIS_TORCH:
            raise
        warnings.warn(f"lazyeng is not loaded: {error}", RuntimeWarning, stacklevel=2)
