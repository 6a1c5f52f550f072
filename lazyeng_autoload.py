"""What torch calls while it is imported: the entry point of group "torch.backends".

A module of its own, next to the package: a lazyeng that was built for another PyTorch refuses to be
imported, and must not keep the program from importing torch.
"""

from __future__ import annotations

import warnings


def load() -> None:
    """Imports lazyeng, which registers the device "lazyeng".

    Warns:
        RuntimeWarning: lazyeng cannot be used with this PyTorch or Python (lazyeng/_check_torch.py
            says what to do), or lacks a package. ``import lazyeng`` raises the ImportError.
    """
    try:
        import lazyeng  # noqa: F401 (if that is what imports torch, it is found half imported)
    except ImportError as error:
        warnings.warn(f"lazyeng is not loaded: {error}", RuntimeWarning, stacklevel=2)
