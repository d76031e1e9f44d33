"""Spans: runs of selected words against the entities of the labels, exact or overlapping."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..configuration_hardkuma import check_choice

WordSpan = tuple[int, int]


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
        prefix, _, kind = tag.partition("-")
        prefix_before, _, kind_before = before.partition("-")
        begins = tag != "O" and (
            before == "O" or prefix in ("B", "S", "U") or prefix_before in ("E", "L", "S", "U") or kind != kind_before
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
