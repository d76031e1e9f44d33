"""Metrics of word scores, of selected words and of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..configuration_hardkuma import check_choice
from ..pooling_hardkuma import normalize

WordSpan = tuple[int, int]

# ---- scores against labels ------------------------------------------------------------------------------------------
# Everything is computed from one curve: how many words, and how many entity words, lie above each distinct score. Equal
# scores are never ordered: between two thresholds the curve is a straight line, which is the mean over all orders of the
# tied words. Weights (how often each sentence was drawn) make the bootstrap cheap.


@dataclass
class Curve:
    """Cumulative weights down a ranking, from 0 on; one entry per distinct score.

    Attributes:
        above: weight of all words with at least that score.
        hits: weight of the entity words among them.
    """

    above: np.ndarray
    hits: np.ndarray

    @property
    def total(self) -> float:
        return float(self.above[-1])

    @property
    def positives(self) -> float:
        return float(self.hits[-1])

    def numbers(self) -> dict[str, float]:
        """What this curve says, by the names of the benchmark."""
        return {
            "average_precision": self.average_precision(),
            "auroc": self.auroc(),
            "f1_at_gold_rate": self.f1_at_gold_rate(),
            "best_f1": self.best_f1(),
            "precision_at_rate": self.precision_at_rate(),
        }

    def hits_at(self, number: float) -> float:
        """Entity words among the first `number` words (expected, where ties cross that place)."""
        return float(np.interp(number, self.above, self.hits))

    def average_precision(self) -> float:
        """sum over thresholds of (recall gained) x precision; NaN without any entity word."""
        if self.positives == 0:
            return float("nan")
        above, hits = self.above[1:], self.hits[1:]
        precision = np.divide(hits, above, out=np.zeros_like(hits), where=above > 0)
        return float((np.diff(self.hits) * precision).sum() / self.positives)

    def auroc(self) -> float:
        """P(an entity word outscores another word), ties half; NaN if all words are of one class."""
        others = self.above - self.hits
        if self.positives == 0 or others[-1] == 0:
            return float("nan")
        return float(np.trapezoid(self.hits, others) / (self.positives * others[-1]))

    def best_f1(self) -> float:
        """The highest F1 of any threshold: an upper bound, chosen with the labels."""
        if self.positives == 0:
            return float("nan")
        return float((2 * self.hits / (self.above + self.positives)).max())

    def f1_at_gold_rate(self) -> float:
        """F1 when as many words are selected as there are entity words (precision = recall = F1)."""
        return self.hits_at(self.positives) / self.positives if self.positives else float("nan")

    def precision_at_rate(self, rate: float = 0.1) -> float:
        """Share of entity words among the top `rate` of all words."""
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be a fraction in (0, 1], got {rate}.")
        return self.hits_at(rate * self.total) / (rate * self.total) if self.total else float("nan")

    def precision_recall(self, points: int = 101) -> tuple[list[float], list[float]]:
        """(recall, precision) at evenly spaced recalls, for a plot."""
        if self.positives == 0:
            return [], []
        recall = np.linspace(0, 1, points)[1:]
        # Where the curve is flat the first (highest) threshold counts.
        keep = np.concatenate([[True], np.diff(self.hits) > 0])
        above = np.interp(recall * self.positives, self.hits[keep], self.above[keep])
        return recall.tolist(), (recall * self.positives / above).tolist()


class Ranking:
    """Words of many sentences, sorted once; `curve` gives the cumulative counts under any sentence weights.

    >>> ranking = Ranking([[1, 0], [0, 1]], [[0.9, 0.1], [0.5, 0.4]])
    >>> ranking.curve().average_precision().__round__(4)
    0.8333
    """

    def __init__(self, labels: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]):
        flat, values, sentences = _flatten(labels, scores)
        order = np.argsort(-values, kind="stable")
        self.number = len(labels)
        self._labels, self._sentences = flat[order], sentences[order]
        ranked = values[order]
        self._ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) if len(ranked) else np.zeros(0, dtype=int)

    def curve(self, weights: np.ndarray | None = None) -> Curve:
        """The curve with `weights` (sentences,) times each sentence; once each by default."""
        of_words = np.ones(len(self._labels)) if weights is None else np.asarray(weights, dtype=float)[self._sentences]
        above = np.cumsum(of_words)[self._ends]
        hits = np.cumsum(of_words * self._labels)[self._ends]
        return Curve(np.concatenate([[0.0], above]), np.concatenate([[0.0], hits]))


def _flatten(
    labels: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if len(labels) != len(scores):
        raise ValueError(f"labels of {len(labels)} sentences, but scores of {len(scores)}; give both for every sentence.")
    for number, (row, values) in enumerate(zip(labels, scores, strict=True)):
        if len(row) != len(values):
            given = f"{len(row)} labels but {len(values)} scores"
            raise ValueError(f"sentence {number} has {given}; give one of each per word.")
    flat = np.array([int(bool(value)) for row in labels for value in row], dtype=float)
    flat_scores = np.array([float(value) for row in scores for value in row], dtype=float)
    if not np.isfinite(flat_scores).all():
        count = int((~np.isfinite(flat_scores)).sum())
        raise ValueError(f"{count} scores are NaN or infinite; a ranking needs finite numbers.")
    sentences = np.repeat(np.arange(len(labels)), [len(row) for row in labels])
    return flat, flat_scores, sentences


def f1_of_selection(labels: Sequence[Sequence[int]], selected: Sequence[Sequence[int]]) -> np.ndarray:
    """(sentences, 3): entity words selected, words selected, entity words. `f1_from_counts` of the sum is the F1.

    >>> f1_from_counts(f1_of_selection([[1, 0, 0]], [[1, 1, 0]]).sum(0)).__round__(4)
    0.6667
    """
    rows = []
    for truth, chosen in zip(labels, selected, strict=True):
        pairs = [(bool(t), bool(c)) for t, c in zip(truth, chosen, strict=True)]
        rows.append([sum(t and c for t, c in pairs), sum(c for _, c in pairs), sum(t for t, _ in pairs)])
    return np.array(rows, dtype=float).reshape(-1, 3)


def f1_from_counts(counts: np.ndarray) -> float:
    """2 hits / (selected + true); NaN where both are none.

    >>> f1_from_counts(np.array([1, 2, 2]))
    0.5
    """
    hits, chosen, truth = counts
    return float(2 * hits / (chosen + truth)) if chosen + truth else float("nan")


# ---- spans: runs of selected words against entities -----------------------------------------------------------------


def selected_spans(selected: Sequence[int]) -> list[WordSpan]:
    """Adjacent selected words merged: (first, last + 1) word indices.

    >>> selected_spans([0, 1, 1, 0, 1])
    [(1, 3), (4, 5)]
    """
    spans, start = [], None
    for i, value in enumerate([*selected, 0]):
        if value and start is None:
            start = i
        elif not value and start is not None:
            spans.append((start, i))
            start = None
    return spans


def gold_spans(tags: Sequence[str]) -> list[WordSpan]:
    """Entities of BIO, IOB1, BIOES or BILOU tags: (first, last + 1) word indices.

    >>> gold_spans(["B-LOC", "I-LOC", "B-LOC", "O", "I-PER", "I-ORG", "S-LOC"])
    [(0, 2), (2, 3), (4, 5), (5, 6), (6, 7)]
    """
    spans, start, before = [], None, "O"
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, entity = tag.partition("-")
        prefix_before, _, entity_before = before.partition("-")
        begins = tag != "O" and (
            before == "O" or prefix in ("B", "S", "U") or prefix_before in ("E", "L", "S", "U") or entity != entity_before
        )
        if start is not None and (tag == "O" or begins):
            spans.append((start, i))
            start = None
        if begins:
            start = i
        before = tag
    return spans


def span_counts(predicted: Sequence[WordSpan], gold: Sequence[WordSpan], match: str = "exact") -> list[int]:
    """[predicted spans that are right, predicted, entities that are met, entities] of one sentence.

    exact: the same first and last word. overlap: at least one word in common.

    >>> span_counts([(0, 3)], [(0, 1), (2, 3)], "overlap")
    [1, 1, 2, 2]
    """
    check_choice("match", match, ("exact", "overlap"))

    def meets(a: WordSpan, b: WordSpan) -> bool:
        return a == b if match == "exact" else a[0] < b[1] and b[0] < a[1]

    right = sum(any(meets(span, entity) for entity in gold) for span in predicted)
    met = sum(any(meets(span, entity) for span in predicted) for entity in gold)
    return [right, len(predicted), met, len(gold)]


def span_f1(counts: np.ndarray) -> float:
    """F1 of summed counts: harmonic mean of right / predicted and met / entities.

    >>> span_f1(np.array([1, 2, 1, 1])).__round__(4)
    0.6667
    """
    right, predicted, met, entities = (float(value) for value in counts)
    if predicted + entities == 0:
        return float("nan")
    precision = right / predicted if predicted else 0.0
    recall = met / entities if entities else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


# ---- embeddings on the unit sphere (Wang and Isola, 2020) -----------------------------------------------------------


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean of ||x - y||^2 over pairs (rows) of unit vectors; lower is better.

    >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])).__round__(4)
    2.0
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"pairs of (number, dim) vectors expected, got {tuple(first.shape)} and {tuple(second.shape)}.")
    return float((normalize(first.float()) - normalize(second.float())).square().sum(-1).mean())


def uniformity(vectors: Tensor) -> float:
    """log of the mean over pairs of exp(-2 ||x - y||^2), for unit vectors; lower is better.

    >>> uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).__round__(4)  # -2 x 4
    -8.0
    """
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(f"at least 2 vectors (number, dim) expected, got {tuple(vectors.shape)}.")
    distances = torch.pdist(normalize(vectors.double()))
    return float(torch.logsumexp(-2 * distances.square(), 0) - torch.tensor(float(len(distances))).log())
