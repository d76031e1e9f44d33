"""See it at once: texts with their words marked, in a notebook, a terminal or an HTML file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...scoring_hardkuma import Record, gate_records
from ..files import write_atomically
from ..models import load_released
from .html import render_page, render_record
from .style import COLOURS, RECORD_STYLE
from .terminal import paint, safe, use_colour

if TYPE_CHECKING:
    from ...modeling_hardkuma import HardKumaModel


class Highlight(list[Record]):
    """Records that show themselves: as the last line of a notebook's cell, by `print`, or saved as a page."""

    def _repr_html_(self) -> str:
        """What a notebook shows: `render_record` of each, with its own colours."""
        style, shown = COLOURS.replace(":root", ".hk-highlight") + RECORD_STYLE, "".join(map(render_record, self))
        return f'<style>{style}</style><div class="hk-highlight">{shown}</div>'

    def __str__(self) -> str:
        colour = use_colour(sys.stdout)
        return "\n".join(paint(safe(record), colour) for record in self)

    def save(self, path: str | Path) -> None:
        """Write a self-contained HTML page."""
        write_atomically(path, render_page(self))


def highlight(texts: str | Sequence[str], model: HardKumaModel | None = None, **options: Any) -> Highlight:
    """The words that carry texts, marked.

    Args:
        texts: one, or several.
        model: the released head where none is given.
        options: of `gate_records`, such as `rate=0.2`, `keep=0.8` or `selector="entities"`.

    >>> print(highlight("Our flight to Oslo was delayed by heavy snow.", keep=0.8))
    Our [flight] to [Oslo] was [delayed] by heavy [snow].
    """
    chosen = load_released()[0] if model is None else model
    return Highlight(gate_records(chosen, [texts] if isinstance(texts, str) else texts, **options))
