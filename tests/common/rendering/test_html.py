"""Records as HTML: every character of the text arrives, as text; nothing runs and nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardkuma.common.rendering.html import page_foot, page_head, render_page, render_pair, render_record, render_words
from hardkuma.common.rendering.style import DARK, HUES, LIGHT

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


def test_words_say_their_probability_and_spans_are_marked_whole() -> None:
    html = render_record(make_record("the river Seine"))
    assert '<mark style="--share:33%" title="probability 0.33">river</mark>' in html
    marked = '<span class="hk-span" style="--share:75%" role="group" aria-label="selected, probability 0.75"><mark'
    assert marked in html
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


def make_side(text: str, falls: list[float], carrying: float) -> dict:
    words = [
        word | {"fall": fall, "carries": fall >= carrying}
        for word, fall in zip(make_record(text)["words"], falls, strict=True)
    ]
    return {"text": text, "words": words, "truncated": False}


def make_pair(similarity: float, carrying: float, **changes: object) -> dict:
    checks = {"similarity_without": {"carrying": 0.1, "random": 0.4}, "faithful": True}
    sides = {name: make_side("the cat", [0.01, 0.2], carrying) for name in "ab"}
    said = {"similarity": similarity, "chance": 0.3, "explained": True, "reason": None, "notes": [], "links": []}
    return {**said, **sides, "faithfulness": checks, **changes}


def test_the_shade_of_a_pair_is_absolute_and_not_by_its_strongest_word() -> None:
    for similarity in (0.8, 0.4):
        assert '--share:80%" title="the similarity falls by 0.200 without it">cat' in render_pair(
            make_pair(similarity, 0.2)
        )
    assert "have nothing in common" not in render_pair(make_pair(0.4, 0.2))


def test_texts_with_nothing_in_common_are_said_to_be_so_and_a_failed_check_too() -> None:
    nothing = {"similarity_without": None, "faithful": None}
    shown = render_pair(make_pair(-0.01, 9.0, explained=False, reason="it is <low>", faithfulness=nothing))
    assert "<b>These texts have nothing in common</b>: it is &lt;low&gt;." in shown and "hk-span" not in shown
    assert "--share:0%" in shown and "--share:80%" not in shown and "match each other" not in shown
    shown = render_pair(make_pair(0.4, 0.2, explained=False, reason="others do as much", notes=["a & b"]))
    assert "<b>Not explained</b>: others do as much." in shown and "Note: a &amp; b." in shown
    assert "Not explained" not in render_pair(make_pair(0.4, 0.2))


def test_what_differs_has_a_colour_of_its_own() -> None:
    pair = make_pair(0.5, 0.2)
    for name in "ab":
        pair[name]["words"] = [{**word, "differs": 0.6} for word in pair[name]["words"]]
        pair[name]["differences"] = [{"text": "the", "start": 0, "end": 3, "differs": 0.6}]
    shown = render_pair(pair)
    assert shown.count('<span class="hk-span hk-different" style="--share:60%"') == 2
    assert shown.count('<span class="hk-span" style="--share:80%"') == 2 and "differs in <bdi>the 0.60</bdi>" in shown
    assert "hk-different" not in render_pair(pair | {"similarity": 0.1, "explained": False, "reason": "it is low"})


def test_every_selector_has_a_hue_in_light_and_dark() -> None:
    words = [{"start": 0, "end": 1, "probability": 0.5, "hue": HUES + 1}]
    assert '<mark class="hk-hue1" style="--share:50%"' in render_words("a", words)
    for colours in (LIGHT, DARK):
        assert len(set(re.findall(r"--hue\d: ([\d, ]+);", colours))) == HUES
