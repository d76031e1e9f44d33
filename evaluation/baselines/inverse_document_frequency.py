"""Inverse document frequency: words of few texts say more than words of many."""

from __future__ import annotations

from collections.abc import Sequence

from .counts import WordCounts, score_words
from .encoder import SentenceEncoder
from .words import Span, WordScores


def scores(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    counts: WordCounts | None = None,
) -> list[WordScores]:
    """log((1 + N) / (1 + n_w)) + 1 over the N texts of `counts`, or of `texts` themselves.

    >>> scores(None, ["a b", "a c", "a d"])[0].scores
    [1.0, 1.6931471805599454]
    """
    known = WordCounts(texts, words) if counts is None else counts
    return score_words(texts, words, known.inverse_document_frequency)
