"""Every augmentation by name; several are applied one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from ...common.arguments import find_named
from .deletion import (
    Cropping,
    LowestGateDropout,
    NaiveAttentionDropout,
    RandomDeletion,
    RolloutAttentionDropout,
    SampledGateDropout,
)
from .disturbance import DropoutOnly, FeatureCutoff, TokenCutoff, TokenShuffling, WordRepetition, WordReplacement
from .sentence import LETTERS, Sentence


class Augmentation(Protocol):
    """A way to make another view of a sentence; `measure` is the score of importance that it goes by."""

    @property
    def measure(self) -> str: ...

    def __call__(self, sentence: Sentence, random: np.random.Generator, /) -> Sentence: ...


AUGMENTATIONS: Mapping[str, type] = {
    "dropout": DropoutOnly,
    "attention_naive": NaiveAttentionDropout,
    "attention_rollout": RolloutAttentionDropout,
    "lowest_gates": LowestGateDropout,
    "sampled_gates": SampledGateDropout,
    "random_deletion": RandomDeletion,
    "word_replacement": WordReplacement,
    "cropping": Cropping,
    "word_repetition": WordRepetition,
    "token_shuffling": TokenShuffling,
    "token_cutoff": TokenCutoff,
    "feature_cutoff": FeatureCutoff,
}


@dataclass(frozen=True)
class Sequential:
    """Augmentations one after the other."""

    steps: Sequence[Augmentation]

    @property
    def measures(self) -> list[str]:
        """What sentences must have been scored by."""
        return list(dict.fromkeys(step.measure for step in self.steps if step.measure != LETTERS))

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        for step in self.steps:
            # A text without any word has no other view.
            sentence = step(sentence, random) if sentence.content.any() else sentence
        return sentence


def make_augmentation(
    views: Mapping[str, Mapping[str, Any] | None], size: int = 0, vocabulary: int = 1 << 31
) -> Sequential:
    """The augmentations of these names, each with its options.

    Args:
        size: of the encoder's embeddings.
        vocabulary: how many tokens there are.

    >>> make_augmentation({"lowest_gates": {"t": 8}, "cropping": None}).measures
    ['gates']
    >>> make_augmentation({"cropping": {"share": 0.5}})
    Traceback (most recent call last):
    ValueError: unknown option of cropping 'share'; known: rate.
    """
    steps = []
    for name, options in views.items():
        kind = find_named("augmentation", name, AUGMENTATIONS)
        known = {field.name: field for field in fields(kind) if field.name != "size"}
        if not isinstance(options, Mapping | None):
            raise ValueError(f"{name} takes options by name ({', '.join(known) or 'it has none'}), got {options!r}.")
        for option in options or {}:
            find_named(f"option of {name}", option, known)
        try:
            sizes = {FeatureCutoff: {"size": size}, WordReplacement: {"size": vocabulary}}
            steps.append(kind(**sizes.get(kind, {}), **(options or {})))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
    if any(isinstance(step, TokenShuffling) for step in steps[:-1]):
        raise ValueError(f"token_shuffling must be named last, got {', '.join(views)}: other views count positions anew.")
    return Sequential(steps)
