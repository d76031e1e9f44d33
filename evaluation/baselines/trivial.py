"""Baselines that look at nothing but the text: chance, position, capital letters."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ...words_hardkuma import starts_sentence
from .encoder import SentenceEncoder
from .words import Span, WordScores, text_words


def random_scores(
    encoder: SentenceEncoder | None, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None, *, seed: int = 0
) -> list[WordScores]:
    """Uniform scores in [0, 1): the floor, whose average precision is the share of entity words.

    Seeded per text: the same for the same text and seed, whatever texts are beside it.

    >>> a, b = random_scores(None, ["one two"], seed=1), random_scores(None, ["other", "one two"], seed=1)
    >>> a[0].scores == b[1].scores, a[0].scores == random_scores(None, ["one two"], seed=2)[0].scores
    (True, False)
    """
    results = []
    for text, spans in zip(texts, text_words(texts, words), strict=True):
        generator = random.Random(f"{seed} {text}")
        results.append(WordScores(text, spans, [generator.random() for _ in spans]))
    return results


def position_scores(
    encoder: SentenceEncoder | None, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None
) -> list[WordScores]:
    """1 / (1 + i) for the i-th word: words that come first score highest.

    >>> position_scores(None, ["a b c d"])[0].scores
    [1.0, 0.5, 0.3333333333333333, 0.25]
    """
    return [
        WordScores(text, spans, [1.0 / (1 + i) for i in range(len(spans))])
        for text, spans in zip(texts, text_words(texts, words), strict=True)
    ]


def capital_scores(
    encoder: SentenceEncoder | None, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None
) -> list[WordScores]:
    """1 for a word whose first letter is a capital, 1/2 where a sentence begins with it, else 0; `selected` are the 1s.

    A reference: an uncased encoder cannot see capitals, and many scripts have none.

    >>> capital_scores(None, ["We met @Ana in ‘Paris’"])[0].scores
    [0.5, 0.0, 1.0, 0.0, 1.0]
    """
    results = []
    for text, spans in zip(texts, text_words(texts, words), strict=True):
        values = [_capital(text, start, end) for start, end in spans]
        results.append(WordScores(text, spans, values, selected=[value == 1.0 for value in values]))
    return results


def _capital(text: str, start: int, end: int) -> float:
    first = next((character for character in text[start:end] if character.isalpha()), "")
    if not (first.isupper() or first.istitle()):
        return 0.0
    return 0.5 if starts_sentence(text, start) else 1.0
