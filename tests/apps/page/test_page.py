"""The demo, in a real browser: typing, re-selection without encoding, pairs, other methods, downloads, attacks, looks."""

from __future__ import annotations

import json
import random
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the demo needs starlette: pip install 'hardkuma[demo]'")

from hardkuma import HardKumaModel, __version__, load_released
from hardkuma.apps.page.app import MAX_BODY, Answers, Query, build_app, render_index
from hardkuma.apps.page.demo import (
    MAX_CHARACTERS,
    MAX_CHARACTERS_COMPARED,
    Demo,
    _join_sentences,
    as_fraction,
    check_compared,
    check_lines,
)
from hardkuma.apps.page.examples import DOCUMENT, PAIRS, PASSAGES, QUESTIONS, TEXTS
from hardkuma.apps.page.html import merge_selectors, save_text, show_text
from hardkuma.apps.page.serve import serving
from hardkuma.apps.pairs import explain_pair
from hardkuma.apps.search import SearchIndex
from hardkuma.apps.terms import find_terms
from hardkuma.common.rendering.style import HUES
from hardkuma.scoring_hardkuma import Record, ScoredText, gate_records, score_texts
from tests.browser import chromium, needs_chromium

ATTACK = (
    "<script>document.title='broken'</script> <img src=x onerror=\"document.title='broken'\"> </p> &amp; "
    "${document.title='broken'} {{#each value}}x{{/each}} @children `quoted` <b>bold</b>"
)
LONG = ("The ferry to Hydra leaves at noon." + " " * 205 + "\n") * 420  # 100,800 characters, soon read
TABS = ("One text", "Two texts", "Search", "Document", "Methods")


