"""Draws a graph of boxes with items in them as one HTML page that loads nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

ITEM_HEIGHT, ROW_GAP, COLUMN_GAP, PADDING, LETTER = 24, 36, 24, 10, 7.3

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ margin: 12px; font: 13px sans-serif; }}
svg {{ font: 12px monospace; }}
.box {{ fill: #f3eef6; stroke: #b279a2; }} .name {{ fill: #8a5a80; }}
.item rect {{ fill: #fff; stroke: #4c78a8; }} .item:hover rect {{ fill: #dde8f4; }}
path {{ fill: none; stroke: #777; marker-end: url(#head); }} .order {{ stroke-dasharray: 4 3; }}
</style></head><body><p>{title}</p>
<svg width="{width:.0f}" height="{height:.0f}">
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#777;stroke:none;marker-end:none"/>
</marker></defs>
{shapes}
</svg></body></html>
"""


@dataclass(frozen=True, slots=True)
class Item:
    """One op. ``key`` is its own; ``needs`` and ``follows`` name items that stand before it."""

    key: str
    text: str
    hover: str
    needs: Sequence[str]
    follows: Sequence[str]


@dataclass(frozen=True, slots=True)
class Box:
    """Items that belong together, one below the other; without a title nothing is drawn around."""

    title: str | None
    items: Sequence[Item]

    @property
    def width(self) -> float:
        return max(len(item.text) for item in self.items) * LETTER + 4 * PADDING

    @property
    def height(self) -> float:
        return len(self.items) * (ITEM_HEIGHT + 6) + (ITEM_HEIGHT if self.title else 0) + PADDING


def draw(title: str, boxes: Sequence[Box]) -> str:
    """The page: what an item needs stands above it."""
    places: dict[str, tuple[float, float, float]] = {}  # of each item: left, top, width
    frames: list[str] = []
    items: list[str] = []
    y = width = 0.0
    for row in _rows(boxes):
        x = 0.0
        for box in row:
            frames += _frame(box, x, y)
            items += _items(box, x, y, places)
            x += box.width + COLUMN_GAP
        width = max(width, x)
        y += max(box.height for box in row) + ROW_GAP
    edges = [edge for box in boxes for item in box.items for edge in _edges(item, places)]
    shapes = "\n".join(frames + edges + items)  # what comes later covers what came before
    return PAGE.format(title=html.escape(title), width=width + 1, height=y + 1, shapes=shapes)


def _rows(boxes: Sequence[Box]) -> list[list[Box]]:
    """Each box one row below the lowest one that it needs.

    Boxes come in an order in which groups may begin before what they need: so the rows are found by
    passing over them until nothing moves, at most once per box.
    """
    home = {item.key: i for i, box in enumerate(boxes) for item in box.items}
    before = [
        {home[key] for item in box.items for key in (*item.needs, *item.follows)} - {i}
        for i, box in enumerate(boxes)
    ]
    rows = [0] * len(boxes)
    for _ in boxes:
        moved = False
        for i, needed in enumerate(before):
            row = 1 + max((rows[k] for k in needed), default=-1)
            moved |= row != rows[i]
            rows[i] = row
        if not moved:
            break
    drawn: list[list[Box]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for box, row in zip(boxes, rows, strict=True):
        drawn[row].append(box)
    return [row for row in drawn if row]


def _frame(box: Box, x: float, y: float) -> list[str]:
    if box.title is None:
        return []
    return [
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" rx="4" width="{box.width:.1f}" '
        f'height="{box.height:.1f}"/><text class="name" x="{x + PADDING:.1f}" '
        f'y="{y + 16:.1f}">{html.escape(box.title)}</text>'
    ]


def _items(
    box: Box, x: float, y: float, places: dict[str, tuple[float, float, float]]
) -> list[str]:
    shapes = []
    y += ITEM_HEIGHT if box.title else 0
    left, width = x + PADDING, box.width - 2 * PADDING
    for item in box.items:
        y += 6
        places[item.key] = left, y, width
        shapes.append(
            f'<g class="item"><title>{html.escape(item.hover)}</title><rect x="{left:.1f}" '
            f'y="{y:.1f}" rx="3" width="{width:.1f}" height="{ITEM_HEIGHT}"/><text '
            f'x="{left + PADDING:.1f}" y="{y + 16:.1f}">{html.escape(item.text)}</text></g>'
        )
        y += ITEM_HEIGHT
    return shapes


def _edges(item: Item, places: dict[str, tuple[float, float, float]]) -> list[str]:
    left, top, width = places[item.key]
    edges = []
    for kind, keys in (("data", item.needs), ("order", item.follows)):
        for key in keys:
            from_left, from_top, from_width = places[key]
            x, y = from_left + from_width / 2, from_top + ITEM_HEIGHT
            end = left + width / 2
            bend = max((top - y) / 2, 8.0)
            edges.append(
                f'<path class="{kind}" d="M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} '
                f'{end:.1f} {top - bend:.1f} {end:.1f} {top:.1f}"/>'
            )
    return edges
