"""Correlations against scipy, intervals against the textbook."""

from __future__ import annotations

import numpy as np
import pytest

from hardkuma.evaluation.statistics import bootstrap, pearson, ranks, spearman, weighted_mean


def test_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    for _ in range(20):
        a, b = generator.integers(0, 6, 15), generator.normal(size=15)  # one with ties, one without
        assert ranks(a).tolist() == stats.rankdata(a).tolist()
        assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic)
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)


def test_what_has_no_correlation() -> None:
    for correlation in (pearson, spearman):
        assert np.isnan(correlation([1, 1, 1], [1, 2, 3])) and np.isnan(correlation([1], [2]))
        with pytest.raises(ValueError, match="2 values against 1"):
            correlation([1, 2], [1])


def test_small_numbers_far_from_zero() -> None:
    """Probabilities in half precision would lose their differences if they were not made double first."""
    values = np.linspace(0.5, 0.5001, 50, dtype=np.float32)
    assert pearson(values, np.arange(50)) == pytest.approx(1.0, abs=1e-4)


def test_bootstrap_interval_of_a_mean_is_the_textbook_one() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = bootstrap(lambda w: {"mean": float(w @ values / w.sum())}, 400, samples=2000)["mean"]
    half = 1.96 * values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.04)
    assert found.high == pytest.approx(values.mean() + half, abs=0.04)


def test_bootstrap_is_seeded_and_survives_undefined_draws() -> None:
    def rare(weights: np.ndarray) -> dict[str, float]:
        return {"x": weights[0] if weights[0] else float("nan")}

    first, second = bootstrap(rare, 3, 50)["x"], bootstrap(rare, 3, 50)["x"]
    assert first == second and first.low >= 1
    assert np.isnan(bootstrap(lambda w: {"x": float("nan")}, 3, 10)["x"].low)


def test_weighted_mean_ignores_undefined_values() -> None:
    assert weighted_mean(np.array([1.0, np.nan]), np.array([2.0, 5.0])) == 1.0
    assert np.isnan(weighted_mean(np.array([np.nan]), np.array([1.0])))
