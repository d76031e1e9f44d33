"""Measures of selectors of parts, by hand and against the libraries of the field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import normalized_mutual_info_score

from hardkuma.evaluation.parts import (
    Parts,
    draw_shares,
    normalised_mutual_information,
)


def make_parts(seed: int = 0, tags: bool = True) -> Parts:
    draw = np.random.default_rng(seed)
    words = draw.choice(["go", "Go", "tree", "is", "of"], 200).tolist()
    labels = draw.choice(["NOUN", "VERB", "ADJ"], 200).tolist() if tags else None
    return Parts(["a", "b", "c"], [0.1, 0.2, 0.3], words, draw.random((3, 200)), labels)


@pytest.mark.parametrize("seed", range(5))
def test_information_is_that_of_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    first, second = draw.integers(0, 5, 300), draw.integers(0, 7, 300)
    second[first == 2] = 3
    expected = normalized_mutual_info_score(first, second)
    assert normalised_mutual_information(first.tolist(), second.tolist()) == pytest.approx(expected, abs=1e-9)


def test_information_of_one_value_and_of_nothing() -> None:
    assert normalised_mutual_information("aa", "bb") == 1.0 and normalised_mutual_information("ab", "bb") == 0.0
    with pytest.raises(ValueError, match="2 values against 1"):
        normalised_mutual_information("ab", "a")


def test_correlations_are_those_of_scipy() -> None:
    parts = make_parts()
    expected = spearmanr(parts.probabilities.T).statistic
    assert np.allclose(parts.correlations(), expected)
    assert parts.mean_correlation() == pytest.approx((expected[0, 1] + expected[0, 2] + expected[1, 2]) / 3)


def test_shares_are_counts() -> None:
    parts = Parts(["a", "b"], [0.5, 0.5], ["x", "y", "z"], np.array([[0.9, 0.2, 0.6], [0.1, 0.3, 0.5]]), ["N", "V", "V"])
    tags, table = parts.shares()
    assert tags == ["V", "N"] and table.tolist() == [[0.5, 0.5], [1.0, 0.0]]
    assert parts.information(["V"]) == 0.0 and parts.rates == pytest.approx([1.7 / 3, 0.3])


def test_typical_words_are_many_and_apart() -> None:
    words = ["go", "Go", "of", "tree"]
    parts = Parts(["a", "b"], [0.5, 0.5], words, np.array([[0.4, 0.4, 0.6, 0.1], [0.0, 0.0, 0.6, 0.9]]))
    assert parts.typical(1) == [["go"], ["tree"]], "two of them, and of no other selector"


def test_what_people_see(tmp_path: Path) -> None:
    tagged, plain = make_parts().describe(), make_parts(tags=False).describe()
    assert "largest parts of speech" in tagged and "over all 200 words" in tagged
    assert "parts of speech" not in plain and "| a | `" in plain and "Mean Spearman" in plain
    draw_shares(make_parts(), tmp_path / "parts.png")
    assert (tmp_path / "parts.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="no parts of speech"):
        make_parts(tags=False).shares()
