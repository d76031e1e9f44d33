"""Agreement against scipy and against counting pairs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hardkuma.apps.export.cards import agreement
from hardkuma.evaluation.statistics import ranks


def test_against_scipy_and_pairs() -> None:
    generator = np.random.default_rng(0)
    gates = generator.random(300).round(2)
    ours = (gates + generator.normal(0, 0.2, 300)).clip(0, 1).round(2)  # rounding makes ties
    found = agreement(ours, gates, threshold=0.4, gate_threshold=0.6)
    assert found.pearson == pytest.approx(stats.pearsonr(ours, gates).statistic)
    assert found.spearman == pytest.approx(stats.spearmanr(ours, gates).statistic)
    above, below = ours[gates > 0.6], ours[gates <= 0.6]
    pairs = [(a > b) + (a == b) / 2 for a in above for b in below]
    assert found.auroc == pytest.approx(np.mean(pairs))
    assert found.decisions == pytest.approx(np.mean((ours > 0.4) == (gates > 0.6)))
    assert np.array_equal(ranks(ours), stats.rankdata(ours))


def test_one_kind_of_token_has_no_auroc() -> None:
    found = agreement(np.array([0.1, 0.2]), np.array([0.3, 0.3]))
    assert np.isnan(found.auroc) and np.isnan(found.pearson) and found.decisions == 1
