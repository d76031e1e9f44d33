"""The gates of a HardKumaModel, as one more method: what users get, one forward pass and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from ..words_hardkuma import score_texts
from .encoder import SentenceEncoder, tracker
from .words import Span, WordScores, text_words

CHUNK = 1024  # texts between two steps of the progress bar


def scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    use_surface: bool = False,
    selector: str | None = None,
    aggregate: str = "max",
    progress: bool = False,
) -> list[WordScores]:
    """Selection probability of each word, as `score_texts` gives it; `selected` is the model's own decision.

    Args:
        encoder: made with `SentenceEncoder.from_model`.
        use_surface: give the model the shape of the words (the surface view).
        selector: the name of a selector; "meaning" by default, or the first.
        aggregate: of a word's tokens, for the score; a word is selected if any of its tokens is.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    >>> result = scores(SentenceEncoder.from_model(model), ["Marie Curie moved to Paris."])[0]
    >>> len(result.scores), len(result.selected)
    (5, 5)
    """
    if encoder.model is None:
        raise ValueError("gates need a HardKuma model, and this is a bare encoder; use SentenceEncoder.from_model(model).")
    spans, results = text_words(texts, words), []
    with tracker(len(texts), progress, "gates") as bar:
        for first in range(0, len(texts), CHUNK):
            part = slice(first, first + CHUNK)
            for scored in score_texts(
                encoder.model,
                texts[part],
                words=spans[part],
                use_surface=use_surface,
                selector=selector,
                aggregate=aggregate,
            ):
                encoder.passes.forward += scored.windows
                values = scored.probabilities if scored.scores is None else scored.scores
                # No token touches such a word, or none that may be selected.
                missing = tuple(i for i, value in enumerate(scored.probabilities) if value == 0.0)
                results.append(WordScores(scored.text, scored.words, values, scored.decide(), missing))
                bar.update(1)
    return results
