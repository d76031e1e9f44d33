"""The demo, in a real browser: typing, re-selection without encoding, pairs, other methods, downloads, attacks, looks."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the demo needs gradio: pip install 'hardkuma[demo]'")

from hardkuma import HardKumaModel
from hardkuma.demo.html import show_record
from hardkuma.demo.limits import MAX_CHARACTERS, MAX_CHARACTERS_COMPARED, as_fraction, check_compared
from hardkuma.demo.page import EXAMPLES, PAIRS, build_app, launch_options
from hardkuma.demo.scores import Demo
from hardkuma.pairs_hardkuma import explain_pair
from hardkuma.words_hardkuma import score_texts
from tests.browser import chromium, needs_chromium

ATTACK = (
    "<script>document.title='broken'</script> <img src=x onerror=\"document.title='broken'\"> </p> &amp; "
    "${document.title='broken'} {{#each value}}x{{/each}} @children `quoted` <b>bold</b>"
)
# A mouse is never used in tests of the keyboard, so what has focus is found as a keyboard user finds it.
FOCUSED = "document.activeElement.innerText || document.activeElement.ariaLabel || document.activeElement.type"


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
    app = build_app(minilm)
    _, url, _ = app.launch(**launch_options(prevent_thread_lock=True, quiet=True))
    yield url, passes
    app.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Any, served: tuple[str, Passes]) -> Iterator[Callable[..., Any]]:
    """open_page(width, scheme): a fresh visitor; the test fails if the page asked anyone else for anything."""
    contexts, foreign = [], []

    def open_page(width: int = 1200, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(180_000)  # on a busy machine a page takes its time
        page.on(
            "request",
            lambda request: request.url.startswith((served[0], "blob:", "data:", "file:")) or foreign.append(request.url),
        )
        page.goto(served[0], timeout=180_000)
        page.wait_for_selector("#gates .hk-text")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not foreign


def wait_for_text(page: Any, place: str, text: str) -> None:
    page.wait_for_function(
        "([place, text]) => document.querySelector(place + ' .hk-text')?.textContent === text", arg=[place, text]
    )


def settled(page: Any, place: str) -> str:
    """The text of a place when it has not changed for a while."""
    before = None
    while (now := page.inner_text(place)) != before:
        before = now
        page.wait_for_timeout(400)
    return now


@needs_chromium
def test_typing_shows_the_words(open_page: Callable, minilm: HardKumaModel) -> None:
    page, text = open_page(), "Ada Lovelace wrote to Charles Babbage about the engine in 1843."
    wait_for_text(page, "#gates", EXAMPLES[0])
    page.get_by_label("Text").first.fill("")
    page.get_by_label("Text").first.type(text)
    wait_for_text(page, "#gates", text)
    record = score_texts(minilm, [text])[0].select(rate=0.2)
    assert page.locator("#gates mark").all_inner_texts() == [word["word"] for word in record["words"]]
    assert page.locator("#gates .hk-span").all_inner_texts() == [span["text"] for span in record["spans"]]
    titles = [mark.get_attribute("title") for mark in page.locator("#gates mark").all()]
    assert titles == [f"probability {word['probability']:.2f}" for word in record["words"]]


@needs_chromium
def test_the_slider_reselects_without_encoding(
    open_page: Callable, served: tuple[str, Passes], minilm: HardKumaModel
) -> None:
    page, (_, passes) = open_page(), served
    settled(page, "#gates")
    before = passes.count
    slider = page.get_by_role("slider").first
    slider.focus()
    for _ in range(30):
        slider.press("ArrowRight")
    page.wait_for_function("document.querySelector('#gates').innerText.includes('10 of 20 words')")
    for _ in range(60):
        slider.press("ArrowLeft")
    page.wait_for_function("document.querySelector('#gates').innerText.includes('1 of 20 words')")
    settled(page, "#gates")
    assert passes.count == before
    record = score_texts(minilm, [EXAMPLES[0]])[0].select(rate=0.05)
    assert page.locator("#gates .hk-span").all_inner_texts() == [span["text"] for span in record["spans"]]


@needs_chromium
def test_an_example_is_shown_when_clicked(open_page: Callable) -> None:
    page = open_page()
    page.get_by_role("button", name=re.compile(r"^Please restart")).first.click()
    wait_for_text(page, "#gates", EXAMPLES[1])


@needs_chromium
def test_an_attack_is_text_everywhere(open_page: Callable) -> None:
    page = open_page()
    page.get_by_label("Text").first.fill(ATTACK)
    wait_for_text(page, "#gates", ATTACK)
    page.get_by_text("Every word's probability").click()
    page.get_by_role("tab", name="Methods").click()
    page.get_by_label("Text").locator("visible=true").fill(ATTACK)
    page.get_by_role("button", name="Compare", exact=True).click()
    wait_for_text(page, "#comparison", ATTACK)
    page.get_by_role("tab", name="Two texts").click()
    page.get_by_label("First text").fill(ATTACK)
    page.get_by_label("Second text").fill(ATTACK)
    page.get_by_role("button", name="Explain the similarity").click()
    wait_for_text(page, "#pair", ATTACK)
    page.wait_for_timeout(500)
    assert page.title() == "HardKuma"
    assert page.locator(":is(#gates, #numbers, #comparison) :is(script, img, b), #pair :is(script, img)").count() == 0


@needs_chromium
def test_limits_are_said(open_page: Callable, served: tuple[str, Passes]) -> None:
    page, (_, passes) = open_page(), served
    settled(page, "#gates")
    before = passes.count
    page.get_by_label("Text").first.fill("word " * (MAX_CHARACTERS // 5 + 1))
    message = page.locator("#gates [role=alert]")
    message.wait_for()
    assert f"The text has {MAX_CHARACTERS + 5:,} characters; at most {MAX_CHARACTERS:,} fit here." in message.inner_text()
    page.get_by_label("Text").first.fill(" ")
    page.get_by_text("Type or paste a text first.").wait_for()
    # Moving the slider now has nothing to show, and must not fail.
    page.get_by_role("slider").first.press("ArrowRight")
    assert settled(page, "#gates") == "Type or paste a text first."
    assert passes.count == before


@needs_chromium
def test_downloads(open_page: Callable, minilm: HardKumaModel, tmp_path: Path) -> None:
    page = open_page()
    page.get_by_label("Text").first.fill(ATTACK)
    wait_for_text(page, "#gates", ATTACK)
    for name in ("JSON", "HTML"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"Download {name}").press("Enter")
        waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
    record = score_texts(minilm, [ATTACK])[0].select(rate=0.2)
    saved = json.loads((tmp_path / "gates.json").read_text(encoding="utf-8"))
    assert saved.keys() == record.keys() and saved["text"] == ATTACK
    assert [word["word"] for word in saved["words"]] == [word["word"] for word in record["words"]]
    assert [span["text"] for span in saved["spans"]] == [span["text"] for span in record["spans"]]
    assert saved["rate"] == record["rate"] and saved["windows"] == 1
    page.goto((tmp_path / "gates.html").as_uri())
    assert page.locator(".hk-text").inner_text() == ATTACK and page.title() == "HardKuma gates"


@needs_chromium
def test_two_texts(open_page: Callable, minilm: HardKumaModel) -> None:
    page = open_page()
    page.get_by_role("tab", name="Two texts").click()
    page.get_by_role("button", name=" / ".join(PAIRS[1])[:30]).click()
    page.wait_for_function("text => document.querySelectorAll('textarea')[1].value === text", arg=PAIRS[1][0])
    page.get_by_role("button", name="Explain the similarity").click()
    page.locator("#pair .hk-record").nth(1).wait_for()
    pair = explain_pair(minilm, *PAIRS[1], rate=0.2)
    for place, side in enumerate((pair["a"], pair["b"])):
        shown = page.locator("#pair .hk-record").nth(place)
        assert shown.locator(".hk-text").inner_text() == PAIRS[1][place]
        assert shown.locator(".hk-span").all_inner_texts() == [word["word"] for word in side["words"] if word["carries"]]
    assert f"Similarity {pair['similarity']:.2f}." in page.locator("#pair").inner_text()
    slider = page.get_by_role("slider").locator("visible=true")
    slider.focus()
    for _ in range(30):
        slider.press("ArrowRight")
    more = [word["word"] for word in explain_pair(minilm, *PAIRS[1], rate=0.5)["a"]["words"] if word["carries"]]
    page.wait_for_function(
        "n => document.querySelector('#pair .hk-record').querySelectorAll('.hk-span').length === n", arg=len(more)
    )
    page.get_by_label("Second text").fill("")
    page.get_by_role("button", name="Explain the similarity").click()
    page.locator("#pair [role=alert]").wait_for()


@needs_chromium
def test_other_methods_side_by_side(open_page: Callable, served: tuple[str, Passes]) -> None:
    page, (_, passes) = open_page(), served
    page.get_by_role("tab", name="Methods").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.locator("#comparison section").nth(3).wait_for()
    headings = page.locator("#comparison h3").all_inner_texts()
    assert headings == ["HardKuma gates", "Attention received", "Norm of the state", "Leave one word out"]
    words = len(re.findall(r"\w+", EXAMPLES[1]))
    before = passes.count
    slider = page.get_by_role("slider").locator("visible=true")
    slider.focus()
    for _ in range(30):
        slider.press("ArrowRight")
    half = (words + 1) // 2
    page.wait_for_function(f"document.querySelector('#comparison').innerText.includes('of {half} words in common')")
    settled(page, "#comparison")
    assert passes.count == before
    page.get_by_label("Text").locator("visible=true").fill("x " * MAX_CHARACTERS_COMPARED)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.locator("#comparison [role=alert]").wait_for()


@needs_chromium
def test_the_keyboard_reaches_everything(open_page: Callable) -> None:
    page = open_page()
    page.locator("body").press("Tab")
    reached = []
    for _ in range(30):
        reached.append(page.evaluate(FOCUSED))
        page.keyboard.press("Tab")
    seen = " | ".join(map(str, reached))
    for name in ("One text", "textarea", "range", "Download JSON", "Download HTML", "Every word's probability"):
        assert name in seen, (name, seen)
    assert all(example[:20] in seen for example in EXAMPLES)
    page.get_by_role("tab", name="One text").press("ArrowRight")
    page.get_by_role("tab", name="Two texts").press("Enter")
    reached = []
    for _ in range(12):
        reached.append(page.evaluate(FOCUSED))
        page.keyboard.press("Tab")
    seen = " | ".join(map(str, reached))
    assert "Explain the similarity" in seen and all(a[:20] in seen for a, _ in PAIRS), seen


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
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_readable_in_light_and_dark_and_on_a_phone(width: int, scheme: str, open_page: Callable) -> None:
    page = open_page(width, scheme)
    page.get_by_label("Text").first.fill("w" * 300)
    wait_for_text(page, "#gates", "w" * 300)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "one must scroll sideways"
    page.get_by_label("Text").first.fill(EXAMPLES[0])
    wait_for_text(page, "#gates", EXAMPLES[0])
    # A full shade, whatever the probabilities are.
    page.evaluate("document.querySelectorAll('#gates mark').forEach(mark => mark.style.setProperty('--share', '100%'))")
    for place in ("#gates mark", "#gates .hk-caption", ".hk-legend span"):
        assert page.evaluate(CONTRAST, place) >= 4.5, place
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(v => v < 60)")
    assert dark == (scheme == "dark")


def test_nothing_leaves_this_machine(served: tuple[str, Passes]) -> None:
    assert served[0].startswith("http://127.0.0.1:")
    with urllib.request.urlopen(served[0]) as answer:
        policy, page = answer.headers["Content-Security-Policy"], answer.read().decode()
    assert "default-src 'self'" in policy and "http" not in policy
    assert not re.search(r"fonts\.g(oogleapis|static)\.com|cdnjs|<script[^>]+src=[\"']https?:", page)
    options = launch_options()
    assert options["share"] is False


def test_the_encoder_runs_once_for_a_text(make_model: Callable) -> None:
    model = make_model()
    demo, passes = Demo(model), Passes(model)
    scored = demo.score("marie curie moved to paris in 1891 .")
    assert passes.count == 1
    shown = {show_record(scored, percent) for percent in range(5, 51, 5)}
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


def chooser(app: Any) -> dict[str, Any]:
    [radio] = [part["props"] for part in app.config["components"] if part["props"].get("elem_id") == "selector"]
    return radio


def test_the_page_has_a_choice_where_there_are_several(make_two: Callable, make_model: Callable) -> None:
    shown = chooser(build_app(make_two()))
    assert [label for label, _ in shown["choices"]] == ["meaning", "entities"]
    assert shown["visible"] and shown["value"] == "meaning"
    assert chooser(build_app(make_two(), "entities"))["value"] == "entities"
    assert not chooser(build_app(make_model()))["visible"]


@needs_chromium
def test_choosing_a_selector_colours_by_it(browser: Any, make_two: Callable) -> None:
    model = make_two()
    app = build_app(model)
    _, url, _ = app.launch(**launch_options(prevent_thread_lock=True, quiet=True))
    page = browser.new_page()
    page.set_default_timeout(180_000)
    try:
        page.goto(url, timeout=180_000)
        page.wait_for_selector("#gates .hk-text")
        for name in ("entities", "meaning"):
            page.get_by_label(name, exact=True).check()
            scored = score_texts(model, [EXAMPLES[0]], selector=name)[0]
            titles = [f"probability {value:.2f}" for value in scored.probabilities]
            marks = "[...document.querySelectorAll('#gates mark')].map((mark) => mark.title)"
            page.wait_for_function(f"(titles) => {marks}.join() === titles.join()", arg=titles)
    finally:
        page.close()
        app.close()


def test_texts_that_are_compared_have_few_words_and_whole_characters() -> None:
    with pytest.raises(ValueError, match="The text has 151 words; at most 150"):
        check_compared("the " * 151)
    assert check_compared("half \ud83d") == "half \ufffd" and as_fraction(float("nan")) == 0.05
