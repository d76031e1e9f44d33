"""Random scores: the floor that every method must leave behind (average precision = the share of entity words)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .encoder import SentenceEncoder
from .words import Span, WordScores, text_words


def scores(
    encoder: SentenceEncoder | None, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None, *, seed: int = 0
) -> list[WordScores]:
    """Uniform scores in [0, 1); the same for the same text and seed, whatever texts are beside it.

    >>> a, b = scores(None, ["one two"], seed=1), scores(None, ["other", "one two"], seed=1)
    >>> a[0].scores == b[1].scores, a[0].scores == scores(None, ["one two"], seed=2)[0].scores
    (True, False)
    """
    results = []
    for text, spans in zip(texts, text_words(texts, words), strict=True):
        generator = random.Random(f"{seed} {text}")
        results.append(WordScores(text, spans, [generator.random() for _ in spans]))
    return results