class Passes:
    """How often the encoder ran."""

    def __init__(self, model: HardKumaModel) -> None:
        self.count = 0
        model.encoder.register_forward_hook(self._add)

    def _add(self, *_: object) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def served(minilm: HardKumaModel) -> Iterator[tuple[str, Passes]]:
    """The app on a free port of this machine, and the encoder's counter."""
    passes = Passes(minilm)
    with serving(build_app(minilm)) as url:
        yield url, passes


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Any, served: tuple[str, Passes]) -> Iterator[Callable[..., Any]]:
    """open_page(tab, width, scheme): a fresh visitor; the test fails if the page asked anyone else for anything, or if a
    script failed."""
    contexts, foreign = [], []

    def open_page(tab: str = "text", width: int = 1200, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(180_000)  # on a busy machine a page takes its time
        page.on("pageerror", lambda error: foreign.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith((served[0], "blob:", "data:", "file:")) or foreign.append(request.url),
        )
        page.goto(f"{served[0]}#/{tab}", timeout=180_000)
        page.wait_for_selector(f"#panel-{tab}:not([hidden]):not(.stale)")
        page.wait_for_selector(f"#{tab} > *")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not foreign


def wait_for_text(page: Any, place: str, text: str) -> None:
    """Until a place shows this text, and nothing that is out of date."""
    page.wait_for_function(
        "([place, text]) => document.querySelector(place + ' .hk-text')?.textContent === text "
        "&& !document.querySelector(place).closest('.stale')",
        arg=[place, text],
    )


def settled(page: Any, place: str) -> str:
    """The text of a place when it has not changed for a while."""
    before = None
    while (now := page.inner_text(place)) != before:
        before = now
        page.wait_for_timeout(300)
    return now


def take_share(page: Any, steps: int) -> None:
    """Choose a share of words, and move its slider, which starts at 20%, by the keyboard."""
    page.locator("[name=amount][value=share]").check(force=True)
    slider = page.get_by_role("slider", name="Share of words")
    slider.focus()
    for _ in range(abs(steps)):
        slider.press("ArrowRight" if steps > 0 else "ArrowLeft")


@needs_chromium
def test_typing_shows_the_words_as_the_model_itself_decides(open_page: Callable, minilm: HardKumaModel) -> None:
    page, text = open_page(), "Ada Lovelace wrote to Charles Babbage about the engine in 1843."
    wait_for_text(page, "#text", TEXTS[0])
    page.get_by_role("textbox", name="Text", exact=True).fill("")
    page.get_by_role("textbox", name="Text", exact=True).type(text)
    wait_for_text(page, "#text", text)
    record = score_texts(minilm, [text])[0].select()
    assert page.locator("#text mark").all_inner_texts() == [word["word"] for word in record["words"]]
    assert page.locator("#text .hk-text .hk-span").all_inner_texts() == [span["text"] for span in record["spans"]]
    titles = [mark.get_attribute("title") for mark in page.locator("#text mark").all()]
    assert titles == [f"probability {word['probability']:.2f}" for word in record["words"]]


@needs_chromium
def test_the_slider_reselects_without_encoding(
    open_page: Callable, served: tuple[str, Passes], minilm: HardKumaModel
) -> None:
    page, (_, passes) = open_page(), served
    settled(page, "#text")
    before = passes.count
    take_share(page, 30)
    page.wait_for_function("() => document.querySelector('#text').innerText.includes('10 of 20 words')")
    assert page.get_by_text("50%").is_visible() and not page.locator("[data-amount=keep]").is_visible()
    take_share(page, -60)
    page.wait_for_function("() => document.querySelector('#text').innerText.includes('1 of 20 words')")
    settled(page, "#text")
    scored = score_texts(minilm, [TEXTS[0]])[0]
    spans = page.locator("#text .hk-text .hk-span")
    assert passes.count == before + 1 and spans.all_inner_texts() == [s["text"] for s in scored.select(rate=0.05)["spans"]]
    page.get_by_text("automatic", exact=True).click()
    own = [span["text"] for span in scored.select()["spans"]]
    page.wait_for_function("n => document.querySelectorAll('#text .hk-text .hk-span').length === n", arg=len(own))
    assert spans.all_inner_texts() == own and passes.count == before + 1


@needs_chromium
def test_the_words_that_keep_the_meaning(open_page: Callable, minilm: HardKumaModel) -> None:
    page = open_page()
    settled(page, "#text")
    page.get_by_text("keep … of the meaning").click()
    page.get_by_role("slider", name="How much of the meaning").focus()
    page.keyboard.press("ArrowLeft")
    record = minilm.gate_records([TEXTS[0]], keep=0.79)[0]
    page.wait_for_function(
        "kept => document.querySelector('#text').innerText.includes(`they keep ${kept} of the meaning`)",
        arg=f"{record['kept']:.0%}",
    )
    assert record["kept"] >= 0.79
    assert page.locator("#text .hk-text .hk-span").all_inner_texts() == [span["text"] for span in record["spans"]]
    page.get_by_role("tab", name="Two texts").click()
    assert not page.get_by_text("keep … of the meaning").is_visible()
    assert page.locator("[name=amount][value=automatic]").is_checked()


@needs_chromium
def test_the_table_of_numbers_has_room_and_thin_lines(open_page: Callable) -> None:
    page = open_page()
    page.get_by_text("Every word's probability").click()
    cell = page.locator("#numbers td").first
    cell.wait_for()
    style = "(cell, name) => getComputedStyle(cell)[name]"
    sides = {side: cell.evaluate(style, f"border{side}Width") for side in ("Top", "Right", "Bottom", "Left")}
    assert sides == {"Top": "0px", "Right": "0px", "Bottom": "1px", "Left": "0px"}
    assert cell.evaluate(style, "borderBottomColor") not in ("rgb(0, 0, 0)", cell.evaluate(style, "color"))
    assert float(cell.evaluate(style, "paddingRight").removesuffix("px")) >= 8


@needs_chromium
def test_an_example_is_shown_when_clicked(open_page: Callable) -> None:
    page = open_page()
    page.get_by_role("button", name=re.compile(r"^Please restart")).first.click()
    wait_for_text(page, "#text", TEXTS[1])


@needs_chromium
def test_an_attack_is_text_everywhere(open_page: Callable) -> None:
    page = open_page()
    page.get_by_role("textbox", name="Text", exact=True).fill(ATTACK)
    wait_for_text(page, "#text", ATTACK)
    page.get_by_text("Every word's probability").click()
    page.get_by_role("tab", name="Methods").click()
    page.get_by_role("textbox", name="Text", exact=True).fill(ATTACK)
    page.get_by_role("button", name="Compare", exact=True).click()
    wait_for_text(page, "#methods", ATTACK)
    page.get_by_role("tab", name="Two texts").click()
    page.get_by_label("First text").fill(ATTACK)
    page.get_by_label("Second text").fill(ATTACK)
    wait_for_text(page, "#pair", ATTACK)
    page.get_by_role("tab", name="Search").click()
    page.get_by_label("Passages").fill(f"Rain fell.\n{ATTACK}")
    page.get_by_label("Question").fill(ATTACK)
    page.get_by_label("Question").press("Enter")
    wait_for_text(page, "#search", ATTACK)
    page.get_by_role("tab", name="Document").click()
    page.get_by_label("Document", exact=True).locator("visible=true").last.fill(ATTACK)
    page.get_by_role("button", name="Read", exact=True).click()
    wait_for_text(page, "#document", ATTACK)
    page.wait_for_timeout(300)
    assert page.title() == "HardKuma"
    assert page.locator(".answer :is(script, img), #numbers :is(script, img), .answer .hk-text b").count() == 0


@needs_chromium
def test_limits_are_said_and_a_long_paste_loses_nothing(open_page: Callable, served: tuple[str, Passes]) -> None:
    page, (_, passes) = open_page(), served
    settled(page, "#text")
    before, box = passes.count, page.get_by_role("textbox", name="Text", exact=True)
    box.focus()
    box.press("Control+a")
    page.keyboard.insert_text(LONG)  # as a paste does: in one piece
    message = page.locator("#text [role=alert]")
    message.wait_for()
    assert f"The text has {len(LONG):,} characters; at most {MAX_CHARACTERS:,} fit here." in message.inner_text()
    assert page.locator("#panel-text .count").inner_text() == f"{len(LONG):,} of at most {MAX_CHARACTERS:,} characters"
    assert box.input_value() == LONG
    box.fill(" ")
    page.get_by_text("Type or paste a text first.").wait_for()
    # Moving the slider now has nothing to show, and must not fail.
    take_share(page, 1)
    assert settled(page, "#text") == "Type or paste a text first."
    assert passes.count == before


@needs_chromium
def test_what_is_too_long_to_be_sent_stays_in_the_browser(open_page: Callable, tmp_path: Path) -> None:
    page, sent = open_page("document"), []
    page.on("request", lambda request: sent.append(request.url))
    (tmp_path / "long.txt").write_text("x" * MAX_BODY)
    page.locator("#panel-document [type=file]").set_input_files(tmp_path / "long.txt")
    page.locator("#document [role=alert]").get_by_text(f"bytes; at most {MAX_BODY:,} fit here.").wait_for()
    assert not sent


@needs_chromium
def test_downloads(open_page: Callable, minilm: HardKumaModel, tmp_path: Path) -> None:
    page = open_page()
    page.get_by_role("textbox", name="Text", exact=True).fill(ATTACK)
    wait_for_text(page, "#text", ATTACK)
    for name in ("JSON", "HTML"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"Download {name}").press("Enter")
        waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
    record = score_texts(minilm, [ATTACK])[0].select()
    saved = json.loads((tmp_path / "gates.json").read_text(encoding="utf-8"))
    assert saved.keys() == record.keys() and saved["text"] == ATTACK
    assert [word["word"] for word in saved["words"]] == [word["word"] for word in record["words"]]
    assert [span["text"] for span in saved["spans"]] == [span["text"] for span in record["spans"]]
    assert saved["rate"] == record["rate"] and saved["windows"] == 1
    # What cannot be saved is said.
    said = page.locator("#panel-text .actions [role=alert]")
    page.get_by_role("textbox", name="Text", exact=True).fill(" ")
    page.get_by_role("button", name="Download JSON").click()
    said.get_by_text("Type or paste a text first.").wait_for()
    page.route("**/save/json", lambda route: route.abort())
    page.get_by_role("textbox", name="Text", exact=True).fill(ATTACK)
    said.get_by_text("Type or paste").wait_for(state="detached")
    page.get_by_role("button", name="Download JSON").click()
    said.get_by_text("The server does not answer.").wait_for()
    page.goto((tmp_path / "gates.html").as_uri())
    assert page.locator(".hk-text").inner_text() == ATTACK and page.title() == "HardKuma gates"


@needs_chromium
def test_two_texts_are_joined_by_lines(open_page: Callable, minilm: HardKumaModel) -> None:
    page = open_page("pair")
    page.get_by_role("button", name=" / ".join(PAIRS[2])[:30]).click()
    wait_for_text(page, "#pair", PAIRS[2][0])
    pair = explain_pair(minilm, *PAIRS[2])
    for number, side in enumerate((pair["a"], pair["b"])):
        shown = page.locator("#pair .hk-text").nth(number)
        assert shown.inner_text() == PAIRS[2][number]
        carrying = shown.locator(".hk-span:not(.hk-different)").all_inner_texts()
        assert carrying == [word["word"] for word in side["words"] if word["carries"]]
        differing = shown.locator(".hk-span.hk-different").all_inner_texts()
        assert differing == [span["text"] for span in side["differences"]]
    assert f"Similarity {pair['similarity']:.2f}." in page.locator("#pair").inner_text()
    strong = [link["strength"] for link in pair["links"] if link["strength"] >= 0.1 * pair["similarity"]]
    widths = [float(path.get_attribute("stroke-width")) for path in page.locator("#pair path").all()]
    assert len(widths) == len(strong) > 0 and widths == sorted(widths, reverse=True)
    # A line starts below the one word and ends above the other.
    ends = page.evaluate(
        """() => { const path = document.querySelector("#pair path"), frame = document.querySelector(".links");
        const [[a, b]] = JSON.parse(document.querySelector(".linked").dataset.links);
        const top = frame.getBoundingClientRect().top;
        const [x, y] = [...document.querySelectorAll("#pair .hk-text")].map((text) => text.querySelectorAll("mark"));
        const length = path.getTotalLength();
        return [path.getPointAtLength(0).y + top - x[a].getBoundingClientRect().bottom,
                y[b].getBoundingClientRect().top - path.getPointAtLength(length).y - top]; }"""
    )
    assert all(-1 <= distance < 12 for distance in ends), ends
    page.get_by_label("Second text").fill("")
    page.locator("#pair [role=alert]").wait_for()


# How far inside a word any point of any line is, in pixels; ends of lines touch their words from outside.
DEEPEST = """() => {
  const words = [...document.querySelectorAll("#pair .linked mark")].flatMap((mark) => [...mark.getClientRects()]);
  const frame = document.querySelector(".links").getBoundingClientRect();
  let deepest = -Infinity;
  for (const path of document.querySelectorAll("#pair path"))
    for (let at = 0; at <= path.getTotalLength(); at += 2) {
      const point = path.getPointAtLength(at), x = point.x + frame.left, y = point.y + frame.top;
      for (const word of words)
        deepest = Math.max(deepest, Math.min(x - word.left, word.right - x, y - word.top, word.bottom - y));
    }
  return deepest; }"""
LONG_PAIR = (
    "The hospital in Lyon asked every nurse to come back from holiday after the storm had cut the roads to the valley.",
    "After the storm a nurse walked for two hours, since no road to the valley was open, and reached the hospital at noon.",
)


@needs_chromium
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_no_line_strikes_through_a_word(width: int, open_page: Callable) -> None:
    page = open_page("pair", width)
    for pair in (PAIRS[0], LONG_PAIR):
        page.get_by_label("First text").fill(pair[0])
        page.get_by_label("Second text").fill(pair[1])
        page.wait_for_function(
            "text => document.querySelectorAll('#pair .hk-text')[1]?.textContent === text "
            "&& document.querySelector('#pair path') && !document.querySelector('.stale')",
            arg=pair[1],
        )
        assert page.locator("#pair path").count() >= 2 and page.evaluate(DEEPEST) < 1
        box = page.locator("#pair .linked").bounding_box()
        for path in page.locator("#pair path").all():
            line = path.bounding_box()
            assert line["x"] >= box["x"] and line["x"] + line["width"] <= box["x"] + box["width"]


@needs_chromium
def test_what_differs_has_a_colour_of_its_own(open_page: Callable) -> None:
    page = open_page("pair")
    colour = "selector => getComputedStyle(document.querySelector(selector)).backgroundColor"
    carries, differs = (page.evaluate(colour, f"#pair .hk-legend .hk-span{which}") for which in ("", ".hk-different"))
    hues = page.evaluate(
        """() => [0, 1, 2, 3, 4, 5].map((hue) => {
        const span = document.querySelector("#pair .hk-legend .hk-span").cloneNode();
        span.classList.add(`hk-hue${hue}`); document.querySelector("#pair .hk-legend").append(span);
        return getComputedStyle(span).backgroundColor; })"""
    )
    assert carries != differs and carries in hues and differs not in hues


@needs_chromium
def test_the_page_says_what_is_shown_and_by_what(browser: Any) -> None:
    model = load_released()[0]
    with serving(build_app(model)) as url:
        page = browser.new_page()
        page.goto(url, timeout=180_000)
        header = page.locator("header").inner_text()
        assert f"released head of HardKuma {__version__} on sentence-transformers/all-MiniLM-L6-v2" in header
        assert page.locator("#settings label:visible").all_inner_texts() == [
            "important words", "names", "both", "automatic", "share of words", "keep … of the meaning",
        ]  # fmt: skip
        explained = page.locator("#settings .explained").inner_text()
        assert "Important words still say what the text is about" in explained and "Names are words" in explained
        page.get_by_role("link", name="Documentation").click()
        assert "HardKuma" in page.inner_text("body")
        page.close()


@needs_chromium
def test_texts_with_nothing_in_common(open_page: Callable) -> None:
    page = open_page("pair")
    page.get_by_role("button", name=" / ".join(PAIRS[3])[:30]).click()
    wait_for_text(page, "#pair", PAIRS[3][0])
    assert "These texts have nothing in common" in page.inner_text("#pair")
    assert page.locator("#pair path").count() == page.locator("#pair .hk-span").count() == 0


@needs_chromium
def test_search_shows_the_nearest_lines_and_their_words(open_page: Callable, minilm: HardKumaModel, tmp_path: Path) -> None:
    page = open_page("search")
    best = SearchIndex.build(minilm, PASSAGES).search(minilm, QUESTIONS[0], 1)[0]
    wait_for_text(page, "#search", best.passage.text)
    match = page.locator("#search li").first
    assert match.locator(".hk-span").all_inner_texts() == best.words != []
    assert match.locator(".score").inner_text().split() == [f"{best.similarity:.2f}", "line", "4"]
    page.get_by_label("Question").fill(QUESTIONS[3])
    page.keyboard.press("Enter")
    page.get_by_text("Nothing here answers that").wait_for()
    (tmp_path / "lines.txt").write_text("The battle ended in 1815.\n\nSoup is served at noon.\n", encoding="utf-8")
    page.locator("#panel-search [type=file]").set_input_files(tmp_path / "lines.txt")
    page.wait_for_function("() => document.querySelectorAll('#search li').length === 2")
    assert page.get_by_label("Passages").input_value() == (tmp_path / "lines.txt").read_text(encoding="utf-8")
    (tmp_path / "many.txt").write_text("a line\n" * 2001, encoding="utf-8")  # typing so many takes a browser 12 seconds
    page.locator("#panel-search [type=file]").set_input_files(tmp_path / "many.txt")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("There are 2,001 lines; at most 2,000 fit here.").wait_for()


@needs_chromium
def test_a_document_is_a_heat_map_with_its_terms(open_page: Callable, minilm: HardKumaModel) -> None:
    page = open_page("document")
    wait_for_text(page, "#document", DOCUMENT)
    terms = find_terms(minilm, [DOCUMENT])
    assert page.locator(".terms button").all_inner_texts() == [term["text"] for term in terms]
    page.locator(".terms button").first.click()
    here = page.locator(".heat .here")
    assert terms[0]["text"].lower() in here.inner_text().lower() and page.locator(".heat .found").count() >= 1
    box = page.locator("#long")
    box.focus()
    box.press("Control+a")
    page.keyboard.insert_text(LONG)
    assert page.locator("#panel-document .count").inner_text() == f"{len(LONG):,} of at most 200,000 characters"
    page.get_by_role("button", name="Read", exact=True).click()
    page.wait_for_function("n => document.querySelector('#document .hk-text')?.textContent.length === n", arg=len(LONG))
    assert page.text_content("#document .hk-text") == box.input_value() == LONG


@needs_chromium
def test_what_is_out_of_date_is_dimmed_and_a_long_wait_is_said(open_page: Callable) -> None:
    page = open_page("methods")
    answer, panel = page.locator("#methods"), page.locator("#panel-methods")
    page.locator("#methods section").nth(3).wait_for()
    page.get_by_role("textbox", name="Text", exact=True).fill("Something else.")
    page.wait_for_function("() => getComputedStyle(document.querySelector('#methods')).opacity < 0.5")
    assert "lighthouse" in answer.inner_text()  # still there, but dimmed
    page.route("**/show/methods", lambda route: page.wait_for_timeout(900) or route.continue_())
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_selector("#panel-methods.busy")
    wait_for_text(page, "#methods", "Something else.")
    assert "busy" not in panel.get_attribute("class").split()
    page.wait_for_function("() => getComputedStyle(document.querySelector('#methods')).opacity === '1'")
    page.unroute("**/show/methods")
    page.route("**/show/methods", lambda route: route.abort())
    page.get_by_role("textbox", name="Text", exact=True).fill("The server is gone.")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("The server does not answer.").wait_for()


@needs_chromium
def test_other_methods_side_by_side(open_page: Callable, served: tuple[str, Passes], minilm: HardKumaModel) -> None:
    page, (_, passes) = open_page("methods"), served
    page.locator("#methods section").nth(3).wait_for()
    headings = page.locator("#methods h3").all_inner_texts()
    assert headings == ["HardKuma gates", "Attention received", "Norm of the state", "Leave one word out"]
    boxes = [section.bounding_box() for section in page.locator("#methods section").all()]
    assert len({box["x"] for box in boxes}) == len({box["y"] for box in boxes}) == 2  # two by two
    captions = page.locator("#methods section .hk-caption").all_inner_texts()
    assert all(re.match(r"\d+\.\d\d s, \d+ pass(es)? of the encoder", caption) for caption in captions)
    words, own = len(re.findall(r"\w+", TEXTS[2])), score_texts(minilm, [TEXTS[2]])[0].select()
    marked = sum(word["selected"] for word in own["words"])
    assert all(f"of {marked} words in common" in caption for caption in captions[1:])
    # Every method has the same shades, in another order.
    shades = (
        "section => [...section.querySelectorAll('mark')].map(mark => mark.style.getPropertyValue('--share')).sort().join()"
    )
    assert len({section.evaluate(shades) for section in page.locator("#methods section").all()}) == 1
    before = passes.count
    take_share(page, 30)
    half = (words + 1) // 2
    page.wait_for_function(f"() => document.querySelector('#methods').innerText.includes('of {half} words in common')")
    settled(page, "#methods")
    assert passes.count == before
    page.get_by_role("textbox", name="Text", exact=True).fill("x " * MAX_CHARACTERS_COMPARED)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.locator("#methods [role=alert]").wait_for()


# A mouse is never used in tests of the keyboard, so what has focus is found as a keyboard user finds it.
FOCUSED = """() => { const e = document.activeElement;
  const s = getComputedStyle(e.matches(".choices input") ? e.nextElementSibling : e);
  const name = e.innerText || e.ariaLabel || e.value || e.type;
  return [name, e.type ?? e.tagName, s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2]; }"""


def tab_through(page: Any, number: int) -> str:
    """What the key Tab reaches; everything shows that it has the focus."""
    reached = []
    for _ in range(number):
        page.keyboard.press("Tab")
        name, kind, outlined = page.evaluate(FOCUSED)
        assert outlined or kind == "BODY", f"no focus is seen on {name}"
        reached.append(f"{name} {kind}")
    return " | ".join(reached)


@needs_chromium
def test_the_keyboard_reaches_everything(open_page: Callable) -> None:
    page = open_page()
    seen = tab_through(page, 12)
    for name in (
        "Documentation",
        "One text",
        "textarea",
        "radio",
        "Download JSON",
        "Download HTML",
        "Every word's probability",
    ):
        assert name in seen, (name, seen)
    assert all(example[:20] in seen for example in TEXTS), seen
    page.get_by_role("tab", name="One text").focus()
    for number in range(1, len(TABS) + 1):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.innerText") == TABS[number % len(TABS)]
        assert page.get_by_role("tabpanel").get_attribute("aria-labelledby") == page.evaluate("document.activeElement.id")
    page.keyboard.press("ArrowRight")
    seen = tab_through(page, 9)
    assert seen.count("textarea") == 2 and all(a[:20] in seen for a, _ in PAIRS), seen
    page.get_by_label("Second text").fill("A dog.")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => document.querySelectorAll('#pair .hk-text')[1]?.textContent === 'A dog.'")


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until this has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"the key Tab does not reach {selector}")


