"""Every metric by name, with its direction, as a plain object and as an `evaluate` metric that loads offline.

METRICS["average_precision"].compute(predictions=[[0.9, 0.1]], references=[[1, 0]])
as_evaluate("average_precision").compute(predictions=[[0.9, 0.1]], references=[[1, 0]])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..common.arguments import find_named
from ..common.correlation import spearman
from ..common.packages import require
from . import geometry
from .baselines.encoder import SentenceEncoder
from .baselines.words import WordScores, text_words
from .faithfulness import RATES, faithfulness
from .ranking import Ranking, f1_from_counts, f1_of_selection, top_words
from .spans import gold_spans, selected_spans, span_counts, span_f1
from .stability import jaccard, selection_rate

CITATION = "HardKuma: learned token gates on sentence encoders."


@dataclass(frozen=True)
class WordMetric:
    """A metric over the words of many sentences.

    Attributes:
        higher_is_better: True, False, or None where neither is (a rate).
        predictions, references: kind of the values per sentence: "scores", "decisions" (0/1), "labels" (0/1), "tags",
            "vector", "text", or None where there is no reference.
        function: (predictions, references, **options) -> value.
    """

    name: str
    description: str
    higher_is_better: bool | None
    predictions: str
    references: str | None
    function: Callable[..., float]

    @property
    def direction(self) -> str:
        return {True: "higher is better", False: "lower is better", None: "neither direction is better"}[
            self.higher_is_better
        ]

    def compute(
        self, *, predictions: Sequence[Any], references: Sequence[Any] | None = None, **options: Any
    ) -> dict[str, float]:
        """{name: value}.

        >>> METRICS["f1"].compute(predictions=[[1, 1, 0]], references=[[1, 0, 0]])
        {'f1': 0.6666666666666666}
        """
        if self.references is None:
            return {self.name: self.function(predictions, **options)}
        if references is None or len(references) != len(predictions):
            got = "none" if references is None else str(len(references))
            raise ValueError(f"{self.name} needs one reference ({self.references}) per prediction, got {got}.")
        return {self.name: self.function(predictions, references, **options)}


def _from_curve(name: str) -> Callable[..., float]:
    def function(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> float:
        return getattr(Ranking(references, predictions).curve(), name)(**options)

    return function


def _precision_at_rate(predictions: Sequence[Any], references: Sequence[Any], rate: float = 0.1) -> float:
    return Ranking(references, predictions).curve().precision_at_rate(rate)


def _f1(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    return f1_from_counts(f1_of_selection(references, predictions).sum(0))


def _spans(match: str) -> Callable[..., float]:
    def function(predictions: Sequence[Any], references: Sequence[Any]) -> float:
        rows = [
            span_counts(selected_spans(chosen), gold_spans(tags), match)
            for chosen, tags in zip(predictions, references, strict=True)
        ]
        return span_f1(np.array(rows).sum(0))

    return function


def _agreement(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    values = [spearman(a, b) for a, b in zip(predictions, references, strict=True)]
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _overlap(predictions: Sequence[Any], references: Sequence[Any], rate: float = 0.2, seed: int = 0) -> float:
    def top(scores: Sequence[float]) -> list[int]:
        return top_words(scores, rate, np.random.default_rng(seed))

    return float(np.mean([jaccard(top(a), top(b)) for a, b in zip(predictions, references, strict=True)]))


def _faithful(curve: str) -> Callable[..., float]:
    def function(
        predictions: Sequence[Any],
        references: Sequence[str],
        encoder: SentenceEncoder,
        words: Sequence[Any] | None = None,
        rates: Sequence[float] = RATES,
        removal: str = "mask",
    ) -> float:
        spans = text_words(references, words)
        results = [WordScores(text, s, list(p)) for text, s, p in zip(references, spans, predictions, strict=True)]
        measured = faithfulness(encoder, results, rates, removal)
        return float(np.nanmean(measured.areas(getattr(measured, curve))))

    return function


def _alignment(predictions: Sequence[Any], references: Sequence[Any], power: float = 2.0) -> float:
    return geometry.alignment(torch.as_tensor(np.array(predictions)), torch.as_tensor(np.array(references)), power)


def _uniformity(predictions: Sequence[Any], scale: float = 2.0) -> float:
    return geometry.uniformity(torch.as_tensor(np.array(predictions)), scale)


_ALL = (
    WordMetric(
        "average_precision",
        "Area under the precision-recall curve of word scores, over the words of all sentences together.",
        True,
        "scores",
        "labels",
        _from_curve("average_precision"),
    ),
    WordMetric(
        "auroc",
        "Probability that an entity word outscores another word, ties half.",
        True,
        "scores",
        "labels",
        _from_curve("auroc"),
    ),
    WordMetric("f1", "F1 of the words that a model selects by its own threshold.", True, "decisions", "labels", _f1),
    WordMetric(
        "f1_at_gold_rate",
        "F1 when the top words are selected, as many as there are entity words.",
        True,
        "scores",
        "labels",
        _from_curve("f1_at_gold_rate"),
    ),
    WordMetric(
        "best_f1",
        "F1 at the threshold that is best for the labels: an upper bound.",
        True,
        "scores",
        "labels",
        _from_curve("best_f1"),
    ),
    WordMetric(
        "precision_at_rate",
        "Share of entity words among the top words of all sentences together, at `rate` (0.1).",
        True,
        "scores",
        "labels",
        _precision_at_rate,
    ),
    WordMetric(
        "span_f1_exact",
        "F1 of runs of selected words against entities with the same first and last word.",
        True,
        "decisions",
        "tags",
        _spans("exact"),
    ),
    WordMetric(
        "span_f1_overlap",
        "F1 of runs of selected words against entities that share a word with them.",
        True,
        "decisions",
        "tags",
        _spans("overlap"),
    ),
    WordMetric("selection_rate", "Share of words that are selected.", None, "decisions", None, selection_rate),
    WordMetric(
        "sufficiency",
        "Cosine of the top words' embedding to the sentence's, mean over rates of 5 to 50%. Needs encoder=.",
        True,
        "scores",
        "text",
        _faithful("sufficiency"),
    ),
    WordMetric(
        "comprehensiveness",
        "1 - cosine of the other words' embedding to the sentence's, mean over rates of 5 to 50%. Needs encoder=.",
        True,
        "scores",
        "text",
        _faithful("comprehensiveness"),
    ),
    WordMetric(
        "stability_spearman",
        "Rank correlation of two runs' word scores, mean over sentences.",
        True,
        "scores",
        "scores",
        _agreement,
    ),
    WordMetric(
        "stability_jaccard",
        "Overlap of two runs' top words at `rate` (0.2), mean over sentences.",
        True,
        "scores",
        "scores",
        _overlap,
    ),
    WordMetric(
        "alignment",
        "Mean squared distance between the unit vectors of a pair (anchor and rationale).",
        False,
        "vector",
        "vector",
        _alignment,
    ),
    WordMetric(
        "uniformity",
        "How evenly unit vectors cover the sphere: log mean Gaussian potential.",
        False,
        "vector",
        None,
        _uniformity,
    ),
)
METRICS: dict[str, WordMetric] = {metric.name: metric for metric in _ALL}


def find_metric(name: str) -> WordMetric:
    """The metric of that name, or an error that lists them.

    >>> find_metric("alignment").direction
    'lower is better'
    """
    return find_named("metric", name, METRICS)


def as_evaluate(name: str, **options: Any) -> Any:
    """An `evaluate.Metric`, made without any download: `compute`, `add_batch` and `evaluate.combine` work.

    Args:
        options: for every computation (`rate=0.2`, `encoder=...`).

    >>> metric = as_evaluate("auroc")
    >>> metric.compute(predictions=[[0.9, 0.1]], references=[[1, 0]])
    {'auroc': 1.0}
    """
    metric = find_metric(name)
    evaluate, datasets = require("evaluate", "benchmark"), require("datasets", "benchmark")
    many = datasets.Sequence
    kinds = {
        "scores": many(datasets.Value("float64")),
        "vector": many(datasets.Value("float64")),
        "decisions": many(datasets.Value("int64")),
        "labels": many(datasets.Value("int64")),
        "tags": many(datasets.Value("string")),
        "text": datasets.Value("string"),
    }
    features = {"predictions": kinds[metric.predictions]}
    if metric.references is not None:
        features["references"] = kinds[metric.references]

    base: Any = evaluate.Metric

    class HardKumaMetric(base):
        higher_is_better = metric.higher_is_better

        def _info(self) -> Any:
            return evaluate.MetricInfo(
                module_name=metric.name,
                description=f"{metric.description} ({metric.direction})",
                citation=CITATION,
                inputs_description=f"predictions: {metric.predictions}; references: {metric.references}, per sentence",
                features=datasets.Features(features),
            )

        def _compute(self, predictions: Any, references: Any = None, **more: Any) -> dict[str, float]:
            return metric.compute(predictions=predictions, references=references, **{**options, **more})

    HardKumaMetric.__name__ = metric.name
    return HardKumaMetric(config_name=metric.name)
