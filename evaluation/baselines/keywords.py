"""Keyword extractors as baselines: KeyBERT with our encoder, and YAKE. Both need the extra `keywords`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.packages import require
from .counts import fold
from .encoder import SentenceEncoder
from .words import Span, WordScores, fill_missing, text_words

NO_CANDIDATE = -10.0  # below the -log of any score that YAKE gives


def keybert_scores(
    encoder: SentenceEncoder, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None
) -> list[WordScores]:
    """KeyBERT's score of every word as a one-word keyphrase, stop words included: its similarity, embedded by itself, to
    the text. Each word is embedded once, whatever its number in the texts.
    """
    keybert = require("keybert", "keywords")
    backend = require("keybert.backend", "keywords")
    vectorizer = require("sklearn.feature_extraction.text", "keywords").CountVectorizer
    extractor = keybert.KeyBERT(model=_embedder(backend.BaseEmbedder, encoder))
    results = []
    for text, row in zip(texts, text_words(texts, words), strict=True):
        forms = [fold(text[start:end]) for start, end in row]
        by_form: dict[str, float] = {}
        if forms:
            # The words are given: the vectorizer only has to hand them on.
            analyzer = vectorizer(analyzer=lambda _, forms=forms: forms)
            pairs = extractor.extract_keywords(text, vectorizer=analyzer, top_n=len(set(forms)))
            by_form = {word: float(score) for word, score in pairs}
        results.append(fill_missing(text, row, [by_form.get(form) for form in forms]))
    return results


def _embedder(base: type, encoder: SentenceEncoder) -> Any:
    class Embedder(base):
        """Our encoder behind keybert's interface; each string is run once."""

        def __init__(self) -> None:
            super().__init__()
            self.known: dict[str, np.ndarray] = {}

        def embed(self, documents: Sequence[str], verbose: bool = False) -> np.ndarray:
            new = [text for text in dict.fromkeys(map(str, documents)) if text not in self.known]
            self.known.update(zip(new, encoder.encode(new).numpy(), strict=True))
            return np.stack([self.known[str(text)] for text in documents])

    return Embedder()


def yake_words(text: str, words: list[Span]) -> WordScores:
    """-log of YAKE's score (which is lower for better keywords) of each word as a one-word keyphrase.

    YAKE leaves out stop words, numbers and punctuation: they score -10, below every other word. It looks at capital
    letters.

    >>> yake_words("the museum of London", [(0, 3), (4, 10), (11, 13), (14, 20)]).ranked()[0][0]
    'London'
    """
    yake = require("yake", "keywords")
    extractor = yake.KeywordExtractor(lan="en", n=1, dedupLim=1.0, top=max(1, len(words)))
    by_form = {fold(word): -math.log(max(float(score), 1e-12)) for word, score in extractor.extract_keywords(text)}
    return WordScores(text, words, [by_form.get(fold(text[start:end]), NO_CANDIDATE) for start, end in words])
