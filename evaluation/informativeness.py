"""Do word weights follow information? Rank correlation of word scores with self-information and information gain.

The question of Kurita et al. (2023) - contrastive sentence encoders weight words by their information - asked of gates,
integrated gradients, SHAP and norms, per corpus and part of speech, before and after training:

    python -m hardkuma.evaluation.informativeness --before ENCODER --after CHECKPOINT --data DIR --output runs/information
    ... --model released=CHECKPOINT --corpora ud-ewt                    more models, fewer corpora
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..common.arguments import find_named
from ..common.files import write_atomically
from ..common.packages import versions
from ..data import LabelledSentence, read_conll
from ..encoder_hardkuma import fingerprint
from .baselines.encoder import SentenceEncoder, tracker
from .baselines.registry import GATES, METHODS, find_method
from .baselines.words import WordScores
from .corpora import Corpus, find_corpora, texts_of
from .report import bar_plot
from .results import as_json
from .statistics import Interval, bootstrap, spearman

WEIGHTS = ("gates", "integrated_gradients", "shap", "norm")
INFORMATION = ("self_information", "information_gain")
ALL = "all"


@dataclass
class Correlation:
    """Spearman correlation of one method's word scores with one measure of information.

    Attributes:
        tag: part of speech, or "all".
        pooled: over all words together, with a 95% interval (bootstrap over sentences).
        within: mean over sentences of the correlation inside the sentence; free of differences between sentences.
        words: how many words.
    """

    model: str
    corpus: str
    method: str
    information: str
    tag: str
    pooled: Interval
    within: float
    words: int


def correlate(
    models: Mapping[str, SentenceEncoder],
    corpora: Sequence[Corpus],
    methods: Sequence[str] = WEIGHTS,
    sample: int = 100,
    by_tag: Sequence[str] = (),
    minimum: int = 30,
    draws: int = 200,
    seed: int = 0,
    progress: bool = False,
) -> list[Correlation]:
    """Correlations of every model, corpus and method.

    Args:
        models: by name, such as {"before": ..., "after": ...}. Methods that a model cannot run (gates without a gate
            head) are left out for it.
        corpora: with tags; those named in `by_tag` are also split by tag.
        sample: sentences per corpus. Counts for information gain come from the whole corpus.
        minimum: words that a tag needs to be listed.
        draws: of the bootstrap.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> encoder = toy_encoder({"the": [0.1], "museum": [2.0], "zymurgy": [3.0]})
    >>> words, tags = ((0, 3), (4, 11), (12, 18)), ("DET", "NOUN", "NOUN")
    >>> corpus = Corpus("toy", [LabelledSentence("the zymurgy museum", words, tags)])
    >>> correlate({"encoder": encoder}, [corpus], ["norm"], draws=0)[0].pooled.value  # rarer words, longer vectors
    1.0
    """
    rows: list[Correlation] = []
    with tracker(len(models) * len(corpora) * len(methods), progress, "informativeness") as bar:
        for corpus in corpora:
            sentences = corpus.sample(sample, seed)
            information = {name: _information(name, corpus, sentences) for name in INFORMATION}
            known: dict[tuple[str, str], list[WordScores]] = {}  # the same weights of a frozen encoder, once
            for model, encoder in models.items():
                for name in methods:
                    method = find_method(name)
                    bar.update(1)
                    weighted = encoder.model if method.role == GATES else encoder.encoder
                    if weighted is None:
                        continue
                    texts, words = texts_of(sentences)
                    key = (name, fingerprint(weighted))
                    scores = known[key] if key in known else method.scores(encoder, texts, words)
                    known[key] = scores
                    for measure, values in information.items():
                        tags = [ALL, *_common_tags(sentences, minimum)] if corpus.name in by_tag else [ALL]
                        for tag in tags:
                            measured = _correlation(sentences, scores, values, tag, draws, seed)
                            rows.append(Correlation(model, corpus.name, name, measure, tag, *measured))
    return rows


def _information(name: str, corpus: Corpus, sentences: Sequence[LabelledSentence]) -> list[WordScores]:
    texts, words = texts_of(sentences)
    options = {"counts": corpus.counts} if METHODS[name].counted else {}
    return METHODS[name].scores(None, texts, words, **options)


def _common_tags(sentences: Sequence[LabelledSentence], minimum: int) -> list[str]:
    tags = [tag for sentence in sentences for tag in sentence.tags]
    return sorted({tag for tag in tags if tags.count(tag) >= minimum}, key=lambda tag: -tags.count(tag))


def _correlation(
    sentences: Sequence[LabelledSentence],
    scores: Sequence[WordScores],
    information: Sequence[WordScores],
    tag: str,
    draws: int,
    seed: int,
) -> tuple[Interval, float, int]:
    """Pooled with interval, within sentences, number of words."""
    pairs: list[np.ndarray] = []  # (words, 2) per sentence
    for sentence, one, other in zip(sentences, scores, information, strict=True):
        chosen = [i for i, own in enumerate(sentence.tags) if tag in (ALL, own)]
        pairs.append(np.array([[one.scores[i], other.scores[i]] for i in chosen]).reshape(-1, 2))

    def statistic(weights: np.ndarray) -> dict[str, float]:
        drawn = [pairs[i] for i in np.repeat(np.arange(len(pairs)), weights.astype(int))]
        together = np.concatenate(drawn) if drawn else np.zeros((0, 2))
        return {"pooled": spearman(together[:, 0], together[:, 1])}

    inside = [value for rows in pairs if math.isfinite(value := spearman(rows[:, 0], rows[:, 1]))]
    pooled = bootstrap(statistic, len(pairs), draws, seed=seed)["pooled"]
    return pooled, float(np.mean(inside)) if inside else float("nan"), sum(len(rows) for rows in pairs)


def tagged_corpus(path: str | Path) -> Corpus:
    """A CoNLL-U file as a corpus whose tags are universal parts of speech."""
    return Corpus(Path(path).parent.name or Path(path).stem, list(read_conll(path)))


def correlation_table(rows: Sequence[Correlation]) -> str:
    """Markdown: methods and models down, measures of information across, one table per corpus and tag."""
    lines = ["# Do word weights follow information?", ""]
    for corpus, tag in dict.fromkeys((row.corpus, row.tag) for row in rows):
        listed = [row for row in rows if (row.corpus, row.tag) == (corpus, tag)]
        lines += [f"## {corpus}, {'all words' if tag == ALL else tag} ({listed[0].words} words)", ""]
        lines.append("| weights | model | " + " | ".join(f"{measure}, pooled | within" for measure in INFORMATION) + " |")
        lines.append("|---|---|" + "---:|---:|" * len(INFORMATION))
        for method, model in dict.fromkeys((row.method, row.model) for row in listed):
            cells = []
            for measure in INFORMATION:
                row = next(r for r in listed if (r.method, r.model, r.information) == (method, model, measure))
                cells += [_shown(row.pooled), "" if math.isnan(row.within) else f"{row.within:.2f}"]
            lines.append(f"| {METHODS[method].title} | {model} | {' | '.join(cells)} |")
        lines.append("")
    lines += [
        "Spearman correlation; pooled: over all words, with a 95% interval (bootstrap over sentences); within: mean over",
        "sentences. Self-information from wordfreq; information gain from the corpus' own co-occurrences.",
        "",
    ]
    return "\n".join(lines)


def _shown(interval: Interval) -> str:
    if math.isnan(interval.value):
        return ""
    bounds = "" if math.isnan(interval.low) else f" [{interval.low:.2f}, {interval.high:.2f}]"
    return f"{interval.value:.2f}{bounds}"


def correlation_plot(rows: Sequence[Correlation], corpus: str, information: str = "self_information") -> str:
    """Bars by part of speech (or "all"), one colour per method and model, as SVG."""
    drawn = [row for row in rows if row.corpus == corpus and row.information == information]
    tags = list(dict.fromkeys(row.tag for row in drawn))
    bars: dict[str, list[float]] = {}
    for method, model in dict.fromkeys((row.method, row.model) for row in drawn):
        values = {row.tag: row.pooled.value for row in drawn if (row.method, row.model) == (method, model)}
        bars[f"{method}, {model}"] = [values.get(tag, float("nan")) for tag in tags]
    return bar_plot(tags, bars, f"Spearman with {information.replace('_', ' ')}", f"{corpus} {information}")


def main(arguments: Sequence[str] | None = None) -> int:
    """From the command line; writes informativeness.json, .md and one plot per corpus and measure of information."""
    parser = argparse.ArgumentParser(
        prog="python -m hardkuma.evaluation.informativeness", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--before", required=True, help="encoder or checkpoint before training")
    parser.add_argument("--after", required=True, help="checkpoint after training")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER", help="another to set beside them")
    parser.add_argument("--corpora", nargs="+", metavar="NAME", help="of those in --data (default: all)")
    parser.add_argument("--data", required=True, help="folder with wnut17/, wikigold/ and ud-ewt/dev.conllu")
    parser.add_argument("--output", default="runs/informativeness", help="folder for results (default: %(default)s)")
    parser.add_argument("--methods", nargs="+", default=list(WEIGHTS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--sample", type=int, default=100, help="sentences per corpus (default: %(default)s)")
    parser.add_argument("--tags", nargs="+", metavar="TAG", help="parts of speech to show, and 'all' (default: all common)")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    folders = {"before": options.before, "after": options.after}
    for named in options.model:
        name, given, folder = named.partition("=")
        if not given:
            parser.error(f"--model must be NAME=FOLDER, got {named!r}")
        folders[name] = folder
    models = {name: SentenceEncoder.load(folder) for name, folder in folders.items()}
    treebank = Path(options.data) / "ud-ewt" / "dev.conllu"
    tagged = [tagged_corpus(treebank)] if treebank.is_file() else []
    known = {corpus.name: corpus for corpus in [*find_corpora(options.data), *tagged]}
    asked = [find_named("corpus", name, known) for name in options.corpora or known]
    rows = correlate(
        models,
        asked,
        options.methods,
        options.sample,
        by_tag=[corpus.name for corpus in tagged],
        progress=not options.quiet,
    )
    if options.tags:
        measured = {row.tag: row.tag for row in rows}
        chosen = [find_named("tag", tag, measured) for tag in options.tags]
        rows = [row for row in rows if row.tag in chosen]
    folder, table = Path(options.output), correlation_table(rows)
    values = [{**asdict(row), "pooled": as_json(row.pooled), "within": _or_none(row.within)} for row in rows]
    write_atomically(folder / "informativeness.json", json.dumps({"versions": versions(), "rows": values}, indent=1))
    write_atomically(folder / "informativeness.md", table)
    for corpus in asked:
        for measure in INFORMATION:
            write_atomically(folder / f"{corpus.name}-{measure}.svg", correlation_plot(rows, corpus.name, measure))
    print(table)
    return 0


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


if __name__ == "__main__":
    sys.exit(main())
