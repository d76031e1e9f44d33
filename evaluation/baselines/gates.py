"""The gates of a HardKumaModel, as one more method: what users get, one forward pass and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...configuration_hardkuma import MEANING, HardKumaConfig
from ...modeling_hardkuma import HardKumaModel
from ...scoring_hardkuma import score_texts
from .encoder import SentenceEncoder
from .words import Span, WordScores, text_words


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
    """What these options come to for a model.

    Args:
        use_surface: give the model the written form of the words (the surface view).
        selector: the name of a selector; without one it is `default`, or the first where the model has no such selector.
        form_alone: leave out what the selector goes by `meaning`.
        aggregate: of a word's tokens, for the score; a word is selected if any of its tokens is.

    >>> config = HardKumaConfig(selectors={"meaning": {}, "entities": {"backoff": 2.0}})
    >>> find_view(config, default="entities", form_alone=True)
    View(selector='entities', use_surface=False, form_alone=True, aggregate='max')
    >>> find_view(config, form_alone=True).form_alone
    False
    """
    number = config.find_selector(selector, default)
    return View(config.names[number], use_surface, form_alone and config.selector(number).backoff > 0, aggregate)


def by_form_alone(model: HardKumaModel) -> HardKumaModel:
    """The same model, weights shared, none of whose selectors goes by `meaning`.

    The given model is left as it is: others may be scoring with it.
    """
    config = copy.deepcopy(model.config)
    for selector in config.selectors.values():
        selector.backoff = 0.0
    copied = _share(model, config)
    copied.gate_head = _share(model.gate_head, config)
    return copied


def _share(module: Any, config: HardKumaConfig) -> Any:
    """A module with the same weights and parts, and a config of its own. (`copy.copy` would build a model anew.)"""
    copied = object.__new__(type(module))
    copied.__dict__ = {**module.__dict__, "_modules": dict(module._modules), "config": config}
    return copied


def gate_scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    **options: Any,
) -> list[WordScores]:
    """Selection probability of each word, as `score_texts` gives it; `selected` is the model's own decision.

    Args:
        encoder: made with `SentenceEncoder.from_model`.
        options: of `find_view`.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    >>> result = gate_scores(SentenceEncoder.from_model(model), ["Marie Curie moved to Paris."])[0]
    >>> len(result.scores), len(result.selected)
    (5, 5)
    """
    if encoder.model is None:
        raise ValueError("gates need a HardKuma model, and this is a bare encoder; use SentenceEncoder.from_model(model).")
    view = find_view(encoder.model.config, **options)
    model = by_form_alone(encoder.model) if view.form_alone else encoder.model
    of_scoring: dict[str, Any] = {
        "use_surface": view.use_surface,
        "selector": view.selector,
        "aggregate": view.aggregate,
    }
    results = []
    for scored in score_texts(model, texts, words=text_words(texts, words), **of_scoring):
        encoder.passes.forward += scored.windows
        values = scored.probabilities if scored.scores is None else scored.scores
        # No token touches such a word, or none that may be selected.
        missing = tuple(i for i, value in enumerate(scored.probabilities) if value == 0.0)
        results.append(WordScores(scored.text, scored.words, values, scored.decide(), missing))
    return results
