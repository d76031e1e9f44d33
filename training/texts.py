"""The sentences of a recipe: read, cleaned, without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np

from ..corpora import bundled_texts, clean, read_texts
from .recipe import Recipe


def load_training_texts(recipe: Recipe, say: Callable[[str], None] = print) -> list[str]:
    """All sentences that the recipe names; the same list in every process.

    >>> len(load_training_texts(Recipe(max_sentences=10), say=lambda text: None))
    10
    """

    def source(name: str) -> Iterable[str]:
        if name == "bundled":
            return bundled_texts()
        return read_texts(name, column=recipe.column, split_sentences=recipe.split_sentences)

    cleaned = clean(chain.from_iterable(map(source, recipe.data)), recipe.min_words, recipe.max_words)
    texts = list(cleaned)
    say(f"text: {cleaned.summary}")
    if not texts:
        raise ValueError(
            f"no sentence of {recipe.min_words} to {recipe.max_words} words in {', '.join(recipe.data)}: "
            "check the files, column and the word limits."
        )
    if recipe.max_sentences is not None and len(texts) > recipe.max_sentences:
        chosen = np.random.default_rng(recipe.seed).permutation(len(texts))[: recipe.max_sentences]
        texts = [texts[i] for i in sorted(chosen)]
    return texts
