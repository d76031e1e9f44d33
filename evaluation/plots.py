"""Plots as SVG text that can be put into a page: they follow its text colour, in light and in dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.packages import require

# Readable on white and on near-black; told apart by line style as well as by colour.
COLORS = ("#2f6fde", "#d9730d", "#1a9e5c", "#c2379a", "#8a6fd1", "#b08900", "#d64545", "#0e94a6", "#7d8b2f", "#8c8c8c")
STYLES = ("solid", "dashed", "dotted", "dashdot")
GREY: Mapping[str, Any] = {"color": "#9aa0a6", "linestyle": "solid", "linewidth": 0.8, "zorder": 1}
_INK = "#010203"  # stands for the page's text colour
_WIDTH, _HEIGHT = 4.6, 3.5  # inches; small, so that labels stay readable on a phone


def style_of(number: int, highlight: bool = False) -> dict[str, Any]:
    """Colour, line style and width of the n-th line.

    >>> style_of(0)["color"] == style_of(10)["color"], style_of(0)["linestyle"], style_of(10)["linestyle"]
    (True, 'solid', 'dashed')
    """
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": STYLES[number // len(COLORS) % len(STYLES)],
        "linewidth": 3.0 if highlight else 1.3,
        "zorder": 3 if highlight else 2,
    }


def line_plot(
    lines: Sequence[tuple[Sequence[float], Sequence[float], Mapping[str, Any]]],
    x_label: str,
    y_label: str,
    title: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    log: bool = False,
) -> str:
    """Lines of (x, y, style) as SVG; those with a `label` in their style are named below the plot.

    >>> line_plot([([0, 1], [0, 1], style_of(0))], "recall", "precision", "a plot")[:30]
    '<svg role="img" aria-label="a '
    """
    named = sum("label" in style for _, _, style in lines)
    figure, axes = _axes(x_label, y_label, _HEIGHT + _legend_height(named))
    for x, y, style in lines:
        axes.plot(x, y, **style)
    _legend(figure, named)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    if x_range is not None:
        axes.set_xlim(*x_range)
    if y_range is not None:
        axes.set_ylim(*y_range)
    return _svg(figure, title)


def scatter_plot(
    points: Sequence[tuple[float, float, str, Mapping[str, Any]]], x_label: str, y_label: str, title: str
) -> str:
    """Points of (x, y, short label, style) over a logarithmic x axis, as SVG."""
    figure, axes = _axes(x_label, y_label)
    axes.set_xscale("log")
    for x, y, _, style in points:
        axes.scatter([x], [y], color=style["color"], s=60 if style["linewidth"] > 2 else 28, zorder=style["zorder"])
    axes.margins(x=0.12, y=0.1)
    figure.draw_without_rendering()  # fixes the scales, so that labels can be placed in pixels
    taken = [tuple(axes.transData.transform((x, y))) for x, y, _, _ in points]
    for (x, y, label, _), here in zip(points, list(taken), strict=True):
        shift = _free_spot(here, taken)
        axes.annotate(
            label, (x, y), xytext=shift, textcoords="offset points", fontsize=9, color=_INK, ha="center", va="center"
        )
    return _svg(figure, title)


def _free_spot(here: tuple[float, float], taken: list[tuple[float, float]]) -> tuple[float, float]:
    """Where around a point a label covers no point and no label; the offset in points, noted in `taken`."""
    scale = 100 / 72  # pixels per point at matplotlib's resolution
    ring = [(r * cos, r * sin) for r in (10, 18, 26) for cos, sin in _DIRECTIONS]
    for dx, dy in ring:
        spot = (here[0] + dx * scale, here[1] + dy * scale)
        if all(abs(spot[0] - x) > 15 or abs(spot[1] - y) > 13 for x, y in taken):
            taken.append(spot)
            return dx, dy
    return ring[0]


_DIRECTIONS = ((0.8, 0.6), (0.8, -0.6), (-0.8, 0.6), (-0.8, -0.6), (0, 1), (0, -1), (1, 0), (-1, 0))


def bar_plot(groups: Sequence[str], bars: Mapping[str, Sequence[float]], x_label: str, title: str) -> str:
    """Horizontal bars, one colour per name, grouped; as SVG. NaN leaves a gap."""
    height = 1.0 + 0.14 * len(groups) * (len(bars) + 1) + _legend_height(len(bars))
    figure, axes = _axes(x_label, "", height)
    thick = 0.8 / max(1, len(bars))
    for number, (name, values) in enumerate(bars.items()):
        heights = [i + number * thick for i in range(len(groups))]
        axes.barh(heights, values, height=thick * 0.92, color=COLORS[number % len(COLORS)], zorder=2, label=name)
    _legend(figure, len(bars))
    axes.set_yticks([i + 0.4 - thick / 2 for i in range(len(groups))], list(groups))
    axes.invert_yaxis()
    axes.axvline(0, color=_INK, linewidth=0.8)
    return _svg(figure, title)


def _legend_height(names: int) -> float:
    return 0.19 * math.ceil(names / 2)


def _legend(figure: Any, names: int) -> None:
    if names:
        figure.legend(loc="outside lower center", ncols=2, labelcolor=_INK, frameon=False, fontsize=8.5)


def _axes(x_label: str, y_label: str, height: float = _HEIGHT) -> tuple[Any, Any]:
    require("matplotlib", "benchmark")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    axes.set_xlabel(x_label, color=_INK, fontsize=11)
    axes.set_ylabel(y_label, color=_INK, fontsize=11)
    axes.grid(color="#888888", alpha=0.3, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)
    axes.tick_params(which="both", colors=_INK, labelcolor=_INK, labelsize=10)
    return figure, axes


def _svg(figure: Any, title: str) -> str:
    import html

    import matplotlib

    target = io.StringIO()
    # Text as text: small, selectable, in the page's font. A fixed salt: the same numbers give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif"}):
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids must be unique in a page with several plots.
    prefix = re.sub(r"[^a-z0-9]+", "-", title.lower())
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{prefix}-\1"', text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    name = html.escape(title, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
