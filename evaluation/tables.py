"""Results as Markdown tables, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..common.files import write_atomically
from .baselines.registry import GATES, REFERENCE
from .results import MethodResult, as_json, faithful_gates, paired_differences

CARD_DRAWS = 1000  # for the intervals of a card, over the sentences of all corpora


@dataclass(frozen=True)
class Column:
    """A column: heading with the direction that is better, and what it shows of a result."""

    name: str
    heading: str
    interval: bool = False


PASSES = Column("passes", "passes / sentence ↓")
COST = (PASSES, Column("milliseconds", "ms / sentence ↓"))
ENTITY_COLUMNS = (
    Column("average_precision", "AP ↑", interval=True),
    Column("f1_own", "F1 own ↑", interval=True),
    Column("f1_lower", "F1 own, lower-cased ↑", interval=True),
    Column("precision_own", "precision own ↑"),
    Column("recall_own", "recall own ↑"),
    Column("auroc", "AUROC ↑"),
    Column("f1_at_gold_rate", "F1 at gold rate ↑"),
    Column("best_f1", "best F1 ↑"),
    Column("precision_at_rate", "P at 10% ↑"),
    Column("span_f1_exact", "span F1 exact ↑"),
    Column("span_f1_overlap", "span F1 overlap ↑"),
    *COST,
    Column("sentences", "sentences"),
)
COMMON_COLUMNS = (Column("common", "AP, same sentences ↑", interval=True), *COST)
RECALL_COLUMNS = (
    Column("recall_own", "recall ↑", interval=True),
    Column("recall_digits", "of words with digits ↑", interval=True),
    Column("recall_lower_case", "of words in lower case ↑", interval=True),
)
FAITHFULNESS_COLUMNS = (
    Column("sufficiency", "sufficiency ↑", interval=True),
    Column("sufficiency difference", "gates - method", interval=True),
    Column("comprehensiveness", "comprehensiveness ↑", interval=True),
    Column("comprehensiveness difference", "gates - method", interval=True),
    *COST,
)


@dataclass(frozen=True)
class Table:
    """One table of one corpus, all of whose rows are on the same sentences.

    Attributes:
        title, note: what it shows, and on how many sentences.
        columns, results: best first by the first column, lines of reference last.
    """

    title: str
    note: str
    columns: tuple[Column, ...]
    results: list[MethodResult]


def corpus_tables(results: Sequence[MethodResult]) -> list[Table]:
    """The tables of one corpus: entity words on the full sample, on the sentences that expensive methods have too, the
    entity words that are easily missed, and faithfulness. Tables without rows are left out."""
    full = max((result.sentences for result in results), default=0)
    sampled = [result for result in results if result.sentences == full]
    deciding = [result for result in sampled if result.value("recall_own") is not None]
    faithful = [result for result in results if result.value("sufficiency") is not None]
    size = f"{full} sentences, {sampled[0].words:,} words, the same for every row." if sampled else ""
    tables = [Table("Entity words", size, ENTITY_COLUMNS, in_order(sampled))]
    if len(sampled) < len(results):
        ranked = [result for result in results if result.common]
        number = min((int(result.common.get("sentences") or 0) for result in ranked), default=0)
        note = f"The first {number} of these sentences, for every row: methods of many passes beside the others."
        tables.append(Table("Entity words, methods of many passes too", note, COMMON_COLUMNS, in_order(ranked, "common")))
    if deciding:
        digits, small = (deciding[0].metrics[f"recall_{name}"].get("words", 0) for name in ("digits", "lower_case"))
        hard = f"{digits} entity words with a digit and {small} in lower case"
        note = f"Share of entity words that are selected: of all, of {hard}. {size}"
        ordered = in_order(deciding, "recall_own")
        tables.append(Table("Entity words that are easily missed", note, RECALL_COLUMNS, ordered))
    if faithful:
        number = max(len(values) for result in faithful for values in result.areas.values())
        note = f"The first {number} sentences of the sample, the same for every row."
        if (gates := faithful_gates(faithful)) is not None:
            note += f" Gates - method: how much more {gates.title} have than the row, with a 95% interval (bootstrap over "
            note += "the same sentences of both)."
        tables.append(Table("Faithfulness", note, FAITHFULNESS_COLUMNS, in_order(faithful, "sufficiency")))
    return [replace(table, columns=_filled(table)) for table in tables if table.results]


def _filled(table: Table) -> tuple[Column, ...]:
    """The columns in which any row has something."""
    return tuple(column for column in table.columns if any(cell(result, column) for result in table.results))


def cell(result: MethodResult, column: Column) -> str:
    """What a column shows of a result.

    >>> result = MethodResult("m", "m", "baseline", "1", "c", 10, 90, 1, {}, "", {}, "", 0.5, 10, 0)
    >>> cell(result, Column("milliseconds", "ms")), cell(result, Column("auroc", "AUROC"))
    ('50', '')
    """
    if column.name == "passes":
        return f"{result.passes_per_sentence:.1f}"
    if column.name == "milliseconds":
        value = 1000 * result.seconds_per_sentence
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2f}"
    if column.name == "sentences":
        return str(result.sentences) if result.runs == 1 else f"{result.sentences} x {result.runs} runs"
    values = values_of(result, column.name)
    return _number(values if column.interval else {"value": values.get("value")}, " difference" in column.name)


def values_of(result: MethodResult, name: str) -> Mapping[str, Any]:
    """What a result has under the name of a column: value, low and high."""
    if name == "common":
        return result.common
    metric, _, difference = name.partition(" ")
    return (result.differences if difference else result.metrics).get(metric, {})


def _number(values: Mapping[str, Any] | float | None, signed: bool = False) -> str:
    """A value with its bounds, where it has any.

    >>> _number({"value": 0.5, "low": 0.25, "high": 1.0}), _number(-0.5, signed=True), _number(None)
    ('.500 [.250, 1.000]', '-.500', '')
    """
    if isinstance(values, Mapping):
        shown = [_number(values.get(name), signed) for name in ("value", "low", "high")]
        return f"{shown[0]} [{shown[1]}, {shown[2]}]" if all(shown) else shown[0]
    if values is None:
        return ""
    text = f"{values:+.3f}" if signed else f"{values:.3f}"
    return text.replace("0.", ".", 1) if abs(values) < 1 and (signed or values >= 0) else text


def in_order(results: Sequence[MethodResult], column: str = "average_precision") -> list[MethodResult]:
    """Best of a column first; lines of reference and the bare encoder last."""
    last = {REFERENCE: 1, "encoder": 2}

    def key(result: MethodResult) -> tuple[int, float, str]:
        return last.get(result.role, 0), -(values_of(result, column).get("value") or 0.0), result.method

    return sorted(results, key=key)


def _lines(headings: Sequence[str], rows: Sequence[tuple[MethodResult, Sequence[str]]]) -> str:
    """A Markdown table: gates bold, lines of reference slanted."""
    lines = [f"| method | {' | '.join(headings)} |", "|---|" + "---:|" * len(headings)]
    for result, cells in rows:
        mark = {GATES: "**", REFERENCE: "*", "encoder": "*"}.get(result.role, "")
        title = result.title.replace("|", "\\|")
        lines.append(f"| {mark}{title}{mark} | {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown_report(results: Sequence[MethodResult], command: str, notes: Sequence[str] = ()) -> str:
    """Tables of all corpora, what they show, and the command that makes them."""
    parts = ["# Which words carry the embedding? A benchmark", "", f"Made with `{command}`.", "", LEGEND, ""]
    for corpus in dict.fromkeys(result.corpus for result in results):
        parts += [f"## {corpus}", ""]
        for table in corpus_tables([result for result in results if result.corpus == corpus]):
            rows = [(result, [cell(result, column) for column in table.columns]) for result in table.results]
            shown = _lines([column.heading for column in table.columns], rows)
            parts += [f"### {table.title}", "", table.note, "", shown, ""]
    if notes:
        parts += ["## Notes", "", *[f"- {note}" for note in notes], ""]
    return "\n".join(parts)


# ---- a card: all corpora in two short tables ----------------------------------------------------------------------------

BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"


def card_table(results: Sequence[MethodResult], command: str) -> str:
    """Two short tables over all corpora for a README or a model card; the command that makes them stands below.

    Entity words on the full samples; and every method, means over the corpora, on the sentences that all have.
    """
    corpora = list(dict.fromkeys(result.corpus for result in results))
    methods: dict[str, list[MethodResult]] = {}
    for result in sorted(results, key=lambda result: corpora.index(result.corpus)):
        if result.role != "encoder":
            methods.setdefault(result.method, []).append(result)
    rows = list(methods.values())
    legend = f"{CARD_LEGEND}{_spread(results)} Made with `{command}`."
    return "\n".join([BEGIN, _card_entities(rows, corpora), "", _card_every(rows), "", legend, END])


def _card_entities(rows: Sequence[list[MethodResult]], corpora: Sequence[str]) -> str:
    full = {name: max(result.sentences for row in rows for result in row if result.corpus == name) for name in corpora}
    shown = [row for row in rows if all(result.sentences == full[result.corpus] for result in row)]
    lower = any(result.value("f1_lower") is not None for row in shown for result in row)
    headings = [f"AP {name} ↑" for name in corpora]
    headings += [f"F1 {name}{', as written / lower-cased' if lower else ''} ↑" for name in corpora]
    lines = []
    for row in sorted(shown, key=_card_order):
        of_corpus = {result.corpus: result.value for result in row}
        cells = [_number(of_corpus[name]("average_precision")) if name in of_corpus else "" for name in corpora]
        for name in corpora:
            values = [of_corpus[name](metric) for metric in ("f1_own", "f1_lower")] if name in of_corpus else []
            cells.append(" / ".join(_number(value) for value in values if value is not None))
        lines.append((row[0], [*cells, _mean_passes(row)]))
    sizes = ", ".join(f"{number} of {name}" for name, number in full.items())
    return f"{_lines([*headings, PASSES.heading], lines)}\n\nSentences, the same for every row: {sizes}."


def _card_every(rows: Sequence[list[MethodResult]]) -> str:
    """Average precision and faithfulness of every method on the sentences that all have."""
    first = faithful_gates([row[0] for row in rows])
    gates = next((row for row in rows if row[0] is first), None)
    shown = [row for row in rows if row[0].common]
    headings, lines = ["AP ↑"], []
    for name in ("sufficiency", "comprehensiveness"):
        headings += [f"{name} ↑", *(["gates - method"] if gates is not None else [])]
    for row in sorted(shown, key=lambda row: _card_order(row, "common")):
        cells = [_number(_mean([result.common.get("value") for result in row]))]
        differences = {}
        if gates is not None and row is not gates and row[0].areas and len(row) == len(gates):
            differences = {name: as_json(gap) for name, gap in paired_differences(gates, row, CARD_DRAWS).items()}
        for name in ("sufficiency", "comprehensiveness"):
            cells.append(_number(_mean([result.value(name) for result in row])))
            cells += [_number(differences.get(name), signed=True)] if gates is not None else []
        lines.append((row[0], [*cells, _mean_passes(row)]))
    ranked = min((int(result.common.get("sentences") or 0) for row in shown for result in row), default=0)
    number = max((len(values) for row in shown for result in row for values in result.areas.values()), default=0)
    note = f"Means over the corpora, on the same sentences for every row: AP on the first {ranked} of each, the rest on "
    note += f"the first {number}."
    if gates is not None:
        note += f" Gates - method: {gates[0].title}, paired, with a 95% interval."
    return f"{_lines([*headings, PASSES.heading], lines)}\n\n{note}"


def _card_order(row: Sequence[MethodResult], column: str = "average_precision") -> tuple[bool, float]:
    return row[0].role == REFERENCE, -(_mean([values_of(result, column).get("value") for result in row]) or 0.0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean_passes(row: Sequence[MethodResult]) -> str:
    return f"{sum(result.passes_per_sentence for result in row) / len(row):.1f}"


def _spread(results: Sequence[MethodResult]) -> str:
    """How far the seeds of a recipe are apart, where there are several."""
    gates = [result for result in results if result.role == GATES and result.runs > 1]
    parts = []
    for result in gates:
        values = result.metrics.get("average_precision", {}).get("runs") or [0.0]
        parts.append(f"{result.title} on {result.corpus} {_number(min(values))} to {_number(max(values))}")
    return f" Gates: mean of {max(result.runs for result in gates)} seeds ({'; '.join(parts)})." if gates else ""


def write_table(path: Path, table: str) -> None:
    """Replace what stands between the marks of a Markdown file; a folder means its README.md."""
    path = path / "README.md" if path.is_dir() else path
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for the table: put {BEGIN} and {END} into it.")
    write_atomically(path, before + table + after)


_FAITHFUL = (
    "Sufficiency: cosine of the top words' embedding to the sentence's; comprehensiveness: 1 - cosine of the rest's; "
    "re-encoded, mean over selection rates of 5 to 50%. Passes: of the encoder, forward and backward; those that encode "
    "the vocabulary once, for gates that read isolated words, are not among them. ↑ higher is better, ↓ lower is better."
)
CARD_LEGEND = (
    "AP: average precision of word scores against gold entity words, which gates and baselines were not trained on. F1: of "
    "a method's own decisions (spaCy, whose models are trained on labels: entities of any type but numbers and times). "
) + _FAITHFUL
LEGEND = (
    "AP: average precision of word scores against gold entity words, over all words of the sample, with a 95% interval "
    "(bootstrap over sentences). Own: of a method's own decisions, gates at the model's threshold, spaCy's entities of any "
    "type but numbers and times; lower-cased: the same on text in lower case, with the same gold words. P at 10%: share of "
    "entity words among the top tenth. Span F1: adjacent selected words merged, selected at the gold rate. "
) + _FAITHFUL
