"""Says which entries the suites have. Started by runner.py, with the suites on stdin."""

from __future__ import annotations

import json
import sys
import warnings


def main() -> None:
    warnings.simplefilter("ignore")
    from .variants import entries

    print(json.dumps({suite: [e.name for e in entries(suite)] for suite in json.load(sys.stdin)}))
