"""Gate records for people: as HTML, and in a terminal."""

from .html import render_page

__all__ = ["render_page"]
