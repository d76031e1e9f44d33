"""Do word weights follow information? Rank correlation of word scores with self-information and information gain.

    python benchmarks/word_weighting.py --data FOLDER --model reset=ENCODER trained=CHECKPOINT released=CHECKPOINT
    python benchmarks/word_weighting.py --data FOLDER --model a=ENCODER --corpora ud-ewt --tags all NOUN VERB

The question of Kurita et al. (2023) - contrastive sentence encoders weigh words by their information - asked of gates,
integrated gradients, SHAP and norms: the tables of docs/how-it-works.md. FOLDER holds wnut17/, wikigold/ or
ud-ewt/dev.conllu, whose words are split by part of speech as well. --output gets the table.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardkuma.common.arguments import find_named
from hardkuma.common.files import write_atomically
from hardkuma.data import LabelledSentence
from hardkuma.encoder_hardkuma import fingerprint
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import GATES, METHODS, find_method
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.corpora import Corpus, find_corpora, read_corpus, texts_of
from hardkuma.evaluation.statistics import Interval, bootstrap, spearman

INFORMATION = ("self_information", "information_gain")
TREEBANK = "ud-ewt"
ALL = "all"
MINIMUM = 30  # words that a part of speech needs to be listed


@dataclass
class Correlation:
    """Spearman's correlation of one method's word scores with one measure of information.

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
    models: Mapping[str, SentenceEncoder], corpus: Corpus, methods: Sequence[str], sample: int = 100, draws: int = 200
) -> list[Correlation]:
    """Correlations of every model and method on one corpus. Methods that a model cannot run (gates of a bare encoder) are
    left out for it; counts for information gain come from the whole corpus."""
    sentences = corpus.sample(sample)
    texts, words = texts_of(sentences)
    counts = {name: {"counts": corpus.counts} if METHODS[name].counted else {} for name in INFORMATION}
    information = {name: METHODS[name].scores(None, texts, words, **counts[name]) for name in INFORMATION}
    counted = Counter(tag for sentence in sentences for tag in sentence.tags)
    tags = [ALL] + [tag for tag, n in counted.most_common() if n >= MINIMUM and corpus.name == TREEBANK]
    rows, known = [], dict[tuple[str, str], list[WordScores]]()  # the same weights of a frozen encoder, once
    for model, encoder in models.items():
        for name in methods:
            weighted = encoder.model if find_method(name).role == GATES else encoder.encoder
            if weighted is None:
                continue
            key = (name, fingerprint(weighted))
            if key not in known:
                known[key] = find_method(name).scores(encoder, texts, words)
            for measure, values in information.items():
                for tag in tags:
                    numbers = measure_correlation(sentences, known[key], values, tag, draws)
                    rows.append(Correlation(model, corpus.name, name, measure, tag, *numbers))
    return rows


def measure_correlation(
    sentences: Sequence[LabelledSentence],
    scores: Sequence[WordScores],
    information: Sequence[WordScores],
    tag: str,
    draws: int,
) -> tuple[Interval, float, int]:
    """Pooled with interval, within sentences, number of words."""
    pairs: list[np.ndarray] = []  # (words, 2) per sentence
    for sentence, one, other in zip(sentences, scores, information, strict=True):
        chosen = [i for i, own in enumerate(sentence.tags) if tag in (ALL, own)]
        pairs.append(np.array([[one.scores[i], other.scores[i]] for i in chosen]).reshape(-1, 2))

    def statistic(weights: np.ndarray) -> dict[str, float]:
        together = np.concatenate([pairs[i] for i in np.repeat(np.arange(len(pairs)), weights.astype(int))])
        return {"pooled": spearman(together[:, 0], together[:, 1])}

    inside = [value for rows in pairs if math.isfinite(value := spearman(rows[:, 0], rows[:, 1]))]
    pooled = bootstrap(statistic, len(pairs), draws)["pooled"]
    return pooled, float(np.mean(inside)) if inside else math.nan, sum(len(rows) for rows in pairs)


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
            for row in (row for row in listed if (row.method, row.model) == (method, model)):
                value, low, high = (f"{number:.2f}" for number in (row.pooled.value, row.pooled.low, row.pooled.high))
                cells += [f"{value} [{low}, {high}]", f"{row.within:.2f}"]
            lines.append(f"| {METHODS[method].title} | {model} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", nargs="+", required=True, metavar="NAME=FOLDER", help="encoders and checkpoints")
    parser.add_argument("--corpora", nargs="+", metavar="NAME", help="of those in FOLDER (default: all)")
    parser.add_argument("--methods", nargs="+", default=["gates", "integrated_gradients", "shap", "norm"], metavar="METHOD")
    parser.add_argument("--sample", type=int, default=100, help="sentences per corpus (default: %(default)s)")
    parser.add_argument(
        "--tags", nargs="+", metavar="TAG", help="parts of speech to show, and 'all' (default: common ones)"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/word_weighting"), help="default: %(default)s")
    options = parser.parse_args()
    models = {name: SentenceEncoder.load(folder) for name, _, folder in (item.partition("=") for item in options.model)}
    treebank = options.data / TREEBANK / "dev.conllu"
    known = {TREEBANK: read_corpus(treebank, TREEBANK)} if treebank.is_file() else {}
    if (options.data / "wnut17").is_dir() or (options.data / "wikigold").is_dir():
        known |= {corpus.name: corpus for corpus in find_corpora(options.data)}
    corpora = [find_named("corpus", name, known) for name in options.corpora or known]
    rows = [row for corpus in corpora for row in correlate(models, corpus, options.methods, options.sample)]
    rows = [row for row in rows if not options.tags or row.tag in options.tags]
    write_atomically(options.output / "table.md", correlation_table(rows))
    print(correlation_table(rows))


if __name__ == "__main__":
    main()
