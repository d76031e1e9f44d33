"""Information gain of a word: how much knowing it changes what one expects of the rest of its sentence."""

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
    shrinkage: float = 0.0,
) -> list[WordScores]:
    """KL(p(. | w) || p) in bits, from the co-occurrences in `counts`, or in `texts` themselves.

    Args:
        shrinkage: pseudo-count that pulls rare words to 0; see `WordCounts.information_gain`.

    >>> scores(None, ["new york", "new york", "the new", "the the"])[0].scores[1]
    1.4150374992788437
    """
    known = WordCounts(texts, words) if counts is None else counts
    return score_words(texts, words, lambda word: known.information_gain(word, shrinkage))
