"""The demo as a Gradio app: words shaded by probability, two texts, other methods.

Nothing is fetched from elsewhere, nothing is reported to anyone and no text is stored.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from ..common.models import load_released
from ..modeling_hardkuma import HardKumaModel
from ..rendering.html import legend, pair_legend, render_pair
from ..words_hardkuma import ScoredText
from .html import as_file, show_comparison, show_problem, show_record
from .limits import MAX_CHARACTERS, MAX_CHARACTERS_COMPARED, RATES
from .policy import PolicyHeader
from .scores import Demo, MethodScores
from .style import SAVE_FILE, STYLE, make_theme

EXAMPLES = (
    "Marie Curie moved from Warsaw to Paris in 1891 and shared the Nobel Prize in Physics with her husband Pierre.",
    "Please restart the router twice, then wait until the green light stops blinking before you call support.",
    "The old lighthouse keeper climbed the stairs every evening, although nobody had seen a ship for thirty years.",
    "Der Zug nach München fällt heute aus, bitte nehmen Sie den Bus vom Hauptbahnhof.",
)
PAIRS = (
    ("A cat sleeps on the warm kitchen floor.", "My cat is asleep in the kitchen."),
    ("The bank raised its interest rates again.", "We sat on the bank of the river and watched the boats."),
    ("How do I reset my password?", "I cannot log in because I forgot my password."),
)
START_PERCENT = 20
# Events that follow typing and sliding: without a spinner, and of those that pile up only the last.
LIVE: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}

Update = str | dict[str, Any]  # the new content of a component, or Gradio's sign that it stays as it is


def build_app(model: HardKumaModel | None = None, selector: str | None = None) -> gr.Blocks:
    """The page as `gradio.Blocks`; `launch_options()` are the arguments of its `launch`.

    Args:
        model: in eval mode, with its tokenizer; the released gates by default.
        selector: the name of the selector to start with; "meaning" by default, or the first. Of a model with several
            the page has a choice.

    >>> build_app().title
    'HardKuma'
    """
    demo = Demo(load_released()[0] if model is None else model, selector)
    with gr.Blocks(title="HardKuma", analytics_enabled=False) as app:
        gr.Markdown("# HardKuma\nWhich words carry a text's meaning? Learned gates on a sentence encoder, without labels.")
        several = len(demo.names) > 1
        chosen = gr.Radio(demo.names, value=demo.selector, label="Selector", elem_id="selector", visible=several)
        with gr.Tab("One text"):
            _add_one_text(demo, chosen)
        with gr.Tab("Two texts"):
            _add_two_texts(demo, chosen)
        with gr.Tab("Methods"):
            _add_methods(demo, chosen)
    return app


def launch_options(**changes: Any) -> dict[str, Any]:
    """Arguments of `Blocks.launch`: this machine only, no link to the outside, our style and a strict policy.

    >>> launch_options(server_port=7861)["share"]
    False
    """
    return {
        "theme": make_theme(),
        "css": STYLE,
        "share": False,
        "footer_links": [],
        "app_kwargs": {"middleware": [Middleware(PolicyHeader)]},
        **changes,
    }


def _rate_slider() -> gr.Slider:
    low, high = RATES
    return gr.Slider(low, high, value=START_PERCENT, step=1, label="Share of words to select, %", buttons=[])


def _text_box(label: str, limit: int, value: str) -> gr.Textbox:
    # The browser may hold a little more than the limit, so that a paste that is too long is answered and not cut.
    info = f"at most {limit:,} characters"
    return gr.Textbox(value, label=label, info=info, lines=4, max_lines=12, max_length=2 * limit, buttons=[], min_width=280)


def _add_one_text(demo: Demo, selector: gr.Radio) -> None:
    first = demo.score(EXAMPLES[0])
    shown, numbers = show_record(first, START_PERCENT)
    state = gr.State(first)
    text = _text_box("Text", MAX_CHARACTERS, EXAMPLES[0])
    rate = _rate_slider()
    output = gr.HTML(shown, elem_id="gates")
    gr.HTML(legend())
    with gr.Row():
        save_json = gr.Button("Download JSON", size="sm")
        save_html = gr.Button("Download HTML", size="sm")
    with gr.Accordion("Every word's probability", open=False):
        table = gr.HTML(numbers, elem_id="numbers")

    def encode(text: str, percent: float, name: str) -> tuple[ScoredText | None, str, str]:
        try:
            scored = demo.score(text, name)
        except ValueError as error:
            return None, show_problem(str(error)), ""
        return scored, *show_record(scored, percent)

    def reselect(scored: ScoredText | None, percent: float) -> tuple[Update, Update]:
        return (gr.skip(), gr.skip()) if scored is None else show_record(scored, percent)

    # Not `input`, which pasting by mouse does not fire.
    gr.on([text.change, selector.change], encode, [text, rate, selector], [state, output, table], **LIVE)
    rate.change(reselect, [state, rate], [output, table], **LIVE)
    _connect_downloads(state, rate, {save_json: "json", save_html: "html"})
    gr.Examples([[example] for example in EXAMPLES], [text])


def _connect_downloads(state: gr.State, rate: gr.Slider, buttons: dict[gr.Button, str]) -> None:
    file = gr.JSON(visible=False)
    for button, kind in buttons.items():
        make_file = partial(as_file, kind=kind)
        made = button.click(make_file, [state, rate], file, show_progress="hidden", api_visibility="private")
        made.then(None, file, None, js=SAVE_FILE)


def _add_two_texts(demo: Demo, selector: gr.Radio) -> None:
    with gr.Row():
        a = _text_box("First text", MAX_CHARACTERS_COMPARED, PAIRS[0][0])
        b = _text_box("Second text", MAX_CHARACTERS_COMPARED, PAIRS[0][1])
    rate = _rate_slider()
    button = gr.Button("Explain the similarity", variant="primary")
    output = gr.HTML(elem_id="pair")
    gr.HTML(pair_legend())

    def explain(a: str, b: str, percent: float, name: str) -> str:
        try:
            return render_pair(demo.pair(a, b, percent, name))
        except ValueError as error:
            return show_problem(str(error))

    def explain_again(shown: str | None, a: str, b: str, percent: float, name: str) -> Update:
        return explain(a, b, percent, name) if shown else gr.skip()

    gr.on([button.click, a.submit, b.submit], explain, [a, b, rate, selector], output, api_visibility="private")
    # Other words are removed to check another rate, so this does encode; nothing happens before the first answer.
    gr.on([rate.change, selector.change], explain_again, [output, a, b, rate, selector], output, **LIVE)
    # With labels they are buttons, which the keyboard reaches; rows of a table are not.
    gr.Examples([list(pair) for pair in PAIRS], [a, b], example_labels=[" / ".join(pair) for pair in PAIRS])


def _add_methods(demo: Demo, selector: gr.Radio) -> None:
    state = gr.State(None)
    text = _text_box("Text", MAX_CHARACTERS_COMPARED, EXAMPLES[1])
    rate = _rate_slider()
    button = gr.Button("Compare", variant="primary")
    output = gr.HTML(elem_id="comparison")

    def compare(text: str, percent: float, name: str) -> tuple[list[MethodScores] | None, str]:
        try:
            results = demo.compare(text, name)
        except ValueError as error:
            return None, show_problem(str(error))
        return results, show_comparison(results, percent)

    def compare_again(
        results: list[MethodScores] | None, text: str, percent: float, name: str
    ) -> tuple[list[MethodScores] | Update | None, Update]:
        return (gr.skip(), gr.skip()) if results is None else compare(text, percent, name)

    def reselect(results: list[MethodScores] | None, percent: float) -> Update:
        return gr.skip() if results is None else show_comparison(results, percent)

    gr.on([button.click, text.submit], compare, [text, rate, selector], [state, output], api_visibility="private")
    selector.change(compare_again, [state, text, rate, selector], [state, output], **LIVE)
    rate.change(reselect, [state, rate], output, **LIVE)
