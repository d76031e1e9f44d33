"""What people see in a terminal: shaded words, colours only where they are wanted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# Control characters could move the cursor or rename the window: they are shown, not sent. Tabs and line ends stay.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def use_colour(stream: Any) -> bool:
    """Colours on a terminal, or anywhere with FORCE_COLOR set; never where NO_COLOR is set."""
    return not os.environ.get("NO_COLOR") and bool(stream.isatty() or os.environ.get("FORCE_COLOR"))


def paint(record: Mapping[str, Any], colour: bool) -> str:
    """The text with its words shaded by probability and the selected ones underlined; [brackets] without colours.

    >>> words = [{"start": 0, "end": 2, "probability": 0.9, "selected": True}]
    >>> paint({"text": "Al ran", "words": words}, colour=False)
    '[Al] ran'
    """
    text, parts, position = record["text"], [], 0
    for word in record["words"]:
        parts.append(text[position : word["start"]])
        inside, position = text[word["start"] : word["end"]], word["end"]
        if colour:
            parts.append(_coloured(inside, word["probability"], word["selected"]))
        else:
            parts.append(f"[{inside}]" if word["selected"] else inside)
    return "".join([*parts, text[position:]])


def _coloured(word: str, probability: float, selected: bool) -> str:
    # 24 shades of grey are too subtle on dark screens: from the terminal's own background to a strong green.
    shade = int(5 * min(max(probability, 0.0), 1.0))
    style = f"48;5;{16 + 6 * shade}" + (";38;5;16" if shade > 2 else "") + (";1;4" if selected else "")
    return f"\033[{style}m{word}\033[0m" if shade or selected else word


def safe(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with control characters of its text made visible; offsets stay right.

    >>> safe({"text": "a\\x1b[2J", "words": []})["text"]
    'a�[2J'
    """
    return {**record, "text": record["text"].translate(_CONTROLS)}
