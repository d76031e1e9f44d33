"""Records in a terminal: colours where they are wanted, and no control sequence of a text."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardkuma.common.rendering.terminal import paint_pair
from hardkuma.scoring_hardkuma import paint, safe, use_colour


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
    record = {"text": "ab cd!", "words": words, "spans": words[:1]}
    assert paint(record, colour=False) == "[ab] cd!"
    coloured = paint(record, colour=True)
    assert "\033[" in coloured and re.sub(r"\033\[[\d;]*m", "", coloured) == "ab cd!"
    assert len(safe({"text": "a\x1b\x9b\tb"})["text"]) == 5


def test_brackets_of_the_text_are_told_from_selections() -> None:
    text = "See [1] for the heart [valve]"
    words = [{"start": match.start(), "end": match.end(), "probability": 0.5} for match in re.finditer(r"\w+", text)]
    words = [{**word, "selected": text[word["start"]] in "hv"} for word in words]
    record = {"text": text, "words": words, "spans": [word for word in words if word["selected"]]}
    assert paint(record, colour=False) == r"See \[1\] for the [heart] \[[valve]\]"
    assert re.sub(r"\033\[[\d;]*m", "", paint(record, colour=True)) == text


@given(st.text(alphabet=st.sampled_from("a []\\")), st.lists(st.booleans(), min_size=1))
def test_what_is_painted_can_be_read_back(text: str, choices: list[bool]) -> None:
    found = [match.span() for match in re.finditer("a+", text)]
    chosen = [choices[number % len(choices)] for number in range(len(found))]
    words = [
        {"start": start, "end": end, "probability": 0.5, "selected": selected}
        for (start, end), selected in zip(found, chosen, strict=True)
    ]
    spans = [word for word in words if word["selected"]]
    painted = paint({"text": text, "words": words, "spans": spans}, colour=False)
    plain, selections = "", []
    for run, bracket, other in re.findall(r"(\\*)(?:([\[\]])|([^\\\[\]]|\Z))", painted):
        plain += "\\" * (len(run) // 2) + bracket * (len(run) % 2) if bracket else run + other
        if bracket == "[" and len(run) % 2 == 0:
            selections.append(len(plain))
    assert plain == text
    assert selections == [start for (start, _), selected in zip(found, chosen, strict=True) if selected]


def test_spans_that_overlap_are_one_bracket() -> None:
    spans = [{"start": 4, "end": 9}, {"start": 0, "end": 5}, {"start": 9, "end": 10}]
    assert paint({"text": "ab cd efgh", "words": [], "spans": spans}, colour=False) == "[ab cd efg][h]"


def test_words_that_carry_are_in_brackets_whatever_the_gates_select() -> None:
    def side(text: str) -> dict:
        words = [
            {"word": "cat", "start": 0, "end": 3, "fall": 0.2, "carries": True, "differs": 0.0},
            {"word": "two", "start": 5, "end": 8, "fall": 0.0, "carries": False, "differs": 1.0},
        ]
        found = [{"text": "two", "start": 5, "end": 8, "differs": 1.0}]
        return {"text": text, "words": words, "spans": [words[1]], "differences": found, "truncated": False}

    said = {"similarity": 0.5, "chance": 0.3, "explained": True, "reason": None, "notes": [], "links": []}
    checks = {"similarity_without": {"carrying": 0.1, "random": 0.4}, "faithful": True}
    pair = {**said, "a": side("cat {two}"), "b": side("cat {two}"), "faithfulness": checks}
    assert "A  [cat] \\{{two}\\}\n" in paint_pair(pair, colour=False, terminal=False)
    coloured = paint_pair(pair, colour=True, terminal=False)
    styles = re.findall(r"\033\[48;5;(\d+)[^m]*m(\w+)", coloured)
    assert dict((word, style) for style, word in styles) == {"cat": "40", "two": "201"}
