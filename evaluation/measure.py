"""All numbers of one method on one corpus, from its word scores: values, intervals and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..attribution.encoder import SentenceEncoder
from ..attribution.words import WordScores
from ..corpora import LabelledSentence
from .bootstrap import Interval, bootstrap, weighted_mean
from .data import labels_of
from .faithfulness import RATES, Faithfulness, faithfulness
from .geometry import alignment, uniformity
from .ranking import Ranking, f1_from_counts, f1_of_selection
from .spans import gold_spans, selected_spans, span_counts, span_f1
from .stability import stability

GEOMETRY_RATE = 0.2
PRECISION_RATE = 0.1  # near the share of entity words in the corpora
Runs = Sequence[Sequence[WordScores]]


def label_metrics(
    sentences: Sequence[LabelledSentence], runs: Runs, samples: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """Metrics against the tags: the mean over runs (seeds), with one bootstrap over sentences for all.

    Spans come from the top words at the gold rate. Runs that decide by themselves (gates, capitals) have their own
    decisions measured as well: `f1_own`, `span_f1_exact_own`, `span_f1_overlap_own` and `selection_rate`.

    >>> sentences = [LabelledSentence("in Rome", ((0, 2), (3, 7)), ("O", "B-LOC"))]
    >>> run = [WordScores("in Rome", [(0, 2), (3, 7)], [0.1, 0.9])]
    >>> label_metrics(sentences, [run], samples=10)["average_precision"]
    Interval(value=1.0, low=1.0, high=1.0)
    """
    labels, tags = labels_of(sentences), [sentence.tags for sentence in sentences]
    gold = [gold_spans(row) for row in tags]
    parts = [_run_statistics(labels, gold, run, seed) for run in runs]

    def statistic(weights: np.ndarray) -> dict[str, float]:
        values = [{name: part(weights) for name, part in functions.items()} for functions in parts]
        return {name: float(np.mean([value[name] for value in values])) for name in values[0]}

    return bootstrap(statistic, len(sentences), samples, seed=seed)


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


def _run_statistics(
    labels: list[list[int]], gold: list[list[tuple[int, int]]], run: Sequence[WordScores], seed: int
) -> dict[str, Callable[[np.ndarray], float]]:
    curve = _CurveMetrics(labels, run)
    functions: dict[str, Callable[[np.ndarray], float]] = {
        "average_precision": lambda w: curve.at(w).average_precision(),
        "auroc": lambda w: curve.at(w).auroc(),
        "f1_at_gold_rate": lambda w: curve.at(w).f1_at_gold_rate(),
        "best_f1": lambda w: curve.at(w).best_f1(),
        "precision_at_rate": lambda w: curve.at(w).precision_at_rate(PRECISION_RATE),
    }
    functions |= _span_statistics(top_of_corpus(labels, run, seed), gold, "")
    chosen = [result.selected for result in run if result.selected is not None]
    if len(chosen) == len(run):
        counts = f1_of_selection(labels, chosen)
        sizes = np.array([[sum(row), len(row)] for row in chosen], dtype=float)
        functions["f1_own"] = lambda w: f1_from_counts(w @ counts)
        functions["selection_rate"] = lambda w: _ratio(w @ sizes)
        functions |= _span_statistics(chosen, gold, "_own")
    return functions


def _span_statistics(
    chosen: list[list[bool]], gold: list[list[tuple[int, int]]], suffix: str
) -> dict[str, Callable[[np.ndarray], float]]:
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
) -> tuple[dict[str, Interval], dict[str, list[float]]]:
    """Areas under the sufficiency and comprehensiveness curves with intervals, alignment and uniformity of the
    rationales without; and the mean curves. All are means over runs, each with its own encoder."""
    pairs = zip(encoders, runs, strict=True)
    curves_of_runs = [faithfulness(encoder, run, rates, removal, seed, progress) for encoder, run in pairs]
    areas = {
        name: np.mean([one.areas(getattr(one, name)) for one in curves_of_runs], axis=0)
        for name in ("sufficiency", "comprehensiveness")
    }

    def statistic(weights: np.ndarray) -> dict[str, float]:
        return {name: weighted_mean(values, weights) for name, values in areas.items()}

    curves = {"rates": list(map(float, rates))}
    for name in ("sufficiency", "comprehensiveness", "token_rates"):
        stacked = np.stack([getattr(one, name) for one in curves_of_runs])
        curves[name] = [round(float(value), 4) for value in np.nanmean(stacked, axis=(0, 1))]
    intervals = bootstrap(statistic, len(runs[0]), samples, seed=seed)
    return intervals | _geometry(curves_of_runs), curves


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
