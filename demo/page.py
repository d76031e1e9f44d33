"""The demo, as a Gradio app and as a Hugging Face Space: words shaded by probability, two texts, other methods.

    hardkuma demo                      # opens http://127.0.0.1:7860
    hardkuma demo --model FOLDER       # another checkpoint
    hardkuma demo --write-space DIR    # write a folder that is a complete Space instead

Only this machine can reach it, unless GRADIO_SERVER_NAME says otherwise (as it does inside a Space). Nothing is fetched
from elsewhere, nothing is reported to anyone and no text is stored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..attribution import METHODS, SentenceEncoder
from ..attribution.words import WordScores
from ..common.models import load_model, load_released
from ..common.packages import require
from ..modeling_hardkuma import HardKumaModel
from ..pairs_hardkuma import explain_pair
from ..rendering.html import DARK, LIGHT, RECORD_STYLE, legend, render_page, render_pair, render_record, render_words
from ..surface_hardkuma import find_words
from ..words_hardkuma import ScoredText, encodable, find_selector, score_texts
from .space import write_space

# A text of the first limit takes about ten windows; leave-one-out runs the encoder once for every word.
MAX_CHARACTERS = 10_000
MAX_CHARACTERS_COMPARED = 1_000
MAX_WORDS_COMPARED = 150
RATES = (5, 50)  # per cent, as people think of it; everywhere else a rate is a fraction
PAIRS = (
    ("A cat sleeps on the warm kitchen floor.", "My cat is asleep in the kitchen."),
    ("The bank raised its interest rates again.", "We sat on the bank of the river and watched the boats."),
    ("How do I reset my password?", "I cannot log in because I forgot my password."),
)
PEERS = {"attention": "Attention received", "norm": "Norm of the state", "loo_word": "Leave one word out"}
EXAMPLES = (
    "Marie Curie moved from Warsaw to Paris in 1891 and shared the Nobel Prize in Physics with her husband Pierre.",
    "Please restart the router twice, then wait until the green light stops blinking before you call support.",
    "The old lighthouse keeper climbed the stairs every evening, although nobody had seen a ship for thirty years.",
    "Der Zug nach München fällt heute aus, bitte nehmen Sie den Bus vom Hauptbahnhof.",
)
STYLE = f"""
.gradio-container {{ {LIGHT} }}
.dark .gradio-container, .dark.gradio-container {{ {DARK} }}
{RECORD_STYLE}
.hk-record {{ margin: 0; content-visibility: visible;
  border: 1px solid var(--border-color-primary); background: var(--block-background-fill); }}
.hk-record :is(p, h3, mark, figcaption, bdi) {{ color: inherit; }} .hk-record .hk-caption {{ color: var(--soft); }}
.hk-grid h3 {{ margin: 0 0 .25rem; font-size: 1rem; }}
.hk-problem {{ margin: 0; padding: .75rem; border: 2px solid #c2410c; border-radius: .5rem; color: var(--ink); }}
.hk-table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; color: var(--ink); }}
.hk-table th, .hk-table td {{ padding: .15rem .75rem .15rem 0; text-align: left; overflow-wrap: anywhere;
  border: 0 solid var(--line); border-bottom-width: 1px; }}
.html-container:has(.hk-record, .hk-legend, .hk-problem) {{ padding: 0; }}
input[type="range"]::-webkit-slider-thumb {{ border: 2px solid var(--slider-color); }}
.hk-scroll {{ max-height: 20rem; overflow: auto; }}
"""
# Scripts and styles of Gradio itself are inline; everything must come from this server.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'"
)
# Events that follow typing and sliding: without a spinner, and of those that pile up only the last.
LIVE = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
# The file is made in the browser from what the server sends: no file is written here.
SAVE_FILE = """(file) => {
  if (!file) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([file.content], {type: file.type}));
  link.download = file.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}"""


def problem(message: str) -> str:
    """A message that stands where the result would."""
    return f'<p class="hk-problem" role="alert">{escape(message)}</p>'


def check_text(text: str | None, limit: int) -> str:
    """The text, if it has words to show and fits; else a ValueError that says what to do.

    >>> check_text("x" * 12, 10)
    Traceback (most recent call last):
    ValueError: The text has 12 characters; at most 10 fit here. Shorten it, or use `hardkuma gates` for long documents.
    """
    if not text or not text.strip():
        raise ValueError("Type or paste a text first.")
    if len(text) > limit:
        raise ValueError(
            f"The text has {len(text):,} characters; at most {limit:,} fit here. Shorten it, or use `hardkuma gates` for "
            "long documents."
        )
    return encodable(text)


def check_compared(text: str | None) -> str:
    """A text that is encoded once for every word of it; the same, and no more words than people wait for."""
    found = check_text(text, MAX_CHARACTERS_COMPARED)
    words = len(find_words(found))
    if words > MAX_WORDS_COMPARED:
        raise ValueError(f"The text has {words} words; at most {MAX_WORDS_COMPARED} can be compared here. Shorten it.")
    return found


def as_fraction(percent: float | None) -> float:
    """The slider's value as a fraction, kept within its bounds (its number field takes anything).

    >>> as_fraction(20), as_fraction(1000), as_fraction(None)
    (0.2, 0.5, 0.05)
    """
    low, high = RATES
    percent = float(percent or low)
    return min(max(percent if percent == percent else low, low), high) / 100


@dataclass(frozen=True)
class Scores:
    """One method's scores of a text: its name, what it cost, and its words, shaded from 0 to 1."""

    title: str
    passes: int
    scored: ScoredText
    raw: list[float]
    missing: int = 0


