"""All numbers of one method on one corpus, from its word scores: values, intervals and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..configuration_hardkuma import ENTITIES
from ..data import LabelledSentence
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import score_texts
from .baselines.encoder import SentenceEncoder
from .baselines.words import WordScores
from .corpora import labels_of, read_corpus, texts_of
from .faithfulness import RATES, faithfulness
from .metrics import Ranking, f1_from_counts, f1_of_selection, gold_spans, selected_spans, span_counts, span_f1
from .statistics import Interval, bootstrap, weighted_mean

FAITHFULNESS = ("sufficiency", "comprehensiveness")
Runs = Sequence[Sequence[WordScores]]
Statistic = Callable[[np.ndarray], dict[str, float]]  # weights of the sentences -> values by name
# Entity words that are easily missed: the share that is selected is measured for each sort.
HARD_WORDS: dict[str, Callable[[str], bool]] = {
    "digits": lambda word: any(character.isdigit() for character in word),
    "lower_case": str.islower,
}


def label_metrics(
    sentences: Sequence[LabelledSentence], runs: Runs, samples: int = 1000, ranked: bool = True
) -> dict[str, Interval]:
    """Metrics against the tags: the mean over runs (seeds), with one bootstrap over sentences for all.

    Spans come from the top words at the gold rate. Runs that decide by themselves (gates, capitals) have their own
    decisions measured as well: `f1_own`, `precision_own`, `recall_own`, `recall_digits` and `recall_lower_case` (of
    `hard_words`), `span_f1_exact_own`, `span_f1_overlap_own` and `selection_rate`.

    Args:
        ranked: False for methods that decide and no more; then there is nothing but decisions to measure.

    >>> sentences = [LabelledSentence("in Rome", ((0, 2), (3, 7)), ("O", "B-LOC"))]
    >>> run = [WordScores("in Rome", [(0, 2), (3, 7)], [0.1, 0.9])]
    >>> label_metrics(sentences, [run], samples=10)["average_precision"]
    Interval(value=1.0, low=1.0, high=1.0)
    """
    of_runs: list[list[Statistic]] = []
    for run in runs:
        parts = [] if not ranked else _of_ranking(sentences, run)
        chosen = [result.selected for result in run if result.selected is not None]
        of_runs.append(parts + (_of_decisions(sentences, chosen) if len(chosen) == len(run) else []))

    def statistic(weights: np.ndarray) -> dict[str, float]:
        values = [{name: value for part in parts for name, value in part(weights).items()} for parts in of_runs]
        return {name: float(np.mean([value[name] for value in values])) for name in values[0]}

    return bootstrap(statistic, len(sentences), samples)


def lower_case_metrics(
    sentences: Sequence[LabelledSentence], runs: Runs, samples: int = 1000, ranked: bool = True
) -> dict[str, Interval]:
    """`f1_lower` of decisions on lower-cased text and, for scores, `average_precision_lower` without bounds.

    >>> sentences = [LabelledSentence("in rome", ((0, 2), (3, 7)), ("O", "B-LOC"))]
    >>> run = [WordScores("in rome", [(0, 2), (3, 7)], [0.1, 0.9], [True, True])]
    >>> {name: round(interval.value, 2) for name, interval in lower_case_metrics(sentences, [run], 0).items()}
    {'f1_lower': 0.67, 'average_precision_lower': 1.0}
    """
    labels = labels_of(sentences)
    counts = [f1_of_selection(labels, [one.selected or [] for one in run]) for run in runs]

    def statistic(weights: np.ndarray) -> dict[str, float]:
        return {"f1_lower": float(np.mean([f1_from_counts(weights @ rows) for rows in counts]))}

    measured = bootstrap(statistic, len(sentences), samples)
    if ranked:
        values = [Ranking(labels, [one.scores for one in run]).curve().average_precision() for run in runs]
        measured["average_precision_lower"] = Interval(float(np.mean(values)), float("nan"), float("nan"))
    return measured


def hard_words(sentences: Sequence[LabelledSentence]) -> dict[str, list[list[int]]]:
    """Labels of those entity words alone that have a digit, and of those in lower case.

    >>> hard_words([LabelledSentence("the u2 of Rome", ((0, 3), (4, 6), (7, 9), (10, 14)), ("O", "B-X", "O", "B-X"))])
    {'digits': [[0, 1, 0, 0]], 'lower_case': [[0, 1, 0, 0]]}
    """
    return {
        name: [
            [int(entity and fits(word)) for word, entity in zip(sentence.words, sentence.entity_mask, strict=True)]
            for sentence in sentences
        ]
        for name, fits in HARD_WORDS.items()
    }


def _of_ranking(sentences: Sequence[LabelledSentence], run: Sequence[WordScores]) -> list[Statistic]:
    labels = labels_of(sentences)
    ranking = Ranking(labels, [result.scores for result in run])
    return [
        lambda weights: ranking.curve(weights).numbers(),
        _of_spans(top_of_corpus(labels, run), sentences),
    ]


def _of_decisions(sentences: Sequence[LabelledSentence], chosen: list[list[bool]]) -> list[Statistic]:
    counts = f1_of_selection(labels_of(sentences), chosen)
    hard = {f"recall_{name}": f1_of_selection(labels, chosen) for name, labels in hard_words(sentences).items()}
    sizes = np.array([[sum(row), len(row)] for row in chosen], dtype=float)

    def statistic(weights: np.ndarray) -> dict[str, float]:
        hits, selected, entities = weights @ counts
        return {
            "f1_own": f1_from_counts(weights @ counts),
            "precision_own": _ratio(hits, selected),
            "recall_own": _ratio(hits, entities),
            "selection_rate": _ratio(*(weights @ sizes)),
            **{name: _ratio(*(weights @ rows)[[0, 2]]) for name, rows in hard.items()},
        }

    return [statistic, _of_spans(chosen, sentences, "_own")]


def _of_spans(chosen: list[list[bool]], sentences: Sequence[LabelledSentence], suffix: str = "") -> Statistic:
    pairs = [(selected_spans(row), gold_spans(one.tags)) for row, one in zip(chosen, sentences, strict=True)]
    counts = {
        f"span_f1_{match}{suffix}": np.array([span_counts(*pair, match) for pair in pairs], dtype=float).reshape(-1, 4)
        for match in ("exact", "overlap")
    }
    return lambda weights: {name: span_f1(weights @ rows) for name, rows in counts.items()}


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def top_of_corpus(labels: Sequence[Sequence[int]], run: Sequence[WordScores]) -> list[list[bool]]:
    """The top words over all sentences, as many as there are entity words; ties in a seeded random order.

    >>> run = [WordScores("a b", [(0, 1), (2, 3)], [0.1, 0.9]), WordScores("c", [(0, 1)], [0.8])]
    >>> top_of_corpus([[1, 0], [0]], run)
    [[False, True], [False]]
    """
    values = np.array([score for result in run for score in result.scores])
    order = np.lexsort((np.random.default_rng(0).random(len(values)), -values))
    top = np.zeros(len(values), dtype=bool)
    top[order[: sum(map(sum, labels))]] = True
    ends = np.cumsum([len(result.scores) for result in run])[:-1]
    return [part.tolist() for part in np.split(top, ends)]


def precision_recall(sentences: Sequence[LabelledSentence], runs: Runs) -> dict[str, list[float]]:
    """The curve of the first run, for a plot."""
    curve = Ranking(labels_of(sentences), [result.scores for result in runs[0]]).curve()
    recall, precision = curve.precision_recall()
    return {"recall": [round(value, 4) for value in recall], "precision": [round(value, 4) for value in precision]}


def faithfulness_metrics(
    encoders: Sequence[SentenceEncoder],
    runs: Runs,
    rates: Sequence[float] = RATES,
    removal: str = "mask",
    samples: int = 1000,
) -> tuple[dict[str, Interval], dict[str, list[float]], dict[str, np.ndarray]]:
    """Areas under the sufficiency and comprehensiveness curves with intervals; the mean curves; and the areas of each
    sentence. All are means over runs, each with its own encoder."""
    found = [faithfulness(encoder, run, rates, removal) for encoder, run in zip(encoders, runs, strict=True)]
    areas = {name: np.mean([one.areas(getattr(one, name)) for one in found], axis=0) for name in FAITHFULNESS}

    def statistic(weights: np.ndarray) -> dict[str, float]:
        return {name: weighted_mean(values, weights) for name, values in areas.items()}

    curves = {"rates": list(map(float, rates))}
    for name in FAITHFULNESS:
        mean = np.nanmean(np.stack([getattr(one, name) for one in found]), axis=(0, 1))
        curves[name] = [round(float(value), 4) for value in mean]
    return bootstrap(statistic, len(runs[0]), samples), curves, areas


def entity_numbers(model: HardKumaModel, path: str | Path) -> dict[str, float]:
    """Of `entities`, or of the only selector, against the entity words of a labelled file: average precision of word
    scores, F1 at the model's own threshold, and the best F1 of any threshold. For reporting, never for choosing.

    A word's score is the largest selection probability of its tokens. Higher is better for all three.

    Args:
        model: in eval mode, with its tokenizer.
        path: a CoNLL file; every tag but `O` counts as an entity word.
    """
    sentences = read_corpus(path).sentences
    texts, words = texts_of(sentences)
    config = model.config
    selector = config.names[config.find_selector(default=ENTITIES)]
    scored = score_texts(model, texts, words=words, batch_size=64, selector=selector)
    scores = [sentence.probabilities for sentence in scored]
    labels = labels_of(sentences)
    curve = Ranking(labels, scores).curve()
    chosen = [[int(score > config.decision_threshold) for score in row] for row in scores]
    return {
        "average precision": curve.average_precision(),
        "F1": f1_from_counts(f1_of_selection(labels, chosen).sum(0)),
        "best F1": curve.best_f1(),
    }
