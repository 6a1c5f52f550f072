"""Mirrors lazyeng/fuse/. conftest.py says in which process a test runs."""
