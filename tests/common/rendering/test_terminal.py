"""Records in a terminal: colours where they are wanted, and no control sequence of a text."""

from __future__ import annotations

import io
import re

import pytest

from hardkuma.common.rendering.terminal import paint, safe, use_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert use_colour(Terminal()) and not use_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colour(Terminal())


def test_paint() -> None:
    words = [
        {"start": 0, "end": 2, "probability": 0.9, "selected": True},
        {"start": 3, "end": 5, "probability": 0.1, "selected": False},
    ]
    record = {"text": "ab cd!", "words": words}
    assert paint(record, colour=False) == "[ab] cd!"
    coloured = paint(record, colour=True)
    assert "\033[" in coloured and re.sub(r"\033\[[\d;]*m", "", coloured) == "ab cd!"
    assert len(safe({"text": "a\x1b\x9b\tb"})["text"]) == 5
