"""The timeline of lazyeng.report: one HTML page that loads nothing."""

from __future__ import annotations

import html
import json
import re
from typing import Any

COLORS = {"record": "#4c78a8", "run": "#54a24b", "group": "#b279a2", "wait": "#e45756",
          "device": "#72b7b2"}  # fmt: skip

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title>
<style>
body { margin: 0; font: 13px sans-serif; background: #fff; color: #222; }
header { padding: 8px 12px; } header b { margin-right: 12px; }
.key { display: inline-block; width: 10px; height: 10px; margin: 0 4px 0 12px; }
canvas { display: block; cursor: grab; }
#tip { position: fixed; display: none; max-width: 480px; padding: 6px 8px; pointer-events: none;
  background: #222; color: #fff; white-space: pre-wrap; font: 12px monospace; }
</style></head><body>
<header><b>@TITLE@</b>@KEYS@
&nbsp; wheel: zoom &middot; drag: move &middot; double click: all</header>
<canvas id="lanes"></canvas><div id="tip"></div>
<script>
"use strict";
const {threads, events, duration} = @DATA@;
const colors = @COLORS@;
const HEAD = 24, LANE = 34, LEFT = 150;
const canvas = document.getElementById("lanes"), tip = document.getElementById("tip");
const pen = canvas.getContext("2d");
let from = 0, span = duration || 1;
const lanes = threads.map(() => []);
for (const e of events) lanes[e[0]].push(e);

const x = t => LEFT + (t - from) / span * (canvas.clientWidth - LEFT);
function draw() {
  const ratio = devicePixelRatio || 1;
  const width = innerWidth, height = HEAD + LANE * threads.length + 8;
  canvas.style.width = width + "px"; canvas.style.height = height + "px";
  canvas.width = width * ratio; canvas.height = height * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "11px sans-serif"; pen.textBaseline = "middle";
  const step = 10 ** Math.floor(Math.log10(span / 4));
  pen.fillStyle = "#888";
  for (let t = Math.ceil(from / step) * step; t < from + span; t += step) {
    pen.fillRect(x(t), 0, 1, height);
    pen.fillText((t / 1000).toFixed(3) + " ms", x(t) + 3, HEAD / 2);
  }
  lanes.forEach((lane, i) => {
    const top = HEAD + LANE * i;
    let drawn = -1;
    for (const [, category, begin, length, name] of lane) {
      if (begin + length < from || begin > from + span) continue;
      const left = Math.max(x(begin), LEFT), right = Math.max(x(begin + length), left + 1);
      if (right < drawn + 0.5) continue;  // hidden behind what was drawn: thousands fit a pixel
      pen.fillStyle = colors[category];
      const inner = category === "wait" ? 0 : 4;
      const gap = right - left > 3 ? 0.5 : 0;
      pen.fillRect(left, top + inner, right - left - gap, LANE - 6 - 2 * inner);
      if (category !== "wait") drawn = right;
      if (right - left > 40) {
        pen.save(); pen.beginPath(); pen.rect(left, top, right - left - 2, LANE); pen.clip();
        pen.fillStyle = "#fff"; pen.fillText(name, left + 3, top + (LANE - 6) / 2); pen.restore();
      }
    }
    pen.fillStyle = "#fff"; pen.fillRect(0, top, LEFT, LANE);
    pen.fillStyle = "#222"; pen.fillText(threads[i], 8, top + (LANE - 6) / 2);
  });
}
function under(event) {
  const lane = lanes[Math.floor((event.offsetY - HEAD) / LANE)];
  if (!lane || event.offsetX < LEFT) return null;
  const t = from + (event.offsetX - LEFT) / (canvas.clientWidth - LEFT) * span;
  const slack = span / canvas.clientWidth;
  let found = null;
  for (const e of lane)
    if (e[2] - slack <= t && t <= e[2] + e[3] + slack && (!found || e[3] <= found[3])) found = e;
  return found;
}
canvas.addEventListener("mousemove", event => {
  if (event.buttons) {
    from -= event.movementX / (canvas.clientWidth - LEFT) * span; draw(); return;
  }
  const e = under(event);
  tip.style.display = e ? "block" : "none";
  if (!e) return;
  tip.textContent = `${e[1]} ${e[4]}\\n${e[3].toFixed(1)} us` + (e[5] ? "\\n" + e[5] : "");
  tip.style.left = Math.min(event.clientX + 12, innerWidth - 300) + "px";
  tip.style.top = event.clientY + 12 + "px";
});
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const at = (event.offsetX - LEFT) / (canvas.clientWidth - LEFT);
  const wider = Math.min(Math.max(span * 1.002 ** event.deltaY, 0.5), duration * 1.2);
  from += at * (span - wider); span = wider; draw();
}, {passive: false});
canvas.addEventListener("dblclick", () => { from = 0; span = duration || 1; draw(); });
addEventListener("resize", draw);
draw();
</script></body></html>
"""


def timeline_html(
    title: str, threads: dict[int, str], events: list[dict[str, Any]], duration: float
) -> str:
    """The page. `events`: ranges as `lazyeng.profile` writes them; times in microseconds."""
    lanes = [thread for thread in threads if thread != 0]
    rows = [
        [lanes.index(e["tid"]), e["cat"], e["ts"], e["dur"], e["name"], _details(e.get("args", {}))]
        for e in sorted(events, key=lambda e: e["ts"])
    ]
    data = {"threads": [threads[lane] for lane in lanes], "events": rows, "duration": duration}
    keys = "".join(
        f'<span class="key" style="background:{color}"></span>{name}'
        for name, color in COLORS.items()
    )
    values = {
        "TITLE": html.escape(title),
        "KEYS": keys,
        "DATA": _json(data),
        "COLORS": _json(COLORS),
    }
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], PAGE)


def _json(value: object) -> str:
    """For a script element: no name may end it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _details(args: dict[str, Any]) -> str:
    lines = []
    for key, value in args.items():
        lines.append(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    return "\n".join(lines)
