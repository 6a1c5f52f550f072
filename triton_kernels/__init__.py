"""Hand-written Triton kernels, installed as `lazyeng.triton_kernels`.

One operator a file, which reads kernel, launcher, autograd; its test is tests/kernels/test_NAME.py.
Importing this package does not import Triton, which not every machine has: the kernel files do.
"""
