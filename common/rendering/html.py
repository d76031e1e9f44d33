"""Gate records as HTML: words shaded by probability, spans marked whole; nothing is fetched, every text is escaped.

A record is what `ScoredText.select`, the pipeline and `hardkuma gates` give for one text.
A file of any size is written piece by piece: `page_head(title)`, then `render_record(record)` for each, then `page_foot()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from .records import FULL_FALL, Pair, Record, Word, mark_side
from .style import BASE_STYLE, HUES, RECORD_STYLE

# Belt and braces: even if a text slipped through unescaped, no browser would run or fetch anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

SHOWN_LINKS = 5


def shade(word: str, share: float, note: str, css_class: str = "") -> str:
    """One word as HTML, shaded by a share in [0, 1] (values outside are clipped), with a note that says the number.

    >>> shade("a<b", 0.5, "probability 0.50")
    '<mark style="--share:50%" title="probability 0.50">a&lt;b</mark>'
    """
    named = f' class="{escape(css_class)}"' if css_class else ""
    return f'<mark{named} style="--share:{_percent(share)}%" title="{escape(note)}">{escape(word)}</mark>'


def _percent(share: float) -> int:
    return round(100 * min(max(share, 0.0), 1.0))


def hue_class(number: int) -> str:
    """The class of a hue by the number of its selector; of more selectors the hues come round again.

    >>> hue_class(0), hue_class(HUES)
    ('hk-hue0', 'hk-hue0')
    """
    return f"hk-hue{number % HUES}"


def _hue(word: Word) -> str:
    if word.get("different"):
        return " hk-different"
    return f" {hue_class(word['hue'])}" if "hue" in word else ""


def _shade_style(word: Word) -> str:
    """How deep the shade is; where the spans of several selectors meet, a stripe for each, in its hue."""
    if len(hues := word.get("hues", ())) < 2:
        return f"--share:{_percent(word['probability'])}%"
    stripes = ", ".join(
        f"color-mix(in srgb, rgb(var(--hue{hue % HUES})) calc({_percent(share)}% * var(--depth)), transparent) "
        f"{100 * number // len(hues)}% {100 * (number + 1) // len(hues)}%"
        for number, (hue, share) in enumerate(hues)
    )
    return f"background:linear-gradient({stripes})"


def render_words(text: str, words: Sequence[Word], spans: Sequence[Word] = ()) -> str:
    """The whole text with its words shaded and its spans marked whole, as one paragraph.

    Args:
        words: in reading order, each with "start", "end", "probability" in [0, 1]; "note", if the note is to say something
            else than the probability; and "hue", a number, or "different", true, if it is to have another colour than all
            others.
        spans: the same; a span is shaded as a whole, by its own probability, or with "hues", pairs of hue and probability,
            in stripes. No word may cross a span's border.

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
        label = f'role="group" aria-label="{"" if span.get("different") else "selected, "}{escape(_note(span))}"'
        parts.append(f'<span class="hk-span{_hue(span)}" style="{_shade_style(span)}" {label}>{inner}</span>')
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
        parts.append(shade(text[word["start"] : word["end"]], word["probability"], _note(word), _hue(word).strip()))
        position = word["end"]
    return "".join([*parts, escape(text[position:end])])


def _note(word: Word) -> str:
    return word["note"] if "note" in word else f"probability {word['probability']:.2f}"


def render_record(record: Record) -> str:
    """One text as HTML: its words shaded by probability, its selected spans marked whole and listed below.

    Args:
        record: with "listed", if other spans are to be listed than those that are marked; with their "selector" they are
            listed under its name.

    >>> word = {"word": "Bob", "start": 3, "end": 6, "probability": 0.9, "selected": True}
    >>> span = {"text": "Bob", "start": 3, "end": 6, "probability": 0.9}
    >>> html = render_record({"text": "Hi Bob", "words": [word], "spans": [span], "rate": 0.5, "windows": 1})
    >>> 'title="probability 0.90">Bob</mark></span>' in html, "1 of 1 words: <bdi>Bob 0.90</bdi>" in html
    (True, True)
    """
    words, spans = record["words"], record["spans"]
    selected = sum(bool(word["selected"]) for word in words)
    listed = "; ".join(
        (f"{escape(name)}: " if name else "")
        + ", ".join(f"{escape(' '.join(span['text'].split()))} {span['probability']:.2f}" for span in group)
        for name, group in groupby(record.get("listed", spans), key=lambda span: span.get("selector"))
    )
    count = f"{selected} of {len(words)} words" if words else "no words"
    windows = f" (read in {record['windows']} windows)" if record.get("windows", 1) > 1 else ""
    caption = f"{count}{windows}: <bdi>{listed}</bdi>" if listed else f"{count}{windows}"
    if record.get("kept") is not None:
        caption += f"; they keep {record['kept']:.0%} of the meaning, without them {record['lost']:.0%} is lost"
    if words and "reason" in record:
        caption += f": {escape(record['reason'])}"
    if "note" in record:
        caption += f"; {escape(record['note'])}"
    shown = render_words(record["text"], words, spans)
    return f'<figure class="hk-record">{shown}<figcaption class="hk-caption">{caption}</figcaption></figure>'


def render_pair(pair: Pair) -> str:
    """Two texts as HTML: words shaded by how far the similarity falls without them, those that carry it marked, and in
    another colour those that differ.

    Args:
        pair: what `explain_pair` returns.
    """
    shown = "".join(
        f'<figure class="hk-record">{render_side(pair, name)}'
        f'<figcaption class="hk-caption">{carried_by(pair[name])}</figcaption></figure>'
        for name in "ab"
    )
    return f'<div class="hk-pair">{render_verdict(pair)}<div class="hk-grid">{shown}</div>{_links(pair)}</div>'


