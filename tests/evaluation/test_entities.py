"""The three numbers of a training report, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from hardkuma.evaluation.entities import entity_numbers


def test_numbers_against_scikit_learn(make_model: Callable, tmp_path: Path) -> None:
    path = tmp_path / "dev.conll"
    path.write_text("marie B-PER\ncurie I-PER\nmoved O\nto O\nparis B-LOC\n\nthe O\nriver O\nruns O\nby O\nlondon B-LOC\n")
    model = make_model(decision_threshold=0.4)
    texts = ["marie curie moved to paris", "the river runs by london"]
    words = [word for record in model.gate_records(texts) for word in record["words"]]
    truth = np.array([1, 1, 0, 0, 1, 0, 0, 0, 0, 1])
    scores = np.array([word["probability"] for word in words])
    numbers = entity_numbers(model, path)
    assert numbers["average precision"] == pytest.approx(average_precision_score(truth, scores), abs=1e-6)
    assert numbers["F1"] == pytest.approx(f1_score(truth, scores > 0.4), abs=1e-6)
    assert numbers["best F1"] == pytest.approx(max(f1_score(truth, scores >= t) for t in scores), abs=1e-6)
