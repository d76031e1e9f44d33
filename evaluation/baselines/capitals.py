"""Capital letters: a reference line, not a peer. An uncased encoder cannot see them, many scripts have none."""

from __future__ import annotations

from collections.abc import Sequence

from ...words_hardkuma import starts_sentence
from .encoder import SentenceEncoder
from .words import Span, WordScores, text_words


def scores(
    encoder: SentenceEncoder | None, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None
) -> list[WordScores]:
    """1 for a word whose first letter is a capital, 1/2 where a sentence begins with it, else 0; `selected` are the 1s.

    >>> scores(None, ["We met @Ana in ‘Paris’"])[0].scores
    [0.5, 0.0, 1.0, 0.0, 1.0]
    """
    results = []
    for text, spans in zip(texts, text_words(texts, words), strict=True):
        values = [_score(text, start, end) for start, end in spans]
        results.append(WordScores(text, spans, values, selected=[value == 1.0 for value in values]))
    return results


def _score(text: str, start: int, end: int) -> float:
    first = next((character for character in text[start:end] if character.isalpha()), "")
    if not (first.isupper() or first.istitle()):
        return 0.0
    return 0.5 if starts_sentence(text, start) else 1.0
