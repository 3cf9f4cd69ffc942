"""`python -m bench.peers.drawing '{…}'`: bar charts as PNG files. Here, because only the peers' environment draws."""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from bench.programs import answer

WIDTH = 8.0
DOTS = 150
"""Inches, and dots an inch: sharp where a page shows it with 800 pixels."""

OURS, THEIRS = ("#1a5fb4", "#86abdc"), ("#9a9996", "#cfcecb")
"""Colours of the parts of a bar."""

INK, PALE = "#241f31", "#77767b"
ROW, HEAD, TITLE, FOOT = 0.27, 0.4, 0.42, 0.15
"""Heights in inches."""

LEFT, ROOM = 0.27, 0.68
"""Part of the width for labels, and part of a panel that the longest whisker takes: the rest is for its figures."""

COLOURS = 64


def run(drawings: dict[str, Any], directory: str) -> dict[str, Any]:
    """Draw each, into a file of its name."""
    matplotlib.use("agg")
    pyplot.rcParams.update({"font.size": 9, "text.color": INK, "text.parse_math": False})
    for name, drawing in drawings.items():
        _draw(drawing, Path(directory) / f"{name}.png")
    return {}


def _draw(drawing: dict[str, Any], path: Path) -> None:
    panels = drawing["panels"]
    heights = [HEAD + ROW * len(panel["bars"]) for panel in panels]
    total = TITLE + sum(heights) + FOOT * (len(drawing["foot"]) + 1)
    figure = pyplot.figure(figsize=(WIDTH, total), dpi=DOTS)
    figure.text(0.015, 1 - 0.27 / total, drawing["title"], fontsize=11, fontweight="bold")
    for line, text in enumerate(reversed(drawing["foot"]), 1):
        figure.text(0.015, (FOOT * line - 0.05) / total, text, fontsize=7, color=PALE)
    below = TITLE
    for panel, height in zip(panels, heights, strict=True):
        below += height
        box = (LEFT, 1 - below / total, 0.985 - LEFT, (height - HEAD) / total)
        figure.text(0.015, 1 - (below - height + 0.25) / total, panel["title"], fontsize=9, color=PALE)
        _panel(figure.add_axes(box), panel["bars"])
    _save(figure, path, json.dumps(drawing))
    pyplot.close(figure)


def _save(figure: Any, path: Path, description: str) -> None:
    """Write a file with few colours, which makes it small, and with the text of all that it shows."""
    canvas = figure.canvas
    canvas.draw()
    facts = PngInfo()
    facts.add_text("Description", description)
    picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB").quantize(COLOURS)
    picture.save(path, pnginfo=facts, optimize=True)


def _panel(axes: Any, bars: list[dict[str, Any]]) -> None:
    reach = _reach(bars)
    axes.set_xlim(0, reach / ROOM)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar["label"] for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.get_yticklabels()[0].set_fontweight("bold")
    in_parts = len(bars[0]["parts"]) > 1
    for row, bar in enumerate(bars):
        end = _bar(axes, row, bar["parts"], reach)
        place = {"textcoords": "offset points", "va": "center"}
        weight = "normal" if row else "bold"
        value = axes.annotate(bar["value"], (end, row), (5, 0), fontweight=weight, **place)
        if not in_parts:
            axes.annotate(bar["spread"], (1, 0.5), (6, 0), xycoords=value, fontsize=7, color=PALE, **place)


def _reach(bars: list[dict[str, Any]]) -> float:
    """Return the highest value or whisker; one that would make all bars short does not count, and is cut."""
    ends = [end for bar in bars for end in _ends(bar["parts"]) if math.isfinite(end[0])]
    longest: float = max(value for value, _ in ends)
    return max(high if high < 2 * longest else 1.15 * longest for _, high in ends)


def _ends(parts: list[dict[str, float]]) -> Iterator[tuple[float, float]]:
    """Yield where each part and its whisker end."""
    at = 0.0
    for part in parts:
        yield at + part["value"], at + part["high"]
        at += part["value"]


def _bar(axes: Any, row: int, parts: list[dict[str, float]], reach: float) -> float:
    """Draw the parts end to end, each with its whisker; return where the last thing ends."""
    at = end = 0.0
    for part, colour in zip(parts, THEIRS if row else OURS, strict=False):
        if math.isinf(part["value"]):
            axes.barh(row, reach, height=0.66, color="white", edgecolor=THEIRS[0], hatch="////", linewidth=0.5)
            return reach
        axes.barh(row, part["value"], left=at, height=0.66, color=colour)
        low, high = at + part["low"], at + part["high"]
        stop = min(high, reach)
        if low < high:
            axes.plot([low, stop], [row, row], color=INK, linewidth=0.9)
            axes.plot([low], [row], marker="|", color=INK, markersize=5)
            axes.plot(
                [stop], [row], marker="|" if stop == high else ">", color=INK, markersize=5 if stop == high else 3
            )
        at += part["value"]
        end = max(end, at, stop)
    return end


if __name__ == "__main__":
    answer(run)
