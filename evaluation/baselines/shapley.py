"""SHAP of the similarity between a sentence's remaining words and its own embedding, or of another value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from ...common.packages import require
from .encoder import SentenceEncoder, Tokens, Value, similarity
from .words import Span, WordScores, fill_missing, text_words, tokens_of_words

Game = Callable[[np.ndarray], np.ndarray]


def value_of_subsets(
    encoder: SentenceEncoder,
    item: Tokens,
    players: Sequence[Sequence[int]],
    target: Tensor | None = None,
    value: Value = similarity,
) -> Game:
    """The game: (coalitions, players) of 0/1 -> (coalitions,) value of the re-encoded remainder against another
    embedding, by default the cosine to that of the whole sentence.

    Tokens of no player (punctuation outside of words) stay.
    """
    whole = encoder.embed([item])[0] if target is None else target

    def game(coalitions: np.ndarray) -> np.ndarray:
        kept = np.ones((len(coalitions), len(item)), dtype=bool)
        # A token of two players stays while one of them does.
        for token in {token for group in players for token in group}:
            owners = [p for p, group in enumerate(players) if token in group]
            kept[:, token] = (coalitions[:, owners] > 0.5).any(1)
        return value(encoder.embed([item] * len(kept), kept.tolist()), whole).double().numpy()

    return game


def shapley_values(game: Game, number: int, max_evaluations: int | None = None, seed: int = 0) -> np.ndarray:
    """(number,) values of the players from sampled orders, each also backwards; they sum up to game(all) - game(none).

    Args:
        max_evaluations: coalitions to try at most, never fewer than 2 n + 1; two orders (4 n + 2) by default.

    >>> game = lambda coalitions: coalitions @ np.array([1.0, 4.0, 2.0])
    >>> shapley_values(game, 3).round(6).tolist()
    [1.0, 4.0, 2.0]
    """
    if number < 2:
        ends = game(np.array([[0.0] * number, [1.0] * number]))
        return np.array([ends[1] - ends[0]] * number)
    shap = require("shap", "benchmark")
    explainer = shap.explainers.Permutation(game, shap.maskers.Independent(np.zeros((1, number))), seed=seed)
    limit = max(2 * number + 1, 4 * number + 2 if max_evaluations is None else max_evaluations)
    # Every coalition of one sentence in as few encoder batches as possible.
    result = explainer(np.ones((1, number)), max_evals=limit, batch_size=limit, silent=True)
    return np.asarray(result.values, dtype=float).reshape(-1)


def shap_scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    seed: int = 0,
    value: Value = similarity,
) -> list[WordScores]:
    """Share of each word in the sentence's value. Of the similarity to itself: 1 for all words, and for none the cosine of
    the empty sentence.
    """
    results = []
    for item, row in zip(encoder.tokenize(texts), text_words(texts, words), strict=True):
        members = tokens_of_words(item.offsets, item.content, row)
        players = [group for group in members if group]
        game = value_of_subsets(encoder, item, players, value=value)
        values = iter(shapley_values(game, len(players), seed=seed).tolist() if players else ())
        results.append(fill_missing(item.text, row, [next(values) if group else None for group in members]))
    return results
