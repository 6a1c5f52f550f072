"""Mirrors triton_kernels/: test_NAME.py is about triton_kernels/NAME.py. conftest.py says how."""

import importlib.util
from pathlib import Path

import lazyeng

# An install names the folder triton_kernels/ lazyeng.triton_kernels. In a source tree that is only
# on sys.path it stands beside lazyeng/, where this finds it.
if importlib.util.find_spec("lazyeng.triton_kernels") is None:
    lazyeng.__path__.append(str(Path(__file__).parents[2]))