def render_verdict(pair: Pair) -> str:
    """How similar two texts are, what is left of it without the words that carry it, or why none is said to.

    >>> faithfulness = {"similarity_without": None, "faithful": None}
    >>> unrelated = {"similarity": 0.02, "chance": 0.2, "explained": False, "reason": "it is low", "notes": []}
    >>> render_verdict(unrelated | {"faithfulness": faithfulness})
    '<p class="hk-verdict"><b>These texts have nothing in common</b>: it is low.</p>'
    """
    if pair["similarity"] <= pair["chance"]:
        return f'<p class="hk-verdict"><b>These texts have nothing in common</b>: {escape(pair["reason"])}.</p>'
    sentences = [f"Similarity <b>{pair['similarity']:.2f}</b>."]
    if not pair["explained"]:
        sentences.append(f"<b>Not explained</b>: {escape(pair['reason'])}.")
    if without := pair["faithfulness"]["similarity_without"]:
        sentences.append(
            f"Without the marked words of one text <b>{without['carrying']:.2f}</b>, without as many random ones "
            f"{without['random']:.2f}."
        )
    sentences += [f"Note: {escape(note)}." for note in pair["notes"]]
    return f'<p class="hk-verdict">{" ".join(sentences)}</p>'


def render_side(pair: Pair, name: str, differences: bool = True) -> str:
    """One text of a pair, "a" or "b": its words shaded by how far the similarity falls without each, and, unless told
    otherwise, by how much they differ.

    >>> words = [{"word": "cat", "start": 0, "end": 3, "fall": 0.125, "carries": False}]
    >>> pair = {"similarity": 0.5, "chance": 0.2, "explained": True, "a": {"text": "cat", "words": words}}
    >>> 'style="--share:50%"' in render_side(pair, "a")
    True
    """
    return render_words(pair[name]["text"], *mark_side(pair, name, differences))


def carried_by(side: Record) -> str:
    """The words of one text that carry the similarity, those in which it differs, and whether the encoder has seen all of
    it.

    >>> cat = {"word": "cat", "fall": 0.4, "carries": True}
    >>> carried_by({"words": [cat], "differences": [{"text": "two", "differs": 1.0}], "truncated": False})
    'carried by <bdi>cat 0.40</bdi>; differs in <bdi>two 1.00</bdi>'
    """
    listed = ", ".join(f"{escape(word['word'])} {word['fall']:.2f}" for word in side["words"] if word["carries"])
    caption = f"carried by <bdi>{listed}</bdi>" if listed else "no word carries the similarity"
    if differences := side.get("differences"):
        named = ", ".join(f"{escape(' '.join(span['text'].split()))} {span['differs']:.2f}" for span in differences)
        caption += f"; differs in <bdi>{named}</bdi>"
    return caption + ("; the encoder does not see the end of this text" if side["truncated"] else "")


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

    >>> '<span>fall <span class="hk-scale">0<span class="hk-ramp"' in legend("fall 0", "1", "carries")
    True
    """
    ramp = '<span class="hk-ramp" role="img" aria-label="from no shade to full shade"></span>'
    example = '<span class="hk-span" style="--share:90%">word</span>'
    name, _, zero = shade_means.rpartition(" ")
    ends = f'{escape(name)} <span class="hk-scale">{escape(zero)}{ramp}{escape(full)}</span>'
    return f'<p class="hk-legend"><span>{ends}</span><span>{example} &nbsp;{escape(outline_means)}</span></p>'


def pair_legend(differences: bool = True) -> str:
    """What shades and outlines mean in `render_pair`.

    >>> "carries the similarity" in pair_legend(), "differs" in pair_legend(differences=False)
    (True, False)
    """
    shown = legend("without it the similarity falls by 0", f"{FULL_FALL:g} or more", "carries the similarity")
    if not differences:
        return shown
    example = '<span class="hk-span hk-different" style="--share:90%">word</span>'
    return shown.removesuffix("</p>") + f"<span>{example} &nbsp;differs from the other text</span></p>"


def render_change(change: Record) -> str:
    """A sentence and its counterpart as HTML, one above the other, the words in which they differ marked.

    Args:
        change: what `compare_texts` or `compare_pairs` gives.

    >>> word = {"word": "two", "start": 0, "end": 3, "differs": 1.0}
    >>> side = {"text": "two", "words": [word], "differences": [{"text": "two", **word}], "row": 7, "truncated": False}
    >>> html = render_change({"change": "new", "similarity": 0.1, "notes": [], "a": None, "b": side})
    >>> '<span class="hk-span hk-different" style="--share:100%"' in html, "<b>new</b>, row 7 of B" in html
    (True, True)
    """
    sides = {name: change[name] for name in "ab" if change[name] is not None}
    rows = ", ".join(f"row {side['row']} of {name.upper()}" for name, side in sides.items())
    similarity = "" if len(sides) < 2 else f", similarity {change['similarity']:.2f}"
    notes = "".join(f" Note: {escape(note)}." for note in change["notes"])
    shown = "".join(render_words(side["text"], *mark_side(change, name)) for name, side in sides.items())
    caption = f"<b>{escape(change['change'])}</b>, {rows}{similarity}.{notes}"
    return f'<figure class="hk-record">{shown}<figcaption class="hk-caption">{caption}</figcaption></figure>'


def diff_legend() -> str:
    """What the shade means in `render_change`.

    >>> "differs" in diff_legend()
    True
    """
    example = '<span class="hk-span hk-different" style="--share:90%">word</span>'
    return f'<p class="hk-legend"><span>{example} &nbsp;differs; A above, B below</span></p>'


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
