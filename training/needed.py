"""Which sentences a run will read again and again: only these are encoded before its first step."""

from __future__ import annotations

import numpy as np

from ..configuration_hardkuma import ENTITIES
from ..modeling_hardkuma import HardKumaModel
from .calibration import calibration_rows
from .recipe import Recipe
from .sentences import choose_sentences
from .store import TokenFile

COMPARED = 1000  # sentences by whose embeddings a run sees whether there is anything to tell apart


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
