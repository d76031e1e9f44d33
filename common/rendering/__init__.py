"""Gate records for people: as HTML, and in a terminal."""

from __future__ import annotations

from ...highlight_hardkuma import paint, safe, use_colour
from .html import legend, page_foot, page_head, render_page, render_pair, render_record, render_words
from .terminal import paint_pair

__all__ = [
    "legend",
    "page_foot",
    "page_head",
    "paint",
    "paint_pair",
    "render_page",
    "render_pair",
    "render_record",
    "render_words",
    "safe",
    "use_colour",
]
