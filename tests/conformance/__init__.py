"""PyTorch's own operator, module and optimizer data bases, run lazily and compared with eager.

`python -m tests.conformance --help` tells how to run it. Read in this order: suites.py (what is
run), variants.py (in place, out=, what has to be refused), compare.py (what "equal" means),
worker.py (one entry), runner.py (processes, watchdog), log.py (results on disk), report.py (table
and docs page), known.py (the exceptions and their reasons).
"""
