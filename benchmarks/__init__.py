"""Measurements; each is run with `python -m benchmarks.<name>` and asserts nothing."""
