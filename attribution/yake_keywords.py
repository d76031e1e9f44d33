"""YAKE: statistical keyword scores of one text (the yake package)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .counts import fold
from .encoder import SentenceEncoder, tracker
from .needs import require
from .words import Span, WordScores, fill_missing, text_words


def scores(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    language: str = "en",
    progress: bool = False,
) -> list[WordScores]:
    """-log of YAKE's score (which is lower for better keywords) of each word as a one-word keyphrase.

    YAKE leaves out stop words, numbers and punctuation: they carry the lowest score of their sentence. Needs the extra
    `keywords`.

    >>> scores(None, ["the museum of the city"])[0].ranked()[0][0]  # doctest: +SKIP
    'museum'
    """
    yake = require("yake", "keywords")
    spans, results = text_words(texts, words), []
    with tracker(len(texts), progress, "yake") as bar:
        for text, row in zip(texts, spans, strict=True):
            extractor = yake.KeywordExtractor(lan=language, n=1, dedupLim=1.0, top=max(1, len(row)))
            found = {fold(word): -math.log(max(float(score), 1e-12)) for word, score in extractor.extract_keywords(text)}
            results.append(fill_missing(text, row, [found.get(fold(text[start:end])) for start, end in row]))
            bar.update(1)
    return results
