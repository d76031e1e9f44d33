"""A text with its words marked: in a terminal, in a notebook, as a page."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TextIO

Record = Mapping[str, Any]
Word = Mapping[str, Any]

# Control characters could move the cursor or rename the window: they are shown, not sent. Tabs and line ends stay.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_MARKER = "245, 166, 20"  # readable under dark ink and under light


class Highlight(list[Record]):
    """Records that show themselves: as the last line of a notebook's cell, by `print`, or saved as a page.

    >>> word = {"word": "Oslo", "start": 3, "end": 7, "probability": 0.9, "selected": True}
    >>> shown = Highlight([{"text": "In Oslo", "words": [word], "spans": [{**word, "text": "Oslo"}]}])
    >>> print(shown)
    In [Oslo]
    """

    def __str__(self) -> str:
        colour = use_colour(sys.stdout)
        return "\n".join(paint(safe(record), colour) for record in self)

    def _repr_html_(self) -> str:
        """Words shaded by probability, selected spans underlined; everything is escaped."""
        return "".join(
            f'<p dir="auto" style="line-height: 1.9; white-space: pre-wrap">{_shaded(record)}</p>' for record in self
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page; what was there is replaced whole."""
        page = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>HardKuma</title></head><body>{self._repr_html_()}</body></html>\n"
        )
        target = Path(path)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            file.write(page)
        os.replace(file.name, target)


def _shaded(record: Record) -> str:
    """The text as HTML."""
    text, words, parts, position = record["text"], record["words"], [], 0
    starts = [word["start"] for word in words]

    def part(start: int, end: int) -> str:
        """text[start:end] with its words shaded."""
        shown, at = [], start
        for word in words[bisect_left(starts, start) : bisect_left(starts, end)]:
            style = f"background: rgba({_MARKER}, {0.75 * word['probability']:.2f}); color: inherit"
            shown.append(escape(text[at : word["start"]]))
            inside = escape(text[word["start"] : word["end"]])
            shown.append(f'<mark style="{style}" title="{word["probability"]:.2f}">{inside}</mark>')
            at = word["end"]
        return "".join([*shown, escape(text[at:end])])

    for span in _merged(record["spans"]):
        inside = part(span["start"], span["end"])
        line = f"border-bottom: .15em solid rgb({_MARKER})"
        parts += [part(position, span["start"]), f'<span style="{line}">{inside}</span>']
        position = span["end"]
    return "".join([*parts, part(position, len(text))])


def use_colour(stream: TextIO) -> bool:
    """Colours on a terminal, or anywhere with FORCE_COLOR set; never where NO_COLOR is set."""
    return not os.environ.get("NO_COLOR") and bool(stream.isatty() or os.environ.get("FORCE_COLOR"))


def paint(record: Record, colour: bool) -> str:
    r"""The text with its words shaded by probability and the selected ones underlined; without colours selected spans are
    in [brackets] (selected words, of a record without spans), and brackets of the text itself are written \[ and \]. What
    is "different" has another colour, or {braces}.

    >>> words = [{"start": 0, "end": 2, "probability": 0.9, "selected": True}]
    >>> print(paint({"text": "Al ran [1]", "words": words, "spans": words}, colour=False))
    [Al] ran \[1\]
    """
    text, parts, position = record["text"], [], 0
    spans = record.get("spans", [word for word in record["words"] if word["selected"]])
    special = "[]{}" if any(span.get("different") for span in spans) else "[]"
    for piece in record["words"] if colour else _merged(spans):
        before, inside, position = text[position : piece["start"]], text[piece["start"] : piece["end"]], piece["end"]
        different = piece.get("different", False)
        if colour:
            parts += [before, _coloured(inside, piece["probability"], piece["selected"], different)]
        else:
            opening, closing = "{}" if different else "[]"
            parts += [_escape(before, special), opening, _escape(inside, special), closing]
    rest = text[position:]
    return "".join([*parts, rest if colour else _escape(rest, special, bracket_follows=False)])


def _merged(spans: Sequence[Word]) -> list[Word]:
    """Spans in the order of the text; those of several selectors that overlap are one."""
    merged: list[Word] = []
    for span in sorted(spans, key=lambda span: span["start"]):
        if merged and span["start"] < merged[-1]["end"]:
            merged[-1] = {**merged[-1], "end": max(merged[-1]["end"], span["end"])}
        else:
            merged.append(span)
    return merged


def _escape(text: str, special: str, bracket_follows: bool = True) -> str:
    r"""Each bracket behind a backslash. Backslashes that stand before a bracket are doubled: after an odd number of them it
    is one of the text, after an even number one of ours."""
    text = re.sub(rf"(?<!\\)(\\*+)([{re.escape(special)}])", r"\1\1\\\2", text)
    return re.sub(r"(?<!\\)(\\++)\Z", r"\1\1", text) if bracket_follows else text


def _coloured(word: str, probability: float, selected: bool, different: bool = False) -> str:
    # 24 shades of grey are too subtle on dark screens: from the terminal's own background to a strong green, or magenta.
    shade = int(5 * min(max(probability, 0.0), 1.0))
    style = (
        f"48;5;{16 + (37 if different else 6) * shade}" + (";38;5;16" if shade > 2 else "") + (";1;4" if selected else "")
    )
    return f"\033[{style}m{word}\033[0m" if shade or selected else word


def safe(record: Record) -> dict[str, Any]:
    """The record with control characters of its text made visible; offsets stay right.

    >>> safe({"text": "a\\x1b[2J", "words": []})["text"]
    'a�[2J'
    """
    return {**record, "text": safe_text(record["text"])}


def safe_text(text: str) -> str:
    """The text with its control characters made visible, one character each.

    >>> safe_text("a\\x1b[2J")
    'a�[2J'
    """
    return text.translate(_CONTROLS)