def relative(found: WordScores) -> ScoredText:
    """Scores of any scale as shades: the lowest of the text is 0, the highest 1.

    >>> relative(WordScores("a b", [(0, 1), (2, 3)], [-3.0, 5.0])).probabilities
    [0.0, 1.0]
    """
    low, high = min(found.scores, default=0.0), max(found.scores, default=0.0)
    shares = [(score - low) / (high - low) if high > low else 0.0 for score in found.scores]
    return ScoredText(found.text, found.words, shares, windows=1, threshold=0.5)


class Demo:
    """What the page shows, as HTML strings, for one model; the encoder runs in `score` and `compare` alone."""

    def __init__(self, model: HardKumaModel, selector: int = 0) -> None:
        self.model, self.selector = model, find_selector(model.config, selector)
        self.encoder = SentenceEncoder.from_model(model)

    def score(self, text: str) -> ScoredText:
        """One encoding of one text."""
        return score_texts(self.model, [check_text(text, MAX_CHARACTERS)], selector=self.selector)[0]

    def pair(self, a: str, b: str, percent: float) -> dict[str, Any]:
        """Which words carry the similarity of two texts; one pass for every word."""
        texts = check_compared(a), check_compared(b)
        return explain_pair(self.model, *texts, rate=as_fraction(percent), selector=self.selector)

    def compare(self, text: str) -> list[Scores]:
        """The gates and the peers on one text."""
        text = check_compared(text)
        gates = score_texts(self.model, [text], selector=self.selector)[0]
        results = [Scores("HardKuma gates", gates.windows, gates, gates.probabilities)]
        for name, title in PEERS.items():
            with self.encoder.counting() as used:
                found = METHODS[name].scores(self.encoder, [text], [gates.words])[0]
            results.append(Scores(title, used.forward, relative(found), found.scores, len(found.missing)))
        return results


def show_record(scored: ScoredText, percent: float) -> tuple[str, str]:
    """The shaded text and the table of numbers, at this rate; nothing is encoded."""
    record = scored.select(rate=as_fraction(percent))
    return render_record(record), number_table(record)


def number_table(record: dict[str, Any]) -> str:
    """Every word with its probability, for eyes that do not read shades."""
    rows = "".join(
        f"<tr><td><bdi>{escape(word['word'])}</bdi></td><td>{word['probability']:.3f}</td>"
        f"<td>{'selected' if word['selected'] else ''}</td></tr>"
        for word in record["words"]
    )
    head = '<thead><tr><th scope="col">word</th><th scope="col">probability</th><th scope="col"></th></tr></thead>'
    table = f'<table class="hk-table">{head}<tbody>{rows}</tbody></table>'
    return f'<div class="hk-scroll" tabindex="0" role="region" aria-label="probabilities">{table}</div>'


