"""SHAP of the similarity between a sentence's remaining words and its own embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...common.packages import require
from ...configuration_hardkuma import check_choice
from ...pooling_hardkuma import normalize
from .encoder import SentenceEncoder, Tokens, tracker
from .words import Span, WordScores, fill_missing, text_words, tokens_of_words
from .words import aggregate as to_words

ALGORITHMS = ("partition", "permutation")
UNITS = ("word", "token")


def similarity_of_subsets(
    encoder: SentenceEncoder, item: Tokens, players: Sequence[Sequence[int]]
) -> Callable[[np.ndarray], np.ndarray]:
    """The game: (coalitions, players) of 0/1 -> (coalitions,) cosine of the re-encoded remainder to the sentence.

    Tokens of no player (punctuation outside of words) stay.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> encoder = toy_encoder({"in": [1, 0], "paris": [0, 9]})
    >>> game = similarity_of_subsets(encoder, encoder.tokenize(["in Paris"])[0], [[0], [1]])
    >>> game(np.array([[1, 1], [0, 1], [1, 0], [0, 0]])).round(2).tolist()
    [1.0, 0.99, 0.11, 0.0]
    """
    whole = normalize(encoder.embed([item]))[0]

    def game(coalitions: np.ndarray) -> np.ndarray:
        kept = np.ones((len(coalitions), len(item)), dtype=bool)
        # A token of two players stays while one of them does.
        for token in {token for group in players for token in group}:
            owners = [p for p, group in enumerate(players) if token in group]
            kept[:, token] = (coalitions[:, owners] > 0.5).any(1)
        vectors = normalize(encoder.embed([item] * len(kept), kept.tolist()))
        return (vectors @ whole).double().numpy()

    return game


def neighbour_tree(number: int) -> np.ndarray:
    """A balanced tree over neighbouring words, as scipy's linkage rows: (number - 1, 4).

    >>> neighbour_tree(3)[:, :2].tolist()
    [[0.0, 1.0], [3.0, 2.0]]
    """
    nodes, rows, level = [(i, 1) for i in range(number)], [], 0
    while len(nodes) > 1:
        level, paired = level + 1, []
        for i in range(0, len(nodes) - 1, 2):
            (left, left_size), (right, right_size) = nodes[i], nodes[i + 1]
            rows.append([left, right, level, left_size + right_size])
            paired.append((number + len(rows) - 1, left_size + right_size))
        nodes = paired + ([nodes[-1]] if len(nodes) % 2 else [])
    return np.array(rows, dtype=float).reshape(-1, 4)


def shapley_values(
    game: Callable[[np.ndarray], np.ndarray],
    number: int,
    algorithm: str = "permutation",
    max_evaluations: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """(number,) values of the players, which sum up to game(all) - game(none).

    Args:
        algorithm: "permutation" (sampled orders, each also backwards) or "partition" (Owen values over a tree of
            neighbouring words; exact, given about n^2 evaluations).
        max_evaluations: coalitions to try at most, never fewer than 2 n + 1. By default two permutations (4 n + 2), or
            as many as the partition needs, but no more than 500: with fewer it gives whole groups of words one value.

    >>> game = lambda coalitions: coalitions @ np.array([1.0, 4.0, 2.0])
    >>> shapley_values(game, 3).round(6).tolist()
    [1.0, 4.0, 2.0]
    """
    check_choice("algorithm", algorithm, ALGORITHMS)
    if number < 2:
        ends = game(np.array([[0.0] * number, [1.0] * number]))
        return np.array([ends[1] - ends[0]] * number)
    shap = require("shap", "benchmark")
    nothing, everything = np.zeros((1, number)), np.ones((1, number))
    if algorithm == "partition":
        masker = shap.maskers.Partition(nothing, clustering=neighbour_tree(number))
        explainer = shap.explainers.Partition(game, masker)
    else:
        masker = shap.maskers.Independent(nothing)
        explainer = shap.explainers.Permutation(game, masker, seed=seed)
    wanted = {"permutation": 4 * number + 2, "partition": 500}[algorithm] if max_evaluations is None else max_evaluations
    limit = max(2 * number + 1, wanted)
    return _silently(explainer, everything, limit)


def _silently(explainer: Any, everything: np.ndarray, limit: int) -> np.ndarray:
    # Every coalition of one sentence in as few encoder batches as possible.
    result = explainer(everything, max_evals=limit, batch_size=limit, silent=True)
    return np.asarray(result.values, dtype=float).reshape(-1)


def scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    algorithm: str = "permutation",
    unit: str = "word",
    max_evaluations: int | None = None,
    seed: int = 0,
    aggregate: str = "sum",
    progress: bool = False,
) -> list[WordScores]:
    """Share of each word in the similarity of the sentence to itself: cos = 1 for all words, and for none the
    cosine of the empty sentence.

    Args:
        algorithm: "permutation" (with `seed`) or "partition" (the tree joins neighbouring words).
        unit: "word" (players are words) or "token" (then `aggregate` makes word scores).
        max_evaluations: re-encodings per sentence at most; see `shapley_values`.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> encoder = toy_encoder({"in": [1, 0], "paris": [0, 9]})
    >>> scores(encoder, ["in Paris"])[0].ranked()[0][0]
    'Paris'
    """
    check_choice("unit", unit, UNITS)
    spans, results = text_words(texts, words), []
    with tracker(len(texts), progress, "shap") as bar:
        for item, row in zip(encoder.tokenize(texts), spans, strict=True):
            members = tokens_of_words(item.offsets, item.content, row)
            if unit == "word":
                players = [group for group in members if group]
            else:
                players = [[token] for token in sorted({token for group in members for token in group})]
            game = similarity_of_subsets(encoder, item, players)
            values = shapley_values(game, len(players), algorithm, max_evaluations, seed) if players else np.zeros(0)
            if unit == "word":
                given = iter(values.tolist())
                results.append(fill_missing(item.text, row, [next(given) if group else None for group in members]))
            else:
                per_token = np.zeros(len(item))
                per_token[[group[0] for group in players]] = values
                results.append(to_words(item.text, row, members, per_token.tolist(), aggregate))
            bar.update(1)
    return results
