"""The HTML report with its plots: one file, nothing fetched, no script; every text in it is escaped."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..common.packages import available, require
from ..common.rendering.html import document_head, page_foot, shade
from ..common.rendering.style import BASE_STYLE
from ..data import LabelledSentence
from ..gate_head_hardkuma import count_at_rate
from .baselines.registry import REFERENCE
from .results import MethodResult
from .tables import LEGEND, Table, cell, corpus_tables, in_order, values_of

BEST = 6  # lines of a plot; nobody can follow one of twenty-five
BOLD_RATE = 0.2  # words among the top fifth of their sentence are underlined in the examples
# Readable on white and on near-black.
COLORS = ("#2f6fde", "#d9730d", "#1a9e5c", "#c2379a", "#8a6fd1", "#b08900", "#d64545", "#0e94a6", "#7d8b2f", "#8c8c8c")
_INK = "#010203"  # stands for the page's text colour
_WIDTH = 4.6  # inches; small, so that labels stay readable on a phone
# The measure whose best methods are drawn, the curve and its two rows of numbers, and what they are.
_PLOTS = (
    ("average_precision", "precision_recall", "recall", "precision", "recall"),
    ("sufficiency", "faithfulness", "rates", "sufficiency", "share of words selected"),
    ("comprehensiveness", "faithfulness", "rates", "comprehensiveness", "share of words selected"),
)


def report_html(
    results: Sequence[MethodResult],
    examples: Mapping[str, Sequence[LabelledSentence]],
    command: str,
    notes: Sequence[str] = (),
) -> str:
    """The report.

    Args:
        results: of any number of corpora and methods.
        examples: by corpus, the sentences that `MethodResult.examples` score.
        command: how the results were made.
        notes: what was left out, and why.
    """
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
    parts.append(f'<section><h2>How to read this</h2><p class="small">{escape(LEGEND)}</p>')
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")
    known = {name: version for result in results for name, version in result.versions.items()}
    listed = ", ".join(f"{name} {version}" for name, version in known.items())
    parts.append(f'<p class="small">{escape(listed)}</p></section>{page_foot()}')
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
        rows.append(f'<tr class="{escape(result.role)}"><th scope="row">{escape(result.title)}</th>{"".join(cells)}</tr>')
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
    values = [values_of(result, name).get("value") for result in results if result.role != REFERENCE]
    return max((value for value in values if value is not None), default=None)


def _plots(corpus: str, results: Sequence[MethodResult]) -> str:
    if not available("matplotlib"):
        return "<p>The plots need matplotlib: <code>pip install 'hardkuma[benchmark]'</code></p>"
    figures = []
    for metric, curve, x, y, x_label in _PLOTS:
        drawn = [result for result in results if result.curves.get(curve, {}).get(y)]
        best = sorted(drawn, key=lambda result: -(result.value(metric) or 0.0))[:BEST]
        if best:
            lines = {result.title: (result.curves[curve][x], result.curves[curve][y]) for result in best}
            name = metric.replace("_", " ")
            caption = f"The {len(best)} best by {name}, of {len(drawn)}."
            plot = line_plot(lines, x_label, y, f"{corpus} {name}")
            figures.append(f"<figure>{plot}<figcaption>{escape(caption)}</figcaption></figure>")
    return f'<h3>Curves</h3><div class="plots">{"".join(figures)}</div>'


def _examples(results: Sequence[MethodResult], sentences: Sequence[LabelledSentence]) -> str:
    if not sentences:
        return ""
    blocks = []
    for number, sentence in enumerate(sentences):
        rows = [_example_row("labels", _gold_words(sentence), "gold")]
        for result in results:
            if number < len(result.examples):
                rows.append(_example_row(result.title, _shaded_words(sentence, result.examples[number]), result.role))
        opened = " open" if number == 0 else ""
        blocks.append(f"<details{opened}><summary>{escape(sentence.text)}</summary><dl>{''.join(rows)}</dl></details>")
    explained = "The stronger the shade, the more important within the sentence; underlined words are its top fifth."
    return f'<h3>The same sentences, side by side</h3><p class="small">{explained}</p>{"".join(blocks)}'


def _example_row(title: str, words: str, role: str) -> str:
    return f'<div class="{escape(role)}"><dt>{escape(title)}</dt><dd>{words}</dd></div>'


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


# ---- plots: SVG text that follows the page's text colour, in light and in dark --------------------------------------


def line_plot(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x_label: str, y_label: str, title: str) -> str:
    """Lines of (x, y) by name, as SVG.

    >>> line_plot({"norm": ([0, 1], [0, 1])}, "recall", "precision", "a plot")[:30]
    '<svg role="img" aria-label="a '
    """
    figure, axes = _axes(x_label, y_label, 3.3 + 0.19 * math.ceil(len(lines) / 2))
    for number, (name, (x, y)) in enumerate(lines.items()):
        axes.plot(x, y, color=COLORS[number % len(COLORS)], label=name.replace("$", r"\$"))
    figure.legend(loc="outside lower center", ncols=2, labelcolor=_INK, frameon=False, fontsize=8.5)
    return _svg(figure, title)


def _axes(x_label: str, y_label: str, height: float) -> tuple[Any, Any]:
    require("matplotlib", "benchmark")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    axes.set_xlabel(x_label, color=_INK, fontsize=11)
    axes.set_ylabel(y_label, color=_INK, fontsize=11)
    axes.grid(color="#888888", alpha=0.3, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)
    axes.tick_params(which="both", colors=_INK, labelcolor=_INK, labelsize=10)
    return figure, axes


def _svg(figure: Any, title: str) -> str:
    import matplotlib

    target = io.StringIO()
    # Text as text: small, selectable, in the page's font. A fixed salt: the same numbers give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif"}):
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids must be unique in a page with several plots.
    prefix = re.sub(r"[^a-z0-9]+", "-", title.lower())
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{prefix}-\1"', text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    name = escape(title, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{name}"', 1)


# ---- style: system fonts, light and dark, readable from phone to desktop --------------------------------------------

STYLE = (
    BASE_STYLE
    + """
