# tools/requirements.py: prints requirements that pyproject.toml names: extras, or "build".
"""Usage: python tools/requirements.py build test lint | pip install -r /dev/stdin

So pyproject.toml stays the one place that names them, and installing them builds nothing.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]
for name in sys.argv[1:]:
    print(*(project["build-system"]["requires"] if name == "build" else extras[name]), sep="\n")
