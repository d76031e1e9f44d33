"""Gate records as HTML: words shaded by probability, selected spans outlined; nothing is fetched, every text is escaped.

A record is what `ScoredText.select`, the pipeline and `hardkuma gates` give for one text.
A file of any size is written piece by piece: `page_head(title)`, then `render_record(record)` for each, then `page_foot()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .records import FULL_FALL, Pair, Record, Word, fall_share

# Belt and braces: even if a text slipped through unescaped, no browser would run or fetch anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

SHOWN_LINKS = 5
LIGHT = (
    "--ink: #1c2024; --soft: #5b646e; --page: #ffffff; --card: #f5f6f8; --line: #d9dde2; "
    "--accent: #2f6fde; --mark: 47, 111, 222;"
)
DARK = (
    "--ink: #e6e8eb; --soft: #a0a9b3; --page: #14171a; --card: #1d2125; --line: #353b42; "
    "--accent: #7da9ff; --mark: 96, 150, 255;"
)
# Common to every page of this project; a page adds its own rules.
BASE_STYLE = f"""
:root {{ {LIGHT} color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }}
main {{ max-width: 76rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere; }}
.small {{ color: var(--soft); font-size: .875rem; }}
mark {{ color: inherit; border-radius: .2em; padding: .1em .15em; print-color-adjust: exact;
  background: color-mix(in srgb, rgb(var(--mark)) calc(var(--share) * .55), transparent); }}
@media (max-width: 40rem) {{ body {{ font-size: 15px; }} main {{ padding: .75rem; }} }}
"""
# The rules of a record alone, for pages that have a style of their own but define the colours above.
RECORD_STYLE = """
.hk-record { margin: 0 0 .75rem; padding: .75rem; background: var(--card); border-radius: .5rem; color: var(--ink);
  content-visibility: auto; contain-intrinsic-size: auto 6rem; }
.hk-text { margin: 0; line-height: 2.1; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
.hk-text mark, .hk-legend mark { color: var(--ink); border-radius: .2em; padding: .1em 0; print-color-adjust: exact;
  background: color-mix(in srgb, rgb(var(--mark)) calc(var(--share) * .55), transparent); }
.hk-span { outline: 2px solid var(--accent); margin: 0 1px; border-radius: .2em;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
.hk-grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: .75rem; }
.hk-grid > * { min-width: 0; margin: 0; }
.hk-caption { margin: .35rem 0 0; color: var(--soft); font-size: .875rem; overflow-wrap: anywhere; }
.hk-legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .75rem 0; color: var(--soft);
  font-size: .875rem; }
.hk-ramp { display: inline-block; width: 6rem; height: 1em; margin: 0 .4em; vertical-align: -.15em; border-radius: .2em;
  background: linear-gradient(to right, transparent, color-mix(in srgb, rgb(var(--mark)) 55%, transparent));
  border: 1px solid var(--line); print-color-adjust: exact; }