h2 { margin: 2.5rem 0 .5rem; font-size: 1.3rem; }
h3 { margin: 1.5rem 0 .5rem; font-size: 1.05rem; }
code { background: var(--card); padding: .1em .3em; border-radius: .25em; overflow-wrap: anywhere; }
a { color: var(--accent); } nav a { margin-right: 1rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--card); vertical-align: bottom; white-space: normal; font-weight: 600; hyphens: manual; }
th:first-child { position: sticky; left: 0; background: var(--page); text-align: left; font-weight: 400;
  min-width: 11rem; max-width: 15rem; white-space: normal; }
thead th:first-child { background: var(--card); font-weight: 600; }
tr.gates th, tr.gates td { font-weight: 600; } tr.reference > *, tr.encoder > * { color: var(--soft); font-style: italic; }
td.best { box-shadow: inset 0 -2px var(--accent); }
.spread { display: block; color: var(--soft); font-size: .75rem; font-weight: 400; font-style: normal; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .75rem; background: var(--card); border-radius: .5rem; color: var(--ink); }
figure svg { width: 100%; height: auto; display: block; } figcaption { color: var(--soft); font-size: .875rem; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; padding: .5rem .75rem; }
summary { cursor: pointer; overflow-wrap: anywhere; } dl { margin: .5rem 0 0; }
dl > div { display: grid; grid-template-columns: 15rem 1fr; gap: 0 1rem; padding: .3rem 0;
  border-top: 1px solid var(--line); }
dt { color: var(--soft); font-size: .875rem; } dd { margin: 0; overflow-wrap: anywhere; line-height: 1.9; }
.gates dt { color: var(--ink); font-weight: 600; } .gold b { border-bottom: 2px solid var(--accent); }
mark.top { text-decoration: underline; text-decoration-thickness: 2px; text-underline-offset: .2em; }
@media (max-width: 40rem) { dl > div { grid-template-columns: 1fr; }
  th:first-child { min-width: 6.5rem; max-width: 7.5rem; } th, td { padding: .3rem .45rem; } }
@media print { .scroll { overflow: visible; } }
"""
)
