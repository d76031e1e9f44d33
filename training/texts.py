"""The sentences of a recipe: read, cleaned, without labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np

from ..corpora import bundled_texts, clean, read_texts
from ..corpora.readers import name_left_out
from .recipe import TextRecipe


def load_training_texts(recipe: TextRecipe, log: Callable[[str], None] = print) -> list[str]:
    """All sentences that the recipe names; the same list in every process.

    >>> from hardkuma.training.recipe import Recipe
    >>> len(load_training_texts(Recipe(max_sentences=10), log=lambda text: None))
    10
    """
    left_out: Counter[str] = Counter()

    def source(name: str) -> Iterable[str]:
        if name == "bundled":
            return bundled_texts()
        return read_texts(name, recipe.format, recipe.column, recipe.split_sentences, left_out)

    cleaned = clean(chain.from_iterable(map(source, recipe.data)), recipe.min_words, recipe.max_words)
    texts = list(cleaned)
    log(f"text: {cleaned.summary}")
    if left_out:
        log(f"text: {name_left_out(left_out)} (before that)")
    if not texts:
        raise ValueError(
            f"no sentence of {recipe.min_words} to {recipe.max_words} words in {', '.join(recipe.data)}: "
            "check the files, column and the word limits."
        )
    if recipe.max_sentences is not None and len(texts) > recipe.max_sentences:
        chosen = np.random.default_rng(recipe.seed).permutation(len(texts))[: recipe.max_sentences]
        texts = [texts[i] for i in sorted(chosen)]
    return texts


def split_held_out(rows: np.ndarray, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to keep back, each in order: a random `number` of them, but at most a fifth.

    >>> train, held_out = split_held_out(np.arange(10), 5, seed=0)
    >>> len(train), len(held_out), len(set(train) & set(held_out))
    (8, 2, 0)
    """
    shuffled = rows[np.random.default_rng(seed).permutation(len(rows))]
    kept = min(number, len(rows) // 5)
    return np.sort(shuffled[kept:]), np.sort(shuffled[:kept])