def show_comparison(results: Sequence[Scores], percent: float) -> str:
    """Methods side by side, each with the same share of words outlined; nothing is encoded."""
    chosen: set[int] = set()
    parts = []
    for place, result in enumerate(results):
        record = result.scored.select(rate=as_fraction(percent))
        mine = {i for i, word in enumerate(record["words"]) if word["selected"]}
        chosen = mine if place == 0 else chosen
        words = [word | {"note": f"score {raw:.3g}"} for word, raw in zip(record["words"], result.raw, strict=True)]
        caption = f"{result.passes} pass{'' if result.passes == 1 else 'es'} of the encoder"
        if place:
            caption += f"; {len(mine & chosen)} of {len(mine)} words in common with the gates"
        if result.missing:
            caption += f"; {result.missing} words are beyond the encoder's length and have no score"
        shown = render_words(record["text"], words, record["spans"])
        parts.append(
            f'<section class="hk-record"><h3>{escape(result.title)}</h3>{shown}'
            f'<p class="hk-caption">{escape(caption)}</p></section>'
        )
    return f'<div class="hk-grid">{"".join(parts)}</div>'


def as_file(scored: ScoredText | None, percent: float, kind: str) -> dict[str, str] | None:
    """What the download buttons save: name, type and content."""
    if scored is None:
        return None
    record = scored.select(rate=as_fraction(percent))
    if kind == "json":
        content = json.dumps(record, ensure_ascii=False, indent=2) + "\n"
        return {"name": "gates.json", "type": "application/json", "content": content}
    return {"name": "gates.html", "type": "text/html", "content": render_page([record])}


