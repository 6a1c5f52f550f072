"""Results on disk, a line of JSON each: a run of everything takes hours, and may be cut short."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

# What tells two results of an entry apart; of the same, the one that was logged last counts.
IDENTITY = ("suite", "dtype", "fusion", "mode", "how", "limit", "name")


def stamp() -> dict[str, str]:
    return {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def append(path: str, result: dict[str, Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps(result) + "\n")


def read(paths: list[str]) -> list[dict[str, Any]]:
    """In the order in which the entries were first logged."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in paths:
        for line in lines(Path(path)):
            try:
                result = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut off
            found[tuple(result[part] for part in IDENTITY)] = result
    return list(found.values())


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
