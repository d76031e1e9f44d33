"""Every metric says its direction and works through `evaluate`, offline."""

from __future__ import annotations

import numpy as np
import pytest

from hardkuma.evaluation.baselines.toy import toy_encoder
from hardkuma.evaluation.metrics import METRICS, as_evaluate, find_metric

EXAMPLES = {
    "scores": [[0.9, 0.1, 0.4], [0.2, 0.8]],
    "decisions": [[1, 0, 0], [1, 1]],
    "labels": [[1, 0, 0], [0, 1]],
    "tags": [["B-LOC", "O", "O"], ["O", "B-PER"]],
    "vector": [[1.0, 0.0], [0.0, 1.0]],
    "text": ["paris in rain", "in paris"],
}


def inputs(name: str) -> dict:
    metric = METRICS[name]
    given = {"predictions": EXAMPLES[metric.predictions]}
    return given if metric.references is None else {**given, "references": EXAMPLES[metric.references]}


@pytest.mark.parametrize("name", METRICS)
def test_both_interfaces_agree(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("evaluate")
    needs_encoder = name in ("sufficiency", "comprehensiveness")
    vectors = {"paris": [3.0, 0.0], "in": [0.0, 1.0], "rain": [0.5, 0.5]}
    options = {"encoder": toy_encoder(vectors)} if needs_encoder else {}
    plain = METRICS[name].compute(**inputs(name), **options)
    wrapped = as_evaluate(name, **options)
    assert wrapped.compute(**inputs(name)) == pytest.approx(plain)
    assert np.isfinite(plain[name])
    assert wrapped.higher_is_better is METRICS[name].higher_is_better
    assert METRICS[name].direction in wrapped.description


def test_directions() -> None:
    lower = {name for name, metric in METRICS.items() if metric.higher_is_better is False}
    assert lower == {"alignment", "uniformity"}
    assert METRICS["selection_rate"].direction == "neither direction is better"


def test_combined_and_in_batches() -> None:
    evaluate = pytest.importorskip("evaluate")
    both = evaluate.combine([as_evaluate("auroc"), as_evaluate("average_precision")])
    assert both.compute(predictions=[[0.9, 0.1]], references=[[1, 0]]) == {"auroc": 1.0, "average_precision": 1.0}
    metric = as_evaluate("precision_at_rate", rate=0.5)
    metric.add_batch(predictions=[[0.9, 0.1]], references=[[1, 0]])
    metric.add(prediction=[0.3, 0.2], reference=[0, 1])
    assert metric.compute() == {"precision_at_rate": 0.5}


def test_errors_name_the_fix() -> None:
    with pytest.raises(ValueError, match="unknown metric 'accuracy'; known: average_precision"):
        find_metric("accuracy")
    with pytest.raises(ValueError, match="one reference \\(labels\\) per prediction, got none"):
        METRICS["f1"].compute(predictions=[[1]])
