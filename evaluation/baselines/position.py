"""Position: words that come first (or last) score highest. A method must beat this before it may speak of meaning."""

from __future__ import annotations

from collections.abc import Sequence

from ...configuration_hardkuma import check_choice
from .encoder import SentenceEncoder
from .words import Span, WordScores, text_words


def scores(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    order: str = "first",
) -> list[WordScores]:
    """1 / (1 + i) for the i-th word from the start ("first") or from the end ("last").

    >>> scores(None, ["a b c d"])[0].scores
    [1.0, 0.5, 0.3333333333333333, 0.25]
    """
    check_choice("order", order, ("first", "last"))
    results = []
    for text, spans in zip(texts, text_words(texts, words), strict=True):
        values = [1.0 / (1 + i) for i in range(len(spans))]
        results.append(WordScores(text, spans, values if order == "first" else values[::-1]))
    return results
