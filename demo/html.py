"""What the page shows, as HTML, and what it saves. Nothing is encoded here: scores are selected from at any rate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from ..rendering.html import render_page, render_record, render_words
from ..words_hardkuma import Record, ScoredText
from .limits import as_fraction
from .scores import MethodScores


def show_problem(message: str) -> str:
    """A message that stands where the result would.

    >>> show_problem("a < b")
    '<p class="hk-problem" role="alert">a &lt; b</p>'
    """
    return f'<p class="hk-problem" role="alert">{escape(message)}</p>'


def show_record(scored: ScoredText, percent: float) -> tuple[str, str]:
    """The shaded text and the table of numbers, at this rate.

    >>> text, table = show_record(ScoredText("Hi Bob", [(0, 2), (3, 6)], [0.1, 0.9], windows=1, threshold=0.5), 50)
    >>> "1 of 2 words: <bdi>Bob 0.90</bdi>" in text, "<td>0.900</td><td>selected</td>" in table
    (True, True)
    """
    record = scored.select(rate=as_fraction(percent))
    return render_record(record), show_numbers(record)


def show_numbers(record: Record) -> str:
    """Every word with its probability in a table, for eyes that do not read shades.

    >>> word = {"word": "Bob", "probability": 0.9, "selected": True}
    >>> "<td><bdi>Bob</bdi></td><td>0.900</td><td>selected</td>" in show_numbers({"words": [word]})
    True
    """
    rows = "".join(
        f"<tr><td><bdi>{escape(word['word'])}</bdi></td><td>{word['probability']:.3f}</td>"
        f"<td>{'selected' if word['selected'] else ''}</td></tr>"
        for word in record["words"]
    )
    head = '<thead><tr><th scope="col">word</th><th scope="col">probability</th><th scope="col"></th></tr></thead>'
    table = f'<table class="hk-table">{head}<tbody>{rows}</tbody></table>'
    return f'<div class="hk-scroll" tabindex="0" role="region" aria-label="probabilities">{table}</div>'


def show_comparison(results: Sequence[MethodScores], percent: float) -> str:
    """Methods side by side, the gates first, each with the same share of words outlined.

    >>> scored = ScoredText("Hi Bob", [(0, 2), (3, 6)], [0.1, 0.9], windows=1, threshold=0.5)
    >>> html = show_comparison([MethodScores("Gates", 1, scored, [0.1, 0.9]), MethodScores("Norm", 1, scored, [3, 5])], 50)
    >>> html.count("<h3>"), "1 pass of the encoder; 1 of 1 words in common with the gates" in html
    (2, True)
    """
    sections = []
    selected_by_gates: set[int] = set()
    for number, result in enumerate(results):
        record = result.scored.select(rate=as_fraction(percent))
        selected = {i for i, word in enumerate(record["words"]) if word["selected"]}
        caption = f"{result.passes} pass{'' if result.passes == 1 else 'es'} of the encoder"
        if number == 0:
            selected_by_gates = selected
        else:
            caption += f"; {len(selected & selected_by_gates)} of {len(selected)} words in common with the gates"
        if result.missing:
            caption += f"; {result.missing} words are beyond the encoder's length and have no score"
        words = [word | {"note": f"score {raw:.3g}"} for word, raw in zip(record["words"], result.raw, strict=True)]
        text = render_words(record["text"], words, record["spans"])
        sections.append(
            f'<section class="hk-record"><h3>{escape(result.title)}</h3>{text}'
            f'<p class="hk-caption">{escape(caption)}</p></section>'
        )
    return f'<div class="hk-grid">{"".join(sections)}</div>'


def as_file(scored: ScoredText | None, percent: float, kind: str) -> dict[str, str] | None:
    """What a download button saves, "json" or "html": name, type and content of the file; None where nothing is shown.

    >>> as_file(ScoredText("Hi", [(0, 2)], [0.1], windows=1, threshold=0.5), 50, "json")["name"]
    'gates.json'
    """
    if scored is None:
        return None
    record = scored.select(rate=as_fraction(percent))
    if kind == "json":
        content = json.dumps(record, ensure_ascii=False, indent=2) + "\n"
        return {"name": "gates.json", "type": "application/json", "content": content}
    return {"name": "gates.html", "type": "text/html", "content": render_page([record])}