@needs_chromium
def test_every_tab_works_by_the_keyboard_alone(open_page: Callable) -> None:
    page = open_page("search")
    tab_to(page, "#question")
    page.keyboard.press("Control+a")
    page.keyboard.type(QUESTIONS[1])
    page.keyboard.press("Enter")
    wait_for_text(page, "#search", PASSAGES[1])
    tab_to(page, "#panel-search .example")
    page.get_by_role("tab", name="Search").focus()
    page.keyboard.press("ArrowRight")
    tab_to(page, "#long")
    page.keyboard.press("Control+a")
    page.keyboard.type("The kraken is a sea monster. No kraken was ever caught.")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => document.querySelector('#document .hk-text')?.textContent.startsWith('The kraken')")
    tab_to(page, ".heat")
    tab_to(page, ".terms button")
    page.keyboard.press("Enter")
    assert page.locator(".heat .here").count() == 1
    page.get_by_role("tab", name="Document").focus()
    page.keyboard.press("End")
    tab_to(page, "#compared")
    page.keyboard.press("Control+a")
    page.keyboard.type("Rain again.")
    tab_to(page, "#panel-methods .go")
    page.keyboard.press("Space")
    wait_for_text(page, "#methods", "Rain again.")


@needs_chromium
@pytest.mark.parametrize(
    ("tab", "box"), [("pair", "#first"), ("pair", "#second"), ("search", "#passages"), ("methods", "#compared")]
)
def test_a_long_paste_loses_nothing_in_any_box(tab: str, box: str, open_page: Callable) -> None:
    page = open_page(tab)
    page.locator(box).focus()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(LONG)
    page.keyboard.press("Control+Enter")
    if tab == "search":
        page.get_by_text("The nearest of 420 passages.").or_(page.get_by_text("Nothing here answers that.")).wait_for()
    else:
        page.get_by_text(f"The text has {len(LONG):,} characters; at most {MAX_CHARACTERS_COMPARED:,} fit here.").wait_for()
    assert page.locator(box).input_value() == LONG


