"""Baselines that look at nothing but the text: chance, position, capital letters."""

from __future__ import annotations

import random

from ...words_hardkuma import Span, starts_sentence
from .words import WordScores


def chance(text: str, words: list[Span], seed: int = 0) -> WordScores:
    """Uniform scores in [0, 1): the floor, whose average precision is the share of entity words. Seeded per text."""
    generator = random.Random(f"{seed} {text}")
    return WordScores(text, words, [generator.random() for _ in words])


def position(text: str, words: list[Span]) -> WordScores:
    """1 / (1 + i) for the i-th word: words that come first score highest.

    >>> position("a b c", [(0, 1), (2, 3), (4, 5)]).scores
    [1.0, 0.5, 0.3333333333333333]
    """
    return WordScores(text, words, [1.0 / (1 + i) for i in range(len(words))])


def capitals(text: str, words: list[Span]) -> WordScores:
    """1 for a word whose first letter is a capital, 1/2 where a sentence begins with it, else 0; `selected` are the 1s.

    A reference: an uncased encoder cannot see capitals, and many scripts have none.
    """
    values = [_capital(text, start, end) for start, end in words]
    return WordScores(text, words, values, selected=[value == 1.0 for value in values])


def _capital(text: str, start: int, end: int) -> float:
    first = next((character for character in text[start:end] if character.isalpha()), "")
    if not (first.isupper() or first.istitle()):
        return 0.0
    return 0.5 if starts_sentence(text, start) else 1.0