"""


def shade(word: str, share: float, note: str, css_class: str = "") -> str:
    """One word as HTML, shaded by a share in [0, 1] (values outside are clipped), with a note that says the number.

    >>> shade("a<b", 0.5, "probability 0.50")
    '<mark style="--share:50%" title="probability 0.50">a&lt;b</mark>'
    """
    percent = round(100 * min(max(share, 0.0), 1.0))
    named = f' class="{escape(css_class)}"' if css_class else ""
    return f'<mark{named} style="--share:{percent}%" title="{escape(note)}">{escape(word)}</mark>'


def render_words(text: str, words: Sequence[Word], spans: Sequence[Word] = ()) -> str:
    """The whole text with its words shaded and its spans outlined, as one paragraph.

    Args:
        words: in reading order, each with "start", "end", "probability" in [0, 1] and, if the note is to say something
            else than the probability, "note".
        spans: in reading order, each with "start", "end" and "probability" or "note"; no word may cross a span's border.

    >>> render_words("Hi Bob", [{"start": 0, "end": 2, "probability": 0.0}])
    '<p class="hk-text" dir="auto"><mark style="--share:0%" title="probability 0.00">Hi</mark> Bob</p>'
    """
    parts, position, first = [], 0, 0
    for span in spans:
        start, end = span["start"], span["end"]
        before = first
        while before < len(words) and words[before]["start"] < start:
            before += 1
        within = before
        while within < len(words) and words[within]["start"] < end:
            within += 1
        parts.append(_shaded(text, words[first:before], position, start))
        inner = _shaded(text, words[before:within], start, end)
        parts.append(f'<span class="hk-span" role="group" aria-label="selected, {_note(span)}">{inner}</span>')
        position, first = end, within
    parts.append(_shaded(text, words[first:], position, len(text)))
    return f'<p class="hk-text" dir="auto">{"".join(parts)}</p>'


def _shaded(text: str, words: Sequence[Word], start: int, end: int) -> str:
    """text[start:end] with these words shaded."""
    parts, position = [], start
    for word in words:
        if not position <= word["start"] <= word["end"] <= end:
            raise ValueError(
                f"the word at {word['start']}-{word['end']} does not fit between {position} and {end}; give words and "
                "spans in reading order, no word across a span's border."
            )
        parts.append(escape(text[position : word["start"]]))
        parts.append(shade(text[word["start"] : word["end"]], word["probability"], _note(word)))
        position = word["end"]
    return "".join([*parts, escape(text[position:end])])


def _note(word: Word) -> str:
    return word["note"] if "note" in word else f"probability {word['probability']:.2f}"


def render_record(record: Record) -> str:
    """One text as HTML: its words shaded by probability, its selected spans outlined and listed below.

    >>> word = {"word": "Bob", "start": 3, "end": 6, "probability": 0.9, "selected": True}
    >>> span = {"text": "Bob", "start": 3, "end": 6, "probability": 0.9}
    >>> html = render_record({"text": "Hi Bob", "words": [word], "spans": [span], "rate": 0.5, "windows": 1})
    >>> 'title="probability 0.90">Bob</mark></span>' in html, "1 of 1 words: <bdi>Bob 0.90</bdi>" in html
    (True, True)
    """
    words, spans = record["words"], record["spans"]
    selected = sum(bool(word["selected"]) for word in words)
    listed = ", ".join(f"{escape(' '.join(span['text'].split()))} {span['probability']:.2f}" for span in spans)
    count = f"{selected} of {len(words)} words" if words else "no words"
    windows = f" (read in {record['windows']} windows)" if record.get("windows", 1) > 1 else ""
    caption = f"{count}{windows}: <bdi>{listed}</bdi>" if listed else f"{count}{windows}"
    if words and "reason" in record:
        caption += f": {escape(record['reason'])}"
    shown = render_words(record["text"], words, spans)
    return f'<figure class="hk-record">{shown}<figcaption class="hk-caption">{caption}</figcaption></figure>'


def render_pair(pair: Pair) -> str:
    """Two texts as HTML: words shaded by how far the similarity falls without them, those that carry it outlined.

    Args:
        pair: what `explain_pair` returns.

    >>> def side(text):
    ...     word = {"word": text, "start": 0, "end": 3, "fall": 0.4, "carries": True, "probability": 0.5, "selected": False}
    ...     return {"text": text, "words": [word], "spans": [], "rate": 0.0, "windows": 1, "truncated": False}
    >>> without = {"carrying": 0.1, "lowest": 0.5, "random": 0.4, "gates": 0.2}
    >>> faithfulness = {"similarity_without": without, "similarity_of_carrying": 0.9, "faithful": True}
    >>> pair = {"similarity": 0.5, "chance": 0.3, "explained": True, "reason": None, "notes": [], "links": []}
    >>> pair |= {"a": side("cat"), "b": side("Cat"), "faithfulness": faithfulness}
    >>> html = render_pair(pair)
    >>> html.count('title="the similarity falls by 0.400 without it"'), "Similarity <b>0.50</b>" in html
    (2, True)
    """
    shown = "".join(_pair_side(pair, pair[name]) for name in "ab")
    sentences = [f"Similarity <b>{pair['similarity']:.2f}</b>."]
    if not pair["explained"]:
        sentences.append(f"Not explained: {escape(pair['reason'])}.")
    if without := pair["faithfulness"]["similarity_without"]:
        sentences.append(
            f"Without the outlined words of one text <b>{without['carrying']:.2f}</b>, without as many random ones "
            f"{without['random']:.2f}."
        )
    sentences += [f"Note: {escape(note)}." for note in pair["notes"]]
    checked = f'<p class="hk-caption">{" ".join(sentences)}</p>'
    return f'<div class="hk-pair">{checked}<div class="hk-grid">{shown}</div>{_links(pair)}</div>'


def _pair_side(pair: Pair, side: Record) -> str:
    words = [
        {**word, "probability": fall_share(pair, word["fall"]), "note": _fall_note(word["fall"])} for word in side["words"]
    ]
    carrying = [word for word in words if word["carries"]]
    listed = ", ".join(f"{escape(word['word'])} {word['fall']:.2f}" for word in carrying)
    caption = f"carried by <bdi>{listed}</bdi>" if carrying else "no word carries the similarity"
    if side["truncated"]:
        caption += "; the encoder does not see the end of this text"
    shown = render_words(side["text"], words, carrying)
    return f'<figure class="hk-record">{shown}<figcaption class="hk-caption">{caption}</figcaption></figure>'


def _fall_note(fall: float) -> str:
    return f"the similarity {'falls' if fall >= 0 else 'rises'} by {abs(fall):.3f} without it"


def _links(pair: Pair) -> str:
    if not pair["links"]:
        return ""
    items = []
    for link in pair["links"][:SHOWN_LINKS]:
        first, second = pair["a"]["words"][link["a"]], pair["b"]["words"][link["b"]]
        items.append(f"<bdi>{escape(first['word'])}</bdi> – <bdi>{escape(second['word'])}</bdi> {link['strength']:.2f}")
    return f'<p class="hk-caption">Words that match each other: {", ".join(items)}</p>'


def legend(shade_means: str = "probability 0", full: str = "1", outline_means: str = "selected") -> str:
    """What shade and outline mean, as one line above or below the texts.

    >>> '<span>fall 0<span class="hk-ramp"' in legend("fall 0", "1", "carries")
    True
    """
    ramp = '<span class="hk-ramp" role="img" aria-label="from no shade to full shade"></span>'
    example = f'<span class="hk-span">{shade("word", 0.9, "an example")}</span>'
    ends = f"{escape(shade_means)}{ramp}{escape(full)}"
    return f'<p class="hk-legend"><span>{ends}</span><span>{example} &nbsp;{escape(outline_means)}</span></p>'


def pair_legend() -> str:
    """What shade and outline mean in `render_pair`.

    >>> "carries the similarity" in pair_legend()
    True
    """
    return legend("without it the similarity falls by 0", f"{FULL_FALL:g} or more", "carries the similarity")


def document_head(title: str, style: str) -> str:
    """Everything up to and with `<main>`: light and dark, phone width, a policy that lets nothing run or be fetched.

    >>> document_head("A & B", BASE_STYLE).splitlines()[5]
    '<title>A &amp; B</title>'
    """
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head><body><main>\n",
        ]
    )


def page_head(title: str, explained: str | None = None) -> str:
    """The start of a page of records, with its legend (`legend()`, or another); records and `page_foot()` follow.

    >>> "<h1>Gates</h1>" in page_head("Gates")
    True
    """
    shown = legend() if explained is None else explained
    return f"{document_head(title, BASE_STYLE + RECORD_STYLE)}<h1>{escape(title)}</h1>\n{shown}\n"


def page_foot() -> str:
    """The end of a page.

    >>> page_foot()
    '</main></body></html>\\n'
    """
    return "</main></body></html>\n"


def render_page(records: Iterable[Record], title: str = "HardKuma gates") -> str:
    """A self-contained page of all records.

    >>> page = render_page([], "A & B")
    >>> "<h1>A &amp; B</h1>" in page, page.startswith("<!DOCTYPE html>")
    (True, True)
    """
    return page_head(title) + "".join(f"{render_record(record)}\n" for record in records) + page_foot()
