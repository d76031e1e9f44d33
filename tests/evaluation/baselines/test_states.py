"""Norm and cosine of token states by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hardkuma.evaluation.baselines import METHODS, SentenceEncoder


def test_norm_and_cosine_by_hand(known: SentenceEncoder) -> None:
    # it (.5, -1, 0), par (0, 0, 5), ##is (0, 0, 10): mean (1/6, -1/3, 5).
    text = ["it Paris"]
    assert METHODS["norm"].scores(known, text)[0].scores == pytest.approx([math.sqrt(1.25), 10.0])
    assert METHODS["norm_sum"].scores(known, text)[0].scores == pytest.approx([math.sqrt(1.25), 15.0])
    mean = np.array([0.5, -1, 15]) / 3
    expected = [np.dot(v, mean) / np.linalg.norm(v) / np.linalg.norm(mean) for v in ([0.5, -1, 0], [0, 0, 1])]
    assert METHODS["cosine"].scores(known, text)[0].scores == pytest.approx(expected, abs=1e-5)
