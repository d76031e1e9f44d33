"""All numbers of one method on one corpus, from its word scores: values, intervals and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..data import LabelledSentence
from .baselines.encoder import SentenceEncoder
from .baselines.words import WordScores
from .bootstrap import Interval, bootstrap, weighted_mean
from .data import labels_of
from .faithfulness import RATES, Faithfulness, faithfulness
from .geometry import alignment, uniformity
from .ranking import Ranking, f1_from_counts, f1_of_selection
from .spans import gold_spans, selected_spans, span_counts, span_f1
from .stability import stability

FAITHFULNESS = ("sufficiency", "comprehensiveness")
GEOMETRY_RATE = 0.2
PRECISION_RATE = 0.1  # near the share of entity words in the corpora
Runs = Sequence[Sequence[WordScores]]
_Statistics = dict[str, Callable[[np.ndarray], float]]  # by name: weights of the sentences -> value
# Kinds of entity words that are easily missed: the share that is selected is measured for each.
HARD_WORDS: dict[str, Callable[[str], bool]] = {
    "digits": lambda word: any(character.isdigit() for character in word),
    "lower_case": str.islower,
}


def label_metrics(
    sentences: Sequence[LabelledSentence], runs: Runs, samples: int = 1000, seed: int = 0, ranked: bool = True
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
    parts: list[_Statistics] = []
    for run in runs:
        ranking = _ranking_statistics(sentences, run, seed) if ranked else {}
        parts.append(ranking | _decision_statistics(sentences, run))
    return _mean_of_runs(parts, len(sentences), samples, seed)


def lower_case_metrics(
    sentences: Sequence[LabelledSentence], runs: Runs, samples: int = 1000, seed: int = 0, ranked: bool = True
) -> dict[str, Interval]:
    """`f1_lower` of decisions on lower-cased text and, for scores, `average_precision_lower` without bounds.

    >>> sentences = [LabelledSentence("in rome", ((0, 2), (3, 7)), ("O", "B-LOC"))]
    >>> run = [WordScores("in rome", [(0, 2), (3, 7)], [0.1, 0.9], [True, True])]
    >>> {name: round(interval.value, 2) for name, interval in lower_case_metrics(sentences, [run], 0).items()}
    {'f1_lower': 0.67, 'average_precision_lower': 1.0}
    """
    own = [{"f1_lower": _decision_statistics(sentences, run)["f1_own"]} for run in runs]
    measured = _mean_of_runs(own, len(sentences), samples, seed)
    if ranked:
        labels = labels_of(sentences)
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


def _mean_of_runs(parts: Sequence[_Statistics], sentences: int, samples: int, seed: int) -> dict[str, Interval]:
    def statistic(weights: np.ndarray) -> dict[str, float]:
        values = [{name: part(weights) for name, part in functions.items()} for functions in parts]
        return {name: float(np.mean([value[name] for value in values])) for name in values[0]}

    return bootstrap(statistic, sentences, samples, seed=seed)


class _CurveMetrics:
    """The ranking metrics of one run; the curve is computed once per weights."""

    def __init__(self, labels: list[list[int]], run: Sequence[WordScores]):
        self.ranking = Ranking(labels, [result.scores for result in run])
        self.key: np.ndarray | None = None
        self.curve: Any = None

    def at(self, weights: np.ndarray) -> Any:
        if self.key is not weights:
            self.key, self.curve = weights, self.ranking.curve(weights)
        return self.curve


def _ranking_statistics(sentences: Sequence[LabelledSentence], run: Sequence[WordScores], seed: int) -> _Statistics:
    labels = labels_of(sentences)
    curve = _CurveMetrics(labels, run)
    functions: _Statistics = {
        "average_precision": lambda w: curve.at(w).average_precision(),
        "auroc": lambda w: curve.at(w).auroc(),
        "f1_at_gold_rate": lambda w: curve.at(w).f1_at_gold_rate(),
        "best_f1": lambda w: curve.at(w).best_f1(),
        "precision_at_rate": lambda w: curve.at(w).precision_at_rate(PRECISION_RATE),
    }
    return functions | _span_statistics(top_of_corpus(labels, run, seed), _gold(sentences), "")


def _decision_statistics(sentences: Sequence[LabelledSentence], run: Sequence[WordScores]) -> _Statistics:
    """Of runs that decide by themselves; none of the others."""
    chosen = [result.selected for result in run if result.selected is not None]
    if len(chosen) < len(run):
        return {}
    counts = f1_of_selection(labels_of(sentences), chosen)
    sizes = np.array([[sum(row), len(row)] for row in chosen], dtype=float)
    functions: _Statistics = {
        "f1_own": lambda w: f1_from_counts(w @ counts),
        "precision_own": lambda w: _ratio((w @ counts)[[0, 1]]),
        "recall_own": lambda w: _ratio((w @ counts)[[0, 2]]),
        "selection_rate": lambda w: _ratio(w @ sizes),
    }
    for name, labels in hard_words(sentences).items():
        functions[f"recall_{name}"] = _recall_statistic(f1_of_selection(labels, chosen))
    return functions | _span_statistics(chosen, _gold(sentences), "_own")


def _recall_statistic(counts: np.ndarray) -> Callable[[np.ndarray], float]:
    return lambda weights: _ratio((weights @ counts)[[0, 2]])


def _gold(sentences: Sequence[LabelledSentence]) -> list[list[tuple[int, int]]]:
    return [gold_spans(sentence.tags) for sentence in sentences]


def _span_statistics(chosen: list[list[bool]], gold: list[list[tuple[int, int]]], suffix: str) -> _Statistics:
    return {f"span_f1_{match}{suffix}": _span_statistic(chosen, gold, match) for match in ("exact", "overlap")}


def _span_statistic(
    chosen: list[list[bool]], gold: list[list[tuple[int, int]]], match: str
) -> Callable[[np.ndarray], float]:
    rows = [span_counts(selected_spans(row), spans, match) for row, spans in zip(chosen, gold, strict=True)]
    counts = np.array(rows, dtype=float).reshape(-1, 4)
    return lambda weights: span_f1(weights @ counts)


def _ratio(pair: np.ndarray) -> float:
    return float(pair[0] / pair[1]) if pair[1] else float("nan")


def top_of_corpus(labels: Sequence[Sequence[int]], run: Sequence[WordScores], seed: int = 0) -> list[list[bool]]:
    """The top words over all sentences, as many as there are entity words; ties in a seeded random order.

    >>> run = [WordScores("a b", [(0, 1), (2, 3)], [0.1, 0.9]), WordScores("c", [(0, 1)], [0.8])]
    >>> top_of_corpus([[1, 0], [0]], run)
    [[False, True], [False]]
    """
    values = np.array([score for result in run for score in result.scores])
    number = sum(map(sum, labels))
    order = np.lexsort((np.random.default_rng(seed).random(len(values)), -values))
    top = np.zeros(len(values), dtype=bool)
    top[order[:number]] = True
    chosen, first = [], 0
    for result in run:
        chosen.append(top[first : first + len(result.scores)].tolist())
        first += len(result.scores)
    return chosen


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
    seed: int = 0,
    progress: bool = False,
) -> tuple[dict[str, Interval], dict[str, list[float]], dict[str, np.ndarray]]:
    """Areas under the sufficiency and comprehensiveness curves with intervals, alignment and uniformity of the
    rationales without; the mean curves; and the areas of each sentence. All are means over runs, each with its own
    encoder."""
    pairs = zip(encoders, runs, strict=True)
    curves_of_runs = [faithfulness(encoder, run, rates, removal, seed, progress) for encoder, run in pairs]
    areas = {name: np.mean([one.areas(getattr(one, name)) for one in curves_of_runs], axis=0) for name in FAITHFULNESS}

    def statistic(weights: np.ndarray) -> dict[str, float]:
        return {name: weighted_mean(values, weights) for name, values in areas.items()}

    curves = {"rates": list(map(float, rates))}
    for name in ("sufficiency", "comprehensiveness", "token_rates"):
        stacked = np.stack([getattr(one, name) for one in curves_of_runs])
        curves[name] = [round(float(value), 4) for value in np.nanmean(stacked, axis=(0, 1))]
    intervals = bootstrap(statistic, len(runs[0]), samples, seed=seed)
    return intervals | _geometry(curves_of_runs), curves, areas


def _geometry(curves_of_runs: Sequence[Faithfulness]) -> dict[str, Interval]:
    """Alignment of anchors and rationales at the rate nearest to GEOMETRY_RATE, and uniformity of both."""
    values: dict[str, list[float]] = {"alignment": [], "uniformity_anchor": [], "uniformity_rationale": []}
    for one in curves_of_runs:
        nearest = int(np.argmin(np.abs(np.array(one.rates) - GEOMETRY_RATE)))
        present = torch.tensor(np.isfinite(one.sufficiency[:, nearest]))
        anchors, rationales = one.anchors[present], one.rationales[present, nearest]
        if len(anchors) < 2:
            return {}
        values["alignment"].append(alignment(anchors, rationales))
        values["uniformity_anchor"].append(uniformity(anchors))
        values["uniformity_rationale"].append(uniformity(rationales))
    nan = float("nan")
    return {name: Interval(float(np.mean(row)), nan, nan) for name, row in values.items()}


def stability_metrics(runs: Runs, rate: float = 0.2) -> dict[str, Interval]:
    """Agreement between runs; empty for a single one."""
    if len(runs) < 2:
        return {}
    nan = float("nan")
    return {f"stability_{name}": Interval(value, nan, nan) for name, value in stability(runs, rate).items()}