CONTRAST = """(selector) => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const paint = (colours) => {  // the browser itself lays translucent colours over each other
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const part = rgb[i] / 255;
    return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
  return Math.min(...[...document.querySelectorAll(selector)].map((element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(getComputedStyle(e).backgroundColor);
    const [a, b] = [light(paint(["white", ...layers])), light(paint([getComputedStyle(element).color]))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


@needs_chromium
@pytest.mark.parametrize(
    ("width", "scheme"), [(width, scheme) for width in (320, 390, 1200) for scheme in ("light", "dark")]
)
def test_readable_in_light_and_dark_and_on_a_phone(width: int, scheme: str, open_page: Callable) -> None:
    page = open_page("text", width, scheme)
    page.get_by_role("textbox", name="Text", exact=True).fill("w" * 300)
    wait_for_text(page, "#text", "w" * 300)
    narrow = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(narrow), "one must scroll sideways"
    page.get_by_role("textbox", name="Text", exact=True).fill(TEXTS[0])
    wait_for_text(page, "#text", TEXTS[0])
    # A full shade, whatever the probabilities are, in every hue.
    page.evaluate(
        """document.querySelectorAll('#text mark').forEach((mark, i) => {
        mark.style.setProperty('--share', '100%'); mark.classList.add(`hk-hue${i % 6}`); })"""
    )
    for place in ("#text mark", "#text .hk-caption", ".hk-legend span", "header p", ".choices span", ".example", "summary"):
        assert page.evaluate(CONTRAST, place) >= 4.5, place
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(v => v < 60)")
    assert dark == (scheme == "dark")
    for name in TABS:
        tab = page.get_by_role("tab", name=name)
        tab.click()
        boxes = [other.bounding_box() for other in page.get_by_role("tab").all()]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes), name
        assert len({box["y"] for box in boxes}) == 1, "the tabs are in one line"
        page.wait_for_selector(f"#{tab.get_attribute('aria-controls').removeprefix('panel-')} > *")
        assert page.evaluate(narrow), name


def fetch(address: str, body: bytes | None = None) -> tuple[dict[str, str], str]:
    with urllib.request.urlopen(urllib.request.Request(address, body)) as answer:
        return dict(answer.headers), answer.read().decode()


def test_nothing_leaves_this_machine(served: tuple[str, Passes]) -> None:
    assert served[0].startswith("http://127.0.0.1:")
    headers, page = fetch(served[0])
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "http" not in policy and "eval" not in policy
    assert "script-src 'self';" in policy
    _, style = fetch(f"{served[0]}page.css")
    _, script = fetch(f"{served[0]}page.js")
    assert not re.search(r"https?:|//\w", page) and not re.search(r"https?:|url\(|@import", style)
    assert re.findall(r"https?://\S+?(?=[\"'])", script) == ["http://www.w3.org/2000/svg"]  # a name, not an address


def test_a_query_takes_what_it_knows() -> None:
    assert Query.parse(b'{"text": "a", "percent": null, "other": 1}') == Query("a")


def test_the_encoder_runs_once_for_a_text(make_model: Callable) -> None:
    model = make_model()
    demo, passes = Demo(model), Passes(model)
    scored = demo.score("marie curie moved to paris in 1891 .")
    assert passes.count == 1 and demo.score("marie curie moved to paris in 1891 .") is scored
    shown = {show_text(demo.records(scored.text, None, percent)) for percent in range(5, 51, 5)}
    assert passes.count == 1 and len(shown) > 2


def test_the_demo_of_several_selectors(make_two: Callable) -> None:
    model = make_two()
    text, demo = "marie curie moved to paris in 1891 .", Demo(model)
    for name, options in (("meaning", {}), ("meaning", {"selector": "meaning"}), ("entities", {"selector": "entities"})):
        expected = score_texts(model, [text], selector=name)[0]
        assert demo.score(text, **options) == expected
        assert Demo(model, name).score(text) == expected
        first = demo.compare(text, **options)[0]
        assert first.title == f"HardKuma gates: {name}" and first.raw == expected.probabilities
        pair = demo.pair(text, "marie moved", 30, **options)
        assert [word["probability"] for word in pair["a"]["words"]] == pytest.approx(expected.probabilities, abs=1e-6)


def chooser(page: str) -> tuple[bool, dict[str, bool]]:
    """Whether there is a choice of selectors, and which are offered and chosen."""
    hidden = '<fieldset data-only="text document" hidden><legend>Show' in page
    return not hidden, {name: bool(on) for name, on in re.findall(r'name="selector" value="(\w+)"( checked)?', page)}


def test_the_page_has_a_choice_where_there_are_several(make_two: Callable, make_model: Callable) -> None:
    assert chooser(render_index(Demo(make_two()))) == (True, {"meaning": True, "entities": False, "all": False})
    assert chooser(render_index(Demo(make_two(), "entities")))[1] == {"meaning": False, "entities": True, "all": False}
    assert not chooser(render_index(Demo(make_model())))[0]


@needs_chromium
def test_choosing_a_selector_colours_by_it(browser: Any, make_two: Callable) -> None:
    model = make_two()
    page = browser.new_page()
    page.set_default_timeout(180_000)
    marks = "[...document.querySelectorAll('#text mark')].map((mark) => mark.title)"
    with serving(build_app(model)) as url:
        page.goto(url, timeout=180_000)
        page.wait_for_selector("#text .hk-text")
        scored = {name: score_texts(model, [TEXTS[0]], selector=name)[0].probabilities for name in ("entities", "meaning")}
        for name, values in scored.items():
            page.get_by_text({"meaning": "important words", "entities": "names"}[name], exact=True).click()
            titles = [f"probability {value:.2f}" for value in values]
            page.wait_for_function(f"(titles) => {marks}.join() === titles.join()", arg=titles)
        page.get_by_text("both", exact=True).click()
        both = list(zip(scored["meaning"], scored["entities"], strict=True))
        titles = [f"important words {first:.2f}, names {second:.2f}" for first, second in both]
        page.wait_for_function(f"(titles) => {marks}.join() === titles.join()", arg=titles)
        hues = [mark.get_attribute("class") for mark in page.locator("#text mark").all()]
        assert hues == [f"hk-hue{int(second > first)}" for first, second in both]
        assert page.locator("#text .hk-legend .hk-span").all_inner_texts() == ["important words", "names", "word"]
        # A document has the colours of all too; tabs that show one selector have no choice, and leave it as it was.
        for tab, offered in (("Document", True), ("Two texts", False), ("Search", False), ("Methods", False)):
            page.get_by_role("tab", name=tab).click()
            assert page.locator("[name=selector]:checked").get_attribute("value") == "all"
            assert page.get_by_text("Show", exact=True).is_visible() == offered, tab
        page.get_by_role("tab", name="Document").click()
        page.wait_for_selector("#document .terms .swatch")
        assert page.locator("#document .hk-legend .hk-span").all_inner_texts() == ["important words", "names", "word"]
        page.close()


def test_a_document_is_encoded_once_for_every_selector_and_share(make_two: Callable) -> None:
    model = make_two()
    demo, passes = Demo(model), Passes(model)
    text = "marie curie moved to paris .\nParis is old . Marie stayed ."
    first = demo.document(text)
    assert passes.count == 1
    for name in ("meaning", "entities"):
        for percent in (None, 20, 50):
            shown, found = demo.document(text, percent, name)
            record, terms = shown[name], [term for _, term in found]
            assert list(shown) == [name] and {whose for whose, _ in found} <= {name}
            assert terms == find_terms(model, [text], selector=name)
            expected = score_texts(model, text.replace(" . ", " .\n").split("\n"), selector=name)
            probabilities = [word["probability"] for word in record["words"]]
            assert probabilities == [value for item in expected for value in item.probabilities]
    passes.count = 0
    assert demo.document(text) == first and demo.document(text, 30, "entities") and passes.count == 0
    scored, terms = demo.document(text, 50, "all")
    single = {name: demo.document(text, 50, name) for name in ("meaning", "entities")}
    assert scored == {name: shown[name] for name, (shown, _) in single.items()} and passes.count == 0
    scores: dict[str, float] = {}
    for _, found in single.values():
        for _, term in found:
            scores[term["text"].casefold()] = max(term["score"], scores.get(term["text"].casefold(), 0.0))
    assert [term["score"] for _, term in terms] == sorted(scores.values(), reverse=True)[: len(terms)]
    assert len({term["text"].casefold() for _, term in terms}) == len(terms)
    with pytest.raises(ValueError, match="nouns"):
        demo.document(text, None, "nouns")


def of_selectors(**probabilities: list[float]) -> dict[str, Record]:
    return {name: ScoredText("Bob ran", [(0, 3), (4, 7)], row, 1, 0.5).select() for name, row in probabilities.items()}


def test_every_word_that_a_selector_selects_is_shown_as_selected() -> None:
    dice = random.Random(0)
    text = "a b c d e f g h"
    spans = [(i, i + 1) for i in range(0, len(text), 2)]
    for _ in range(200):
        scored = {name: ScoredText(text, spans, [dice.random() for _ in spans], 1, 0.5) for name in ("x", "y", "z")}
        own = [item.select() for item in scored.values()]
        record = merge_selectors(dict(zip(scored, own, strict=True)))
        chosen = [any(one["words"][i]["selected"] for one in own) for i in range(len(spans))]
        assert [word["selected"] for word in record["words"]] == chosen
        drawn = [i for span in record["spans"] for i in range(span["start"], span["end"])]
        assert sorted(set(drawn)) == drawn, "in reading order, none twice"
        assert [start in drawn for start, _ in spans] == chosen
        by_hue = [{hue for hue, one in enumerate(own) if one["words"][i]["selected"]} for i in range(len(spans))]
        for span in record["spans"]:  # every selector that selects a word has its colour on it
            for i, (start, _) in enumerate(spans):
                assert not span["start"] <= start < span["end"] or by_hue[i] == {hue for hue, _ in span["hues"]}
        assert record["listed"] == [
            span | {"selector": name} for name, one in zip("xyz", own, strict=True) for span in one["spans"]
        ]


def test_the_first_example_of_all_selectors_is_whole_and_has_both_colours() -> None:
    demo = Demo(load_released()[0])
    records = demo.records(TEXTS[0], "all")
    selected = {word["word"] for record in records.values() for word in record["words"] if word["selected"]}
    assert "Prize" in selected
    for html in (show_text(records)[0], save_text(records, "html")["content"]):
        assert f"{len(selected)} of 20 words: " in html and "Nobel Prize 0." in html and "names: Marie Curie 0." in html
        drawn = " ".join(re.sub("<.*?>", "", span) for span in re.findall(r'<span class="hk-span.*?</span>', html))
        assert selected <= set(drawn.split())
        both = re.search(
            r'style="background:linear-gradient\(([^"]*)" role="group" aria-label="([^"]*)"><mark[^>]*>Warsaw', html
        )
        assert "--hue0" in both[1] and "--hue1" in both[1] and "0% 50%" in both[1]
        assert re.fullmatch(r"selected, important words 0\.\d\d, names 0\.\d\d", both[2])


def test_a_reason_is_that_of_what_is_shown() -> None:
    reason = "no word is more probable than 0.5"
    assert "reason" not in merge_selectors(of_selectors(names=[0.1, 0.1], meaning=[0.9, 0.1]))
    assert reason not in show_text(of_selectors(names=[0.1, 0.1], meaning=[0.9, 0.1]))[0]
    assert merge_selectors(of_selectors(names=[0.1, 0.1], meaning=[0.2, 0.1]))["reason"] == reason
    assert reason in show_text(of_selectors(names=[0.1, 0.1], meaning=[0.2, 0.1]))[0]


def test_hues_come_round_again_in_the_legend_too() -> None:
    names = {f"kind{number}": [0.1, 0.9] for number in range(HUES + 1)}
    shown = show_text(of_selectors(**names))[0]
    assert f">kind{HUES}</span>" in shown and f"hk-hue{HUES}" not in shown


def test_a_file_has_the_gates_that_are_shown(make_two: Callable) -> None:
    model = make_two()
    answers, text = Answers(Demo(model)), "marie curie moved to paris in 1891 ."
    for name in (None, "meaning", "entities", "all"):
        query = Query(text, selector=name, percent=30)
        expected = gate_records(model, [text], rate=0.3, selector=name)[0]
        assert json.loads(answers.files["json"](query)["content"]) == expected, name
        page = answers.files["html"](query)["content"]
        assert page.count("<mark") == len(expected["words"]) and page.endswith("</html>\n")
        assert (">names</span>" in page and "important words 0." in page) == (name == "all")


def test_a_document_has_the_words_of_its_sentences(make_model: Callable) -> None:
    demo, text = Demo(make_model()), "marie curie moved to paris .\n\n  She stayed. Nobody knew why ?"
    record = demo.document(text)[0][demo.selector]
    sentences = ["marie curie moved to paris .", "She stayed.", "Nobody knew why ?"]
    expected = score_texts(demo.model, sentences)
    assert [word["word"] for word in record["words"]] == re.findall(r"\w+", text) and record["text"] == text
    probabilities = [word["probability"] for word in record["words"]]
    assert probabilities == [value for item in expected for value in item.probabilities]


def test_a_document_has_the_gates_that_like_words_share_in_its_sentences() -> None:
    sentences = [
        ScoredText(text, [(0, 4)], [0.5], 1, 0.5, weights=[share]) for text, share in (("Rain", 0.9), ("Snow", 0.7))
    ]
    assert _join_sentences("Rain Snow", sentences).weights == [0.9, 0.7]


def test_passages_are_lines_and_long_ones_are_cut(make_model: Callable) -> None:
    demo = Demo(make_model())
    number, matches = demo.search("\n marie moved \n" + "It rained all day. " * 40, "marie moved")
    assert number == 3 and matches[0].passage.text == "marie moved" and matches[0].passage.row == 2
    assert {match.passage.row for match in matches} == {2, 3}
    for passages, question, message in (
        ("", "why", "Paste some lines"),
        ("a", " ", "Ask a question"),
        ("a", "b" * 1001, "1,001"),
    ):
        with pytest.raises(ValueError, match=message):
            demo.search(passages, question)
    assert check_lines("a\n" * 2000) == "a\n" * 2000


def test_texts_that_are_compared_have_few_words_and_whole_characters() -> None:
    with pytest.raises(ValueError, match="The text has 151 words; at most 150"):
        check_compared("the " * 151)
    assert check_compared("half \ud83d") == "half \ufffd" and as_fraction(float("nan")) == 0.05
