"""Records as HTML: every character of the text arrives, as text; nothing runs and nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardkuma.rendering import page_foot, page_head, render_page, render_record

ATTACK = "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> &amp; </figure>"


class Collector(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.paragraph, self.inside = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "p":
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.paragraph += data


def make_record(text: str, rate: float = 0.5) -> dict:
    """Words between spaces with rising probabilities; the last ones selected, neighbours merged."""
    found = [match.span() for match in re.finditer(r"\S+", text)]
    words = [
        {"word": text[s:e], "start": s, "end": e, "probability": i / len(found), "selected": i >= rate * len(found)}
        for i, (s, e) in enumerate(found)
    ]
    chosen = [word for word in words if word["selected"]]
    spans = []
    if chosen:
        start, end = chosen[0]["start"], chosen[-1]["end"]
        spans = [{"text": text[start:end], "start": start, "end": end, "probability": 0.75}]
    return {"text": text, "words": words, "spans": spans, "rate": rate, "windows": 1}


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("<>&\"'\n/"), max_size=60))
def test_the_text_arrives_unchanged(text: str) -> None:
    assert Collector(render_record(make_record(text))).paragraph == text


def test_an_attack_is_text() -> None:
    page = render_page([make_record(ATTACK), make_record(ATTACK, rate=0.0)], title=ATTACK)
    parsed = Collector(page)
    assert {"script", "img"}.isdisjoint(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on") or name in ("src", "href")]
    assert not re.search(r"@import|url\(|https?:", page)
    assert parsed.tags.count("figure") == 2


def test_words_say_their_probability_and_spans_are_outlined() -> None:
    html = render_record(make_record("the river Seine"))
    assert '<mark style="--share:33%" title="probability 0.33">river</mark>' in html
    assert '<span class="hk-span" role="group" aria-label="selected, probability 0.75"><mark' in html
    assert html.count('class="hk-span"') == 1 and "1 of 3 words" in html


def test_long_texts_say_their_windows() -> None:
    assert "(read in 3 windows)" in render_record({**make_record("a b"), "windows": 3})
    assert "windows" not in render_record(make_record("a b"))


def test_empty_texts() -> None:
    assert "no words" in render_record(make_record(""))


def test_words_across_a_border_are_refused() -> None:
    record = make_record("the river Seine")
    record["spans"][0]["start"] -= 2
    with pytest.raises(ValueError, match=r"the word at 4-9 does not fit between 3 and 8"):
        render_record(record)


def test_a_page_can_be_written_in_pieces() -> None:
    records = [make_record("one two"), make_record("three")]
    pieces = page_head("T") + "".join(render_record(record) + "\n" for record in records) + page_foot()
    assert pieces == render_page(records, "T")
