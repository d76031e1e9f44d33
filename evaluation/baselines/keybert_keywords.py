"""KeyBERT: the similarity of each word, embedded by itself, to the text (the keybert package, with our encoder)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...common.packages import require
from .counts import fold
from .encoder import SentenceEncoder, tracker
from .words import Span, WordScores, fill_missing, text_words


def scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    progress: bool = False,
) -> list[WordScores]:
    """KeyBERT's score of every word of the text as a one-word keyphrase, stop words included.

    Needs the extra `keywords`. Words are embedded once each, whatever their number in the texts.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> encoder = toy_encoder({"in": [1, 0], "paris": [0, 9]})
    >>> scores(encoder, ["in Paris"])[0].ranked()[0][0]
    'Paris'
    """
    keybert = require("keybert", "keywords")
    backend = require("keybert.backend", "keywords")
    vectorizer = require("sklearn.feature_extraction.text", "keywords").CountVectorizer
    embedder = _embedder(backend.BaseEmbedder, encoder)
    extractor = keybert.KeyBERT(model=embedder)
    spans, results = text_words(texts, words), []
    with tracker(len(texts), progress, "keybert") as bar:
        for text, row in zip(texts, spans, strict=True):
            forms = [fold(text[start:end]) for start, end in row]
            by_form: dict[str, float] = {}
            if forms:
                # The words are given: the vectorizer only has to hand them on.
                analyzer = vectorizer(analyzer=lambda _, forms=forms: forms)
                pairs = extractor.extract_keywords(text, vectorizer=analyzer, top_n=len(set(forms)))
                by_form = {word: float(score) for word, score in pairs}
            results.append(fill_missing(text, row, [by_form.get(form) for form in forms]))
            bar.update(1)
    return results


def _embedder(base: type, encoder: SentenceEncoder) -> Any:
    class Embedder(base):
        """Our encoder behind keybert's interface; each string is run once."""

        def __init__(self) -> None:
            super().__init__()
            self.known: dict[str, Any] = {}

        def embed(self, documents: Sequence[str], verbose: bool = False) -> Any:
            new = [text for text in dict.fromkeys(map(str, documents)) if text not in self.known]
            self.known.update(zip(new, encoder.encode(new).numpy(), strict=True))
            return _stack([self.known[str(text)] for text in documents])

    return Embedder()


def _stack(rows: list[Any]) -> Any:
    import numpy as np

    return np.stack(rows)
