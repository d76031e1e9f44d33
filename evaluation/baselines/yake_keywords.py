"""YAKE: statistical keyword scores of one text (the yake package)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...common.packages import require
from .counts import fold
from .encoder import SentenceEncoder, tracker
from .words import Span, WordScores, text_words

NO_CANDIDATE = -10.0  # below the -log of any score that YAKE gives


def scores(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    language: str = "en",
    progress: bool = False,
) -> list[WordScores]:
    """-log of YAKE's score (which is lower for better keywords) of each word as a one-word keyphrase.

    YAKE leaves out stop words, numbers and punctuation: they score -10, below every other word. Note that it looks at
    capital letters. Needs the extra `keywords`.

    >>> [word for word, _ in scores(None, ["the museum of London"])[0].ranked()]
    ['London', 'museum', 'the', 'of']
    """
    yake = require("yake", "keywords")
    spans, results = text_words(texts, words), []
    with tracker(len(texts), progress, "yake") as bar:
        for text, row in zip(texts, spans, strict=True):
            extractor = yake.KeywordExtractor(lan=language, n=1, dedupLim=1.0, top=max(1, len(row)))
            by_form = {fold(word): -math.log(max(float(score), 1e-12)) for word, score in extractor.extract_keywords(text)}
            values = [by_form.get(fold(text[start:end]), NO_CANDIDATE) for start, end in row]
            results.append(WordScores(text, row, values))
            bar.update(1)
    return results
