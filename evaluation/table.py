"""Results as Markdown tables, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.files import write_atomically
from .results import MethodResult


@dataclass(frozen=True)
class Column:
    """A column: heading with the direction that is better, and what it shows of a result."""

    name: str
    heading: str
    interval: bool = False


COLUMNS = (
    Column("average_precision", "AP ↑", interval=True),
    Column("common", "AP, common ↑"),
    Column("auroc", "AUROC ↑"),
    Column("f1_at_gold_rate", "F1 at gold rate ↑"),
    Column("best_f1", "best F1 ↑"),
    Column("f1_own", "F1 own ↑"),
    Column("precision_at_rate", "P at 10% ↑"),
    Column("span_f1_exact", "span F1 exact ↑"),
    Column("span_f1_overlap", "span F1 overlap ↑"),
    Column("sufficiency", "sufficiency ↑", interval=True),
    Column("comprehensiveness", "comprehensiveness ↑", interval=True),
    Column("passes", "passes / sentence ↓"),
    Column("milliseconds", "ms / sentence ↓"),
    Column("sentences", "sentences"),
)
SHORT = ("average_precision", "f1_at_gold_rate", "sufficiency", "comprehensiveness", "passes")


def cell(result: MethodResult, column: Column) -> str:
    """What a column shows of a result.

    >>> from hardkuma.evaluation.results import MethodResult
    >>> result = MethodResult("m", "m", "peer", "1", "c", 10, 90, 1, {}, "", {}, "", 0.5, 10, 0)
    >>> cell(result, Column("milliseconds", "ms")), cell(result, Column("auroc", "AUROC"))
    ('50', '')
    """
    if column.name == "passes":
        return f"{result.passes_per_sentence:.1f}"
    if column.name == "milliseconds":
        return milliseconds(result.seconds_per_sentence)
    if column.name == "sentences":
        return str(result.sentences) if result.runs == 1 else f"{result.sentences} x {result.runs} runs"
    values = result.common if column.name == "common" else result.metrics.get(column.name, {})
    value, low, high = (values.get(name) for name in ("value", "low", "high"))
    if value is None:
        return ""
    shown = _short(value)
    if not column.interval or low is None or high is None:
        return shown
    return f"{shown} [{_short(low)}, {_short(high)}]"


def milliseconds(seconds: float) -> str:
    """Three digits at most, never an exponent.

    >>> [milliseconds(value) for value in (1.0234, 0.0123, 0.0000081)]
    ['1023', '12.3', '0.01']
    """
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2f}"


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.3f}"


def in_order(results: Sequence[MethodResult]) -> list[MethodResult]:
    """Best average precision first; lines of reference and the bare encoder last."""
    last = {"reference": 1, "encoder": 2}
    return sorted(results, key=lambda r: (last.get(r.kind, 0), -(r.value("average_precision") or 0.0), r.method))


def markdown_table(results: Sequence[MethodResult], columns: Sequence[str] | None = None) -> str:
    """One table for the results of one corpus.

    Args:
        columns: names to show; all by default, `SHORT` for a card.
    """
    shown = [column for column in COLUMNS if columns is None or column.name in columns]
    lines = [f"| method | {' | '.join(column.heading for column in shown)} |"]
    lines.append("|---|" + "---:|" * len(shown))
    for result in in_order(results):
        if result.kind == "encoder" and columns is not None:
            continue
        title = result.title.replace("|", "\\|")
        name = (
            f"**{title}**" if result.kind == "gates" else f"*{title}*" if result.kind in ("reference", "encoder") else title
        )
        lines.append(f"| {name} | {' | '.join(cell(result, column) for column in shown)} |")
    return "\n".join(lines)


def markdown_report(results: Sequence[MethodResult], command: str, notes: Sequence[str] = ()) -> str:
    """Tables of all corpora, what they show, and the command that makes them."""
    parts = ["# Which words carry the embedding? A benchmark", ""]
    parts += [f"Made with `{command}`.", "", *LEGEND, ""]
    for corpus in dict.fromkeys(result.corpus for result in results):
        of_corpus = [result for result in results if result.corpus == corpus]
        parts += [f"## {corpus}", "", markdown_table(of_corpus), ""]
    if notes:
        parts += ["## Notes", "", *[f"- {note}" for note in notes], ""]
    return "\n".join(parts)


BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"


def card_table(results: Sequence[MethodResult], command: str) -> str:
    """One short table over all corpora for a README or a model card, best mean average precision first.

    Sufficiency and comprehensiveness are means over the corpora; the command that makes it stands below.
    """
    corpora = list(dict.fromkeys(result.corpus for result in results))
    methods: dict[str, dict[str, MethodResult]] = {}
    for result in results:
        if result.kind != "encoder":
            methods.setdefault(result.method, {})[result.corpus] = result
    headings = [f"AP {corpus} ↑" for corpus in corpora] + ["sufficiency ↑", "comprehensiveness ↑", "passes / sentence ↓"]
    lines = [BEGIN, f"| method | {' | '.join(headings)} |", "|---|" + "---:|" * len(headings)]

    def mean(by_corpus: dict[str, MethodResult], name: str) -> float:
        values = [value for result in by_corpus.values() if (value := result.value(name)) is not None]
        return sum(values) / len(values) if values else 0.0

    order = sorted(
        methods.values(),
        key=lambda by_corpus: (next(iter(by_corpus.values())).kind == "reference", -mean(by_corpus, "average_precision")),
    )
    for by_corpus in order:
        first = next(iter(by_corpus.values()))
        title = first.title.replace("|", "\\|")
        title = f"**{title}**" if first.kind == "gates" else f"*{title}*" if first.kind == "reference" else title
        cells = [_short(by_corpus[name].value("average_precision") or 0.0) if name in by_corpus else "" for name in corpora]
        cells += [_short(mean(by_corpus, name)) for name in ("sufficiency", "comprehensiveness")]
        cells.append(f"{sum(result.passes_per_sentence for result in by_corpus.values()) / len(by_corpus):.1f}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    spread = _spread(results, corpora)
    return "\n".join([*lines, "", f"{CARD_LEGEND}{spread} Made with `{command}`.", END])


def _spread(results: Sequence[MethodResult], corpora: Sequence[str]) -> str:
    """How far the seeds of a recipe are apart, where there are several."""
    runs = max((result.runs for result in results if result.kind == "gates"), default=1)
    if runs < 2:
        return ""
    parts = []
    for result in results:
        values = result.metrics.get("average_precision", {}).get("runs") or []
        if result.kind == "gates" and len(values) > 1:
            parts.append(f"{result.title} on {result.corpus} {_short(min(values))} to {_short(max(values))}")
    return f" Gates: mean of {runs} seeds" + (f" ({'; '.join(parts)})" if parts else "") + "."


def write_table(path: Path, table: str) -> None:
    """Replace what stands between the marks of a Markdown file; a folder means its README.md.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "README.md").write_text(f"before {BEGIN} old {END} after")
    ...     write_table(Path(folder), f"{BEGIN} new {END}")
    ...     (Path(folder) / "README.md").read_text()
    'before <!-- benchmark: begin --> new <!-- benchmark: end --> after'
    """
    path = path / "README.md" if path.is_dir() else path
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for the table: put {BEGIN} and {END} into it.")
    write_atomically(path, before + table + after)


CARD_LEGEND = (
    "AP: average precision of word scores against gold entity words, which no method was trained on. Sufficiency: cosine "
    "of the top words' embedding to the sentence's; comprehensiveness: 1 - cosine of the rest's; re-encoded, mean over "
    "selection rates of 5 to 50% and over the corpora. ↑ higher is better, ↓ lower is better."
)
LEGEND = (
    "AP: average precision of word scores against gold entity words, over all words of the sample, with a 95% interval "
    "(bootstrap over sentences); common: on the sentences that all methods have in common. F1 own: at the model's own "
    "threshold. P at 10%: share of entity words among the top tenth. Span F1: adjacent selected words merged, selected at "
    "the gold rate. Sufficiency: cosine of the top words' embedding to the sentence's; comprehensiveness: 1 - cosine of "
    "the rest's; both re-encoded, mean over selection rates of 5 to 50%. Passes: forward and backward. ↑ higher is "
    "better, ↓ lower is better.",
)
