"""Self-information: rare words say more. From wordfreq's word list, or from the counts of a corpus."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...common.packages import require
from ...configuration_hardkuma import check_choice
from .counts import WordCounts, score_words
from .encoder import SentenceEncoder
from .words import Span, WordScores

RAREST = 1e-9  # wordfreq knows words down to about one in a hundred million


def scores(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    source: str = "wordfreq",
    language: str = "en",
    counts: WordCounts | None = None,
) -> list[WordScores]:
    """-log2 p(word).

    Args:
        source: "wordfreq" (a word list of `language`) or "corpus" (`counts`, or those of `texts` themselves).

    A word without any letter or digit is not in wordfreq's list, which does not make it rare: it scores 0 there.

    >>> scores(None, ["the the cat"], source="corpus")[0].scores
    [1.0, 1.0, 1.5849625007211563]
    """
    check_choice("source", source, ("wordfreq", "corpus"))
    if source == "corpus":
        known = WordCounts(texts, words) if counts is None else counts
        return score_words(texts, words, known.self_information)
    wordfreq = require("wordfreq", "benchmark")

    def value(word: str) -> float:
        if not any(character.isalnum() for character in word):
            return 0.0
        return -math.log2(wordfreq.word_frequency(word, language, minimum=RAREST))

    return score_words(texts, words, value)
