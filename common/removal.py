"""Texts with some of their words alone, or without them."""

from __future__ import annotations

from collections.abc import Iterable

from ..words_hardkuma import Span


def keep_words(text: str, words: Iterable[Span]) -> str:
    """These words of the text alone, a space between them.

    >>> keep_words("Marie Curie moved (to Paris).", [(6, 11), (22, 27)])
    'Curie Paris'
    """
    return " ".join(text[start:end] for start, end in words)


def remove_words(text: str, words: Iterable[Span]) -> str:
    """The text without these words (sorted), and without a second space where one was. Nothing else is lost.

    >>> remove_words("Marie Curie moved (to Paris).", [(6, 11), (22, 27)])
    'Marie moved (to ).'
    """
    kept, position = "", 0
    for start, end in [*words, (len(text), len(text))]:
        piece = text[position:start]
        doubled = position > 0 and piece[:1].isspace() and (not kept or kept[-1].isspace())
        kept, position = kept + (piece[1:] if doubled else piece), end
    return kept
