"""The text of a run, made ready for its first step: read, tokenised and, where it is read again, encoded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ..configuration_hardkuma import ENTITIES
from ..modeling_hardkuma import HardKumaModel
from .calibration import calibration_rows
from .recipe import Recipe
from .sentences import choose_sentences
from .store import StateStore, TokenFile, encode_sentences, usable_rows, write_tokens
from .texts import split_held_out, spool_training_texts

EXAMPLES = 2000  # texts by whose words selectors that part are named
COMPARED = 1000  # sentences by whose embeddings a run sees whether there is anything to tell apart


def prepare_store(model: HardKumaModel, recipe: Recipe, folder: Path, log: Callable[[str], None]) -> list[str]:
    """Write the store of a run into `folder/store`; returns some of its texts, where the recipe needs them.

    Neither the text nor its tokens and states are ever in memory as a whole.

    Args:
        model: in eval mode, on the device that is to encode.
        log: told how much text there is, and of a disk that is too small.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = spool_training_texts(recipe, log, folder)
    tokens = write_tokens(model, texts, folder / "store")
    rows, held_out = _split(tokens, model, recipe)
    cache_type = recipe.cache_type if model.config.freeze_encoder and recipe.cache == "auto" else None
    encode_sentences(model, tokens, cache_type, partial(needed_rows, model, tokens, rows, held_out, recipe), log)
    sample = np.random.default_rng(recipe.seed).permutation(rows)[: EXAMPLES if model.config.kinds else 0]
    return [texts[row] for row in sample]


def open_store(model: HardKumaModel, recipe: Recipe, folder: Path) -> tuple[StateStore, np.ndarray, np.ndarray]:
    """The store of a run, and the numbers of the sentences to train on and of those kept back."""
    store = StateStore(folder / "store")
    rows, held_out = _split(store, model, recipe)
    if len(rows) < recipe.batch_size:
        raise ValueError(
            f"{len(rows)} sentences are left for training, fewer than one batch of {recipe.batch_size}: "
            "give more text or a smaller batch_size."
        )
    compared = rows[store.is_encoded(rows)][:COMPARED]
    if float(np.ptp(store.anchors()[compared], axis=0).max()) < 1e-6:
        raise ValueError("all sentences have the same embedding: there is nothing to tell apart. Check the corpus.")
    return store, rows, held_out


def _split(tokens: TokenFile, model: HardKumaModel, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    return split_held_out(usable_rows(tokens, model), recipe.held_out, recipe.seed)


def needed_rows(
    model: HardKumaModel, tokens: TokenFile, rows: np.ndarray, held_out: np.ndarray, recipe: Recipe, stores_states: bool
) -> np.ndarray | None:
    """Numbers of the sentences whose embeddings, and states, the phases of a run read: its objective, the gates of kinds
    and of entities, calibration, the surface view. None is all of them.

    Args:
        rows, held_out: numbers of the sentences to train on, and of those kept back.
        stores_states: whether states are stored; where they are not, most phases encode anew and need nothing.
    """
    config, by_removal = model.config, recipe.objective == "removal"
    if stores_states and (not by_removal or recipe.surface or (ENTITIES in config.names and recipe.entities_epochs)):
        return None  # some phase goes over all text
    if not by_removal and recipe.batches == "neighbours":
        return None  # whose embeddings are all compared
    some = [rows[:COMPARED], held_out]
    if by_removal and (recipe.meaning is None or config.kinds):
        some.append(choose_sentences(tokens, rows, recipe.removal_sentences, recipe.seed, model))
    if stores_states:
        some.append(calibration_rows(rows, recipe.seed, bool(config.kinds)))
    return np.unique(np.concatenate(some))
