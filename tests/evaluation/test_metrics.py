"""Metrics against scikit-learn and naive loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardkuma.evaluation.metrics import (
    Ranking,
    alignment,
    f1_from_counts,
    f1_of_selection,
    gold_spans,
    selected_spans,
    span_counts,
    span_f1,
    uniformity,
)

# Few distinct scores: ties are common.
corpora = st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), max_size=8), min_size=2, max_size=8)


def flat_list(rows: list) -> list:
    return list(itertools.chain.from_iterable(rows))


def split(corpus: list) -> tuple[list[list[int]], list[list[float]]]:
    return [[label for label, _ in row] for row in corpus], [[score / 5 for _, score in row] for row in corpus]


@settings(max_examples=60, deadline=None)
@given(corpora, st.integers(0, 10_000))
def test_against_scikit_learn_with_sentence_weights(corpus: list, seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    labels, scores = split(corpus)
    flat, values = flat_list(labels), flat_list(scores)
    weights = np.random.default_rng(seed).integers(0, 4, len(corpus)).astype(float)
    of_words = [weight for weight, row in zip(weights, labels, strict=True) for _ in row]
    drawn = {label for label, weight in zip(flat, of_words, strict=True) if weight}
    curve = Ranking(labels, scores).curve(weights)
    if 1 not in drawn:
        assert np.isnan(curve.average_precision())
        return
    expected = metrics.average_precision_score(flat, values, sample_weight=of_words)
    assert curve.average_precision() == pytest.approx(expected, abs=1e-12)
    if 0 in drawn:
        expected = metrics.roc_auc_score(flat, values, sample_weight=of_words)
        assert curve.auroc() == pytest.approx(expected, abs=1e-12)
    best = max(metrics.f1_score(flat, [value >= cut for value in values], sample_weight=of_words) for cut in set(values))
    assert curve.best_f1() == pytest.approx(best, abs=1e-12)


def test_rates_by_hand() -> None:
    curve = Ranking([[1, 0, 1], [0, 0]], [[0.9, 0.8, 0.7], [0.6, 0.5]]).curve()
    assert curve.f1_at_gold_rate() == 0.5  # the top 2 of 5 hold 1 of 2
    assert curve.precision_at_rate(0.2) == 1.0
    assert curve.precision_at_rate(0.6) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="got 20"):
        curve.precision_at_rate(20)


def test_ties_are_the_mean_over_their_orders() -> None:
    generator = np.random.default_rng(0)
    labels, scores = [[1, 1, 0, 0, 0, 1, 0]], [[0.9, 0.5, 0.5, 0.5, 0.5, 0.1, 0.1]]
    curve = Ranking(labels, scores).curve()
    draws = []
    for _ in range(4000):
        order = np.lexsort((generator.random(7), -np.array(scores[0])))[:3]
        draws.append(sum(labels[0][i] for i in order) / 3)
    assert curve.precision_at_rate(3 / 7) == pytest.approx(np.mean(draws), abs=0.01)
    assert curve.f1_at_gold_rate() == pytest.approx(np.mean(draws), abs=0.01)


def test_precision_recall_for_plots() -> None:
    recall, precision = Ranking([[1, 0, 1, 0]], [[0.9, 0.8, 0.7, 0.1]]).curve().precision_recall(points=3)
    assert recall == [0.5, 1.0]
    assert precision == pytest.approx([1.0, 2 / 3])


def test_wrong_shapes_and_values_are_named() -> None:
    with pytest.raises(ValueError, match="sentence 1 has 1 labels but 2 scores"):
        Ranking([[1], [0]], [[0.5], [0.5, 0.6]])
    with pytest.raises(ValueError, match="1 scores are NaN"):
        Ranking([[1, 0]], [[0.5, float("nan")]])
    with pytest.raises(ValueError, match="labels of 1 sentences, but scores of 2"):
        Ranking([[1]], [[0.5], [0.1]])


def test_f1_of_a_selection_against_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    labels, chosen = [[1, 0, 1], [0, 1]], [[1, 1, 0], [0, 1]]
    found = f1_from_counts(f1_of_selection(labels, chosen).sum(0))
    assert found == pytest.approx(metrics.f1_score(flat_list(labels), flat_list(chosen)))
    assert np.isnan(f1_from_counts(np.zeros(3)))


def test_gold_spans_of_every_scheme() -> None:
    assert gold_spans(["B-A", "I-A", "O", "B-A", "B-A"]) == [(0, 2), (3, 4), (4, 5)]  # BIO
    assert gold_spans(["I-A", "I-A", "O", "I-A", "B-A", "I-B"]) == [(0, 2), (3, 4), (4, 5), (5, 6)]  # IOB1
    assert gold_spans(["B-A", "E-A", "S-A", "O", "B-B", "I-B", "E-B"]) == [(0, 2), (2, 3), (4, 7)]  # BIOES
    assert gold_spans(["B-A", "L-A", "U-A"]) == [(0, 2), (2, 3)]  # BILOU
    assert gold_spans(["O"]) == [] and gold_spans([]) == []


@given(st.lists(st.integers(0, 1), max_size=12))
def test_selected_spans_cover_exactly_the_selection(selected: list[int]) -> None:
    spans = selected_spans(selected)
    covered = [0] * len(selected)
    for start, end in spans:
        covered[start:end] = [1] * (end - start)
    assert covered == selected
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))  # merged: never adjacent


def test_span_f1_by_hand() -> None:
    predicted, gold = [(0, 2), (4, 5), (6, 9)], [(0, 2), (5, 6), (7, 8), (8, 9)]
    assert span_counts(predicted, gold, "exact") == [1, 3, 1, 4]
    assert span_counts(predicted, gold, "overlap") == [2, 3, 3, 4]
    assert span_f1(np.array([1, 3, 1, 4])) == pytest.approx(2 / 7)
    assert span_f1(np.array([2, 3, 3, 4])) == pytest.approx(2 * (2 / 3) * (3 / 4) / (2 / 3 + 3 / 4))
    assert span_f1(np.array([0, 3, 0, 4])) == 0.0
    assert np.isnan(span_f1(np.zeros(4)))
    with pytest.raises(ValueError, match="got 'partial'"):
        span_counts([], [], "partial")


def test_alignment_and_uniformity_against_loops() -> None:
    x, y = torch.randn(7, 5), torch.randn(7, 5)
    unit = [torch.nn.functional.normalize(v, dim=-1) for v in (x, y)]
    expected = sum(float(((a - b) ** 2).sum()) for a, b in zip(*unit, strict=True)) / 7
    assert alignment(x, y) == pytest.approx(expected, abs=1e-5)
    pairs = [np.exp(-2 * float(((unit[0][i] - unit[0][j]) ** 2).sum())) for i in range(7) for j in range(i)]
    assert uniformity(x) == pytest.approx(np.log(np.mean(pairs)), abs=1e-5)
    assert alignment(x, 3 * x) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match=r"\(7, 5\) and \(6, 5\)"):
        alignment(x, y[:6])
    with pytest.raises(ValueError, match="at least 2"):
        uniformity(x[:1])
