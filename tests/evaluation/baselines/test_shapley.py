"""SHAP: additive, seeded, and against all orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hardkuma.evaluation.baselines import METHODS, SentenceEncoder
from hardkuma.evaluation.baselines.shapley import shapley_values, value_of_subsets

from ..conftest import whitespace_words
from .conftest import TEXTS


def test_shap_is_additive(transformer: SentenceEncoder) -> None:
    """Values sum to f(all words) - f(no word)."""
    pytest.importorskip("shap")
    for text in ["the rainy museum in London", "Paris"]:
        result = METHODS["shap"].scores(transformer, [text], [whitespace_words(text)])[0]
        whole = transformer.encode([text])[0]
        # Masked tokens keep their positions, so the last [SEP] is not where an empty text has it.
        tokens = transformer.tokenize([text])
        nothing = transformer.embed(tokens, [[False] * len(tokens[0])])[0]
        assert sum(result.scores) == pytest.approx(1 - float(torch.cosine_similarity(nothing, whole, dim=0)), abs=1e-5)


def test_permutation_shap_against_all_orders(known: SentenceEncoder) -> None:
    """Three words: the mean marginal contribution over all six orders, by brute force."""
    pytest.importorskip("shap")
    item = known.tokenize(["it rains in"])[0]
    game = value_of_subsets(known, item, [[0], [1], [2]])
    exact = np.zeros(3)
    for order in itertools.permutations(range(3)):
        coalition = np.zeros((4, 3))
        for step, player in enumerate(order):
            coalition[step + 1 :, player] = 1
        exact[list(order)] += np.diff(game(coalition)) / 6
    found = np.mean([shapley_values(game, 3, 2000, seed=seed) for seed in range(3)], axis=0)
    assert found == pytest.approx(exact, abs=0.02)
    assert exact.max() - exact.min() > 0.05


def test_shap_of_an_additive_game_is_exact() -> None:
    pytest.importorskip("shap")
    weights = np.array([1.0, -2.0, 0.5, 4.0, 0.0])
    assert shapley_values(lambda z: z @ weights, 5) == pytest.approx(weights, abs=1e-9)


def test_permutation_shap_is_seeded(transformer: SentenceEncoder) -> None:
    pytest.importorskip("shap")
    runs = [METHODS["shap"].scores(transformer, TEXTS[2:], seed=seed)[0].scores for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
