"""The HTML report: one file, nothing fetched, no script; every text in it is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..common.files import write_atomically
from ..common.packages import available
from ..common.rendering.html import document_head, page_foot, shade
from ..data import LabelledSentence
from ..gate_head_hardkuma import count_at_rate
from ._style import STYLE
from .plots import GREY, line_plot, scatter_plot, style_of
from .results import MethodResult
from .table import LEGEND, Table, cell, corpus_tables, in_order, values_of

COLOURED = 6  # lines of a plot that have colours
BOLD_RATE = 0.2  # words among the top fifth of their sentence are underlined in the examples


def write_report(
    path: str | Path,
    results: Sequence[MethodResult],
    examples: Mapping[str, Sequence[LabelledSentence]],
    command: str,
    notes: Sequence[str] = (),
) -> Path:
    """Write the report.

    Args:
        results: of any number of corpora and methods.
        examples: by corpus, the sentences that `MethodResult.examples` score.
        command: how the results were made.
        notes: what was left out, and why.
    """
    path = Path(path)
    write_atomically(path, report_html(results, examples, command, notes))
    return path


def report_html(
    results: Sequence[MethodResult],
    examples: Mapping[str, Sequence[LabelledSentence]],
    command: str,
    notes: Sequence[str] = (),
) -> str:
    """The report as a string; see `write_report`."""
    corpora = list(dict.fromkeys(result.corpus for result in results))
    by_corpus = {name: in_order([result for result in results if result.corpus == name]) for name in corpora}
    links = " ".join(f'<a href="#corpus-{i}">{escape(name)}</a>' for i, name in enumerate(corpora))
    parts = [
        document_head("HardKuma benchmark", STYLE),
        "<h1>Which words carry the embedding?</h1>",
        f"<p>Made with <code>{escape(command)}</code></p>",
        f"<nav>{links}</nav>",
    ]
    for number, (name, of_corpus) in enumerate(by_corpus.items()):
        parts.append(f'<section id="corpus-{number}"><h2>{escape(name)}</h2>')
        parts += [_table(table) for table in corpus_tables(of_corpus)]
        parts.append(_plots(name, of_corpus))
        parts.append(_examples(of_corpus, examples.get(name, ())))
        parts.append("</section>")
    parts.append(f'<section><h2>How to read this</h2><p class="small">{escape(" ".join(LEGEND))}</p>')
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")
    parts.append(_versions(results))
    parts.append(f"</section>{page_foot()}")
    return "\n".join(parts)


def _table(table: Table) -> str:
    best = {column.name: _best(table.results, column.name) for column in table.columns if "↑" in column.heading}
    head = "".join(f'<th scope="col">{_hyphenated(column.heading)}</th>' for column in table.columns)
    rows = []
    for result in table.results:
        cells = []
        for column in table.columns:
            value = values_of(result, column.name).get("value")
            top = ' class="best"' if value is not None and value == best.get(column.name) else ""
            main, _, bounds = cell(result, column).partition(" [")
            spread = f' <span class="spread">{escape(bounds.rstrip("]").replace(", ", " to "))}</span>' if bounds else ""
            cells.append(f"<td{top}>{escape(main)}{spread}</td>")
        rows.append(f'<tr class="{escape(result.kind)}"><th scope="row">{escape(result.title)}</th>{"".join(cells)}</tr>')
    heading = f'<thead><tr><th scope="col">method</th>{head}</tr></thead>'
    shown = f"<table>{heading}<tbody>{''.join(rows)}</tbody></table>"
    title, note = f"<h3>{escape(table.title)}</h3>", f'<p class="small">{escape(table.note)}</p>'
    return f'{title}{note}<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">{shown}</div>'


def _hyphenated(heading: str) -> str:
    """A heading that may break inside its long words (soft hyphens)."""
    broken = heading.replace("comprehensiveness", "compre\u00adhensive\u00adness").replace("sentence", "sen\u00adtence")
    return escape(broken.replace("sufficiency", "suffi\u00adciency"))


def _best(results: Sequence[MethodResult], name: str) -> float | None:
    """The best value of a column; reference lines do not compete."""
    values = [values_of(result, name).get("value") for result in results if result.kind != "reference"]
    return max((value for value in values if value is not None), default=None)


def _plots(corpus: str, results: Sequence[MethodResult]) -> str:
    measured = [result for result in results if result.metrics]
    if not available("matplotlib"):
        return "<p>The plots need matplotlib: <code>pip install 'hardkuma[benchmark]'</code></p>"
    styles = _styles(measured)
    recalls = [
        (r.curves["precision_recall"]["recall"], r.curves["precision_recall"]["precision"], styles[r.method])
        for r in measured
        if r.curves.get("precision_recall", {}).get("recall")
    ]
    figures = []
    if recalls:
        plot = line_plot(recalls, "recall", "precision", f"{corpus} precision and recall", (0, 1), (0, 1))
        figures.append((plot, "Precision and recall of entity words."))
    for name in ("sufficiency", "comprehensiveness"):
        lines = [
            (r.curves["faithfulness"]["rates"], r.curves["faithfulness"][name], styles[r.method])
            for r in measured
            if name in r.curves.get("faithfulness", {})
        ]
        if lines:
            plot = line_plot(lines, "share of words selected", name, f"{corpus} {name}")
            figures.append((plot, f"{name.capitalize()} over selection rates; higher is better."))
    if measured:
        figures.append((_cost_plot(corpus, measured, styles), "Cost against quality. Numbers as in the key."))
    drawn = "".join(f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in figures)
    others = len(measured) - COLOURED
    said = (
        f'<p class="small">The {COLOURED} leading methods have colours; {others} others are grey.</p>' if others > 0 else ""
    )
    return f'<h3>Curves</h3>{said}{_key(measured, styles)}<div class="plots">{drawn}</div>'


def _styles(results: Sequence[MethodResult]) -> dict[str, Mapping[str, Any]]:
    """How each method is drawn: the leading ones in colour, all others in grey, which would hide them."""
    leading = _leading_methods(results)
    coloured = [result for result in results if result.method in leading]
    styles = {result.method: style_of(i, result.kind == "gates") for i, result in enumerate(coloured)}
    return {result.method: styles.get(result.method, GREY) for result in results}


def _leading_methods(results: Sequence[MethodResult], number: int = COLOURED) -> set[str]:
    """The methods that a plot tells apart: by each measure in turn the best gates, then the best of all others, and on.

    With all in colour nobody can follow one of twenty-five lines.
    """
    rankings = []
    for metric in ("average_precision", "sufficiency", "comprehensiveness"):
        ranked = sorted((r for r in results if r.value(metric) is not None), key=lambda r: -(r.value(metric) or 0.0))
        gates, others = ([r.method for r in ranked if (r.kind == "gates") == wanted] for wanted in (True, False))
        rankings.append(gates[:1] + others + gates[1:])
    in_turn = [method for rank in zip_longest(*rankings) for method in rank if method is not None]
    in_turn += [result.method for result in results]
    return set(list(dict.fromkeys(in_turn))[:number])


def _cost_plot(corpus: str, results: Sequence[MethodResult], styles: Mapping[str, Any]) -> str:
    points = [
        (max(1000 * r.seconds_per_sentence, 1e-3), precision, str(i + 1), styles[r.method])
        for i, r in enumerate(results)
        if (precision := r.value("average_precision")) is not None
    ]
    return scatter_plot(points, "ms per sentence", "average precision", f"{corpus} cost")


def _key(results: Sequence[MethodResult], styles: Mapping[str, Any]) -> str:
    items = []
    for i, result in enumerate(results):
        style = styles[result.method]
        css = f"border-top:{max(2, round(style['linewidth']))}px {_css_line(style['linestyle'])} {style['color']}"
        items.append(f'<li><span class="swatch" style="{css}"></span>{i + 1}. {escape(result.title)}</li>')
    return f'<ol class="key">{"".join(items)}</ol>'


def _css_line(style: str) -> str:
    return {"solid": "solid", "dashed": "dashed", "dotted": "dotted", "dashdot": "double"}[style]


def _examples(results: Sequence[MethodResult], sentences: Sequence[LabelledSentence]) -> str:
    if not sentences:
        return ""
    blocks = []
    for number, sentence in enumerate(sentences):
        rows = [_example_row("labels", _gold_words(sentence), "gold")]
        for result in results:
            if number < len(result.examples):
                rows.append(_example_row(result.title, _shaded_words(sentence, result.examples[number]), result.kind))
        opened = " open" if number == 0 else ""
        blocks.append(f"<details{opened}><summary>{escape(sentence.text)}</summary><dl>{''.join(rows)}</dl></details>")
    explained = "The stronger the shade, the more important within the sentence; underlined words are its top fifth."
    return f'<h3>The same sentences, side by side</h3><p class="small">{explained}</p>{"".join(blocks)}'


def _example_row(title: str, words: str, kind: str) -> str:
    return f'<div class="{escape(kind)}"><dt>{escape(title)}</dt><dd>{words}</dd></div>'


def _gold_words(sentence: LabelledSentence) -> str:
    pieces = []
    for (start, end), tag in zip(sentence.offsets, sentence.tags, strict=True):
        word = escape(sentence.text[start:end])
        pieces.append(word if tag == "O" else f'<b title="{escape(tag)}">{word}</b>')
    return " ".join(pieces)


def _shaded_words(sentence: LabelledSentence, example: Mapping[str, Any]) -> str:
    scores = example["scores"]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    cut = sorted(scores, reverse=True)[count_at_rate(len(scores), BOLD_RATE) - 1] if scores else 0.0
    pieces = []
    for (start, end), score in zip(sentence.offsets, scores, strict=True):
        share = (score - low) / (high - low) if high > low else 0.0
        pieces.append(shade(sentence.text[start:end], share, f"{score:.3g}", "top" if share > 0 and score >= cut else ""))
    return " ".join(pieces)


def _versions(results: Sequence[MethodResult]) -> str:
    known: dict[str, str] = {}
    for result in results:
        known |= result.versions
    listed = ", ".join(f"{name} {version}" for name, version in known.items())
    return f'<p class="small">{escape(listed)}</p>'