def theme() -> Any:
    """Gradio's default theme with the system's own fonts: nothing is fetched."""
    gr = require("gradio", "demo")
    plain = gr.themes.Default(
        primary_hue="blue",
        neutral_hue="zinc",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    # The default greys of small print are too faint to read.
    readable = {"body_text_color_subdued": "*neutral_600", "block_info_text_color": "*neutral_600"}
    readable |= {f"{name}_dark": "*neutral_300" for name in readable}
    return plain.set(**readable)


def build_app(model: HardKumaModel | None = None, selector: int = 0) -> Any:
    """The page as `gradio.Blocks`; `launch_options()` are the arguments of its `launch`.

    Args:
        model: in eval mode, with its tokenizer; the released gates by default.
        selector: which selector, where there are several.
    """
    gr = require("gradio", "demo")
    demo = Demo(load_released()[0] if model is None else model, selector)
    with gr.Blocks(title="HardKuma", analytics_enabled=False) as app:
        gr.Markdown("# HardKuma\nWhich words carry a text's meaning? Learned gates on a sentence encoder, without labels.")
        with gr.Tab("One text"):
            _one_text(gr, demo)
        with gr.Tab("Two texts"):
            _two_texts(gr, demo)
        with gr.Tab("Methods"):
            _other_methods(gr, demo)
    return app


def _rate_slider(gr: Any) -> Any:
    low, high = RATES
    return gr.Slider(low, high, value=20, step=1, label="Share of words to select, %", buttons=[])


def _text_box(gr: Any, label: str, limit: int, value: str) -> Any:
    # The browser may hold a little more than the limit, so that a paste that is too long is answered and not cut.
    info = f"at most {limit:,} characters"
    return gr.Textbox(value, label=label, info=info, lines=4, max_lines=12, max_length=2 * limit, buttons=[], min_width=280)


def _one_text(gr: Any, demo: Demo) -> None:
    first = demo.score(EXAMPLES[0])
    shown, numbers = show_record(first, 20)
    scored = gr.State(first)
    text = _text_box(gr, "Text", MAX_CHARACTERS, EXAMPLES[0])
    rate = _rate_slider(gr)
    output = gr.HTML(shown, elem_id="gates")
    gr.HTML(legend())
    with gr.Row():
        save_json = gr.Button("Download JSON", size="sm")
        save_html = gr.Button("Download HTML", size="sm")
    with gr.Accordion("Every word's probability", open=False):
        table = gr.HTML(numbers, elem_id="numbers")

    def encode(text: str, percent: float) -> tuple[ScoredText | None, str, str]:
        try:
            found = demo.score(text)
        except ValueError as error:
            return None, problem(str(error)), ""
        return found, *show_record(found, percent)

    def reselect(found: ScoredText | None, percent: float) -> tuple[Any, Any]:
        return (gr.skip(), gr.skip()) if found is None else show_record(found, percent)

    # Not `input`, which pasting by mouse does not fire.
    text.change(encode, [text, rate], [scored, output, table], **LIVE)
    rate.change(reselect, [scored, rate], [output, table], **LIVE)
    _downloads(gr, scored, rate, {save_json: "json", save_html: "html"})
    gr.Examples([[example] for example in EXAMPLES], [text])


def _downloads(gr: Any, scored: Any, rate: Any, buttons: dict[Any, str]) -> None:
    file = gr.JSON(visible=False)
    for button, kind in buttons.items():
        made = button.click(_file_of(kind), [scored, rate], file, show_progress="hidden", api_visibility="private")
        made.then(None, file, None, js=SAVE_FILE)


def _file_of(kind: str) -> Callable[[ScoredText | None, float], dict[str, str] | None]:
    return lambda scored, percent: as_file(scored, percent, kind)


def _two_texts(gr: Any, demo: Demo) -> None:
    with gr.Row():
        a = _text_box(gr, "First text", MAX_CHARACTERS_COMPARED, PAIRS[0][0])
        b = _text_box(gr, "Second text", MAX_CHARACTERS_COMPARED, PAIRS[0][1])
    rate = _rate_slider(gr)
    button = gr.Button("Explain the similarity", variant="primary")
    output = gr.HTML(elem_id="pair")
    gr.HTML(legend("without it the similarity falls a little", "much", "carries the similarity"))

    def explain(a: str, b: str, percent: float) -> str:
        try:
            return render_pair(demo.pair(a, b, percent))
        except ValueError as error:
            return problem(str(error))

    def explain_again(shown: str | None, a: str, b: str, percent: float) -> Any:
        return explain(a, b, percent) if shown else gr.skip()

    gr.on([button.click, a.submit, b.submit], explain, [a, b, rate], output, api_visibility="private")
    # Other words are removed to check another rate, so this does encode; nothing happens before the first answer.
    rate.change(explain_again, [output, a, b, rate], output, **LIVE)
    # With labels they are buttons, which the keyboard reaches; rows of a table are not.
    gr.Examples([list(pair) for pair in PAIRS], [a, b], example_labels=[" / ".join(pair) for pair in PAIRS])


def _other_methods(gr: Any, demo: Demo) -> None:
    results = gr.State(None)
    text = _text_box(gr, "Text", MAX_CHARACTERS_COMPARED, EXAMPLES[1])
    rate = _rate_slider(gr)
    button = gr.Button("Compare", variant="primary")
    output = gr.HTML(elem_id="comparison")

    def compare(text: str, percent: float) -> tuple[list[Scores] | None, str]:
        try:
            found = demo.compare(text)
        except ValueError as error:
            return None, problem(str(error))
        return found, show_comparison(found, percent)

    def reselect(found: list[Scores] | None, percent: float) -> Any:
        return gr.skip() if found is None else show_comparison(found, percent)

    gr.on([button.click, text.submit], compare, [text, rate], [results, output], api_visibility="private")
    rate.change(reselect, [results, rate], output, **LIVE)


def launch_options(**changes: Any) -> dict[str, Any]:
    """Arguments of `Blocks.launch`: this machine only, no link to the outside, the style above and a strict policy."""
    from starlette.middleware import Middleware

    return {
        "theme": theme(),
        "css": STYLE,
        "share": False,
        "footer_links": [],
        "app_kwargs": {"middleware": [Middleware(PolicyHeader)]},
        **changes,
    }


class PolicyHeader:
    """ASGI middleware that forbids the page to fetch or run anything that does not come from this server."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        async def with_policy(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await self.app(scope, receive, with_policy)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the demo."""
    parser = argparse.ArgumentParser(prog="hardkuma demo", description="Start the demo in a browser, on this machine only.")
    parser.add_argument("--model", help="checkpoint folder or Hub id (default: the released gates)")
    parser.add_argument("--selector", type=int, default=0, metavar="N", help="which selector, where it has several")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument("--write-space", metavar="DIR", help="write a folder that is a complete Space, and stop")
    parsed = parser.parse_args(arguments)
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        parser.error(f"--port must be in 1 to 65535, got {parsed.port}.")
    model = load_model(parsed.model, "cpu") if parsed.model else None
    if parsed.write_space:
        write_space(parsed.write_space, model)
        print(f"Push it with: hf upload --repo-type space USER/NAME {parsed.write_space} .")
        return 0
    app = build_app(load_model(None, "cpu") if model is None else model, parsed.selector)
    options = launch_options(server_port=parsed.port, inbrowser=parsed.open, quiet=True, prevent_thread_lock=True)
    _, url, _ = app.launch(**options)
    print(f"The demo is at {url} (Ctrl+C stops it).", flush=True)
    app.block_thread()
    return 0
