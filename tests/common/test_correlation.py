"""Correlations against scipy."""

from __future__ import annotations

import numpy as np
import pytest

from hardkuma.common.correlation import pearson, ranks, spearman


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
