"""The gates of a HardKumaModel, as one more method: what users get, one forward pass and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...configuration_hardkuma import MEANING, HardKumaConfig
from ...scoring_hardkuma import score_texts
from .encoder import SentenceEncoder, tracker
from .words import Span, WordScores, text_words

CHUNK = 1024  # texts between two steps of the progress bar


@dataclass(frozen=True)
class View:
    """Which gates of a model are asked for: two requests with the same view get the same scores."""

    selector: str
    use_surface: bool
    form_alone: bool
    aggregate: str


def find_view(
    config: HardKumaConfig,
    *,
    use_surface: bool = False,
    selector: str | None = None,
    default: str = MEANING,
    form_alone: bool = False,
    aggregate: str = "max",
) -> View:
    """What the options of `scores` come to for a model.

    >>> config = HardKumaConfig(selector_names=["meaning", "entities"], meaning_weight={"meaning": 0, "entities": 2.0})
    >>> find_view(config, default="entities", form_alone=True)
    View(selector='entities', use_surface=False, form_alone=True, aggregate='max')
    >>> find_view(config, form_alone=True).form_alone
    False
    """
    number = config.find_selector(selector, default)
    weighed = config.of_selector("meaning_weight", number) > 0
    return View(config.names[number], use_surface, form_alone and weighed, aggregate)


@contextlib.contextmanager
def without_meaning(config: HardKumaConfig) -> Iterator[None]:
    """Inside, no selector's gates go by how much words weigh in their sentence: `meaning_weight` is 0."""
    weight = config.meaning_weight
    config.meaning_weight = 0.0
    try:
        yield
    finally:
        config.meaning_weight = weight


def scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    use_surface: bool = False,
    selector: str | None = None,
    default: str = MEANING,
    form_alone: bool = False,
    aggregate: str = "max",
    progress: bool = False,
) -> list[WordScores]:
    """Selection probability of each word, as `score_texts` gives it; `selected` is the model's own decision.

    Args:
        encoder: made with `SentenceEncoder.from_model`.
        use_surface: give the model the shape of the words (the surface view).
        selector: the name of a selector; without one it is `default`, or the first where the model has no such selector.
        form_alone: take away what gates go by the weight of words (`meaning_weight`).
        aggregate: of a word's tokens, for the score; a word is selected if any of its tokens is.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    >>> result = scores(SentenceEncoder.from_model(model), ["Marie Curie moved to Paris."])[0]
    >>> len(result.scores), len(result.selected)
    (5, 5)
    """
    if encoder.model is None:
        raise ValueError("gates need a HardKuma model, and this is a bare encoder; use SentenceEncoder.from_model(model).")
    config = encoder.model.config
    view = find_view(
        config, use_surface=use_surface, selector=selector, default=default, form_alone=form_alone, aggregate=aggregate
    )
    spans, results = text_words(texts, words), []
    taken = without_meaning(config) if view.form_alone else contextlib.nullcontext()
    with taken, tracker(len(texts), progress, "gates") as bar:
        for first in range(0, len(texts), CHUNK):
            part = slice(first, first + CHUNK)
            for scored in score_texts(
                encoder.model,
                texts[part],
                words=spans[part],
                use_surface=view.use_surface,
                selector=view.selector,
                aggregate=view.aggregate,
            ):
                encoder.passes.forward += scored.windows
                values = scored.probabilities if scored.scores is None else scored.scores
                # No token touches such a word, or none that may be selected.
                missing = tuple(i for i, value in enumerate(scored.probabilities) if value == 0.0)
                results.append(WordScores(scored.text, scored.words, values, scored.decide(), missing))
                bar.update(1)
    return results
