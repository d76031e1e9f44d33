"""The numbers of one method on one corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from hardkuma.evaluation.baselines import METHODS, WordScores
from hardkuma.evaluation.measure import entity_numbers, label_metrics, top_of_corpus

from .conftest import join_words


def test_perfect_scores_have_perfect_metrics() -> None:
    sentences = [join_words(["In", "New", "York"], ["O", "B-L", "I-L"]), join_words(["Ana", "sings"], ["B-P", "O"])]
    perfect = [
        WordScores(s.text, list(s.offsets), [float(t != "O") for t in s.tags], [t != "O" for t in s.tags])
        for s in sentences
    ]
    found = label_metrics(sentences, [perfect], samples=50)
    for name in (
        "average_precision",
        "auroc",
        "best_f1",
        "f1_own",
        "f1_at_gold_rate",
        "span_f1_exact",
        "span_f1_overlap_own",
    ):
        assert found[name].value == found[name].low == found[name].high == 1.0, name
    assert found["selection_rate"].value == pytest.approx(3 / 5)


def test_runs_are_averaged_under_the_same_draws() -> None:
    sentences = [join_words(["a", "B", "c"], ["O", "B-X", "O"]) for _ in range(30)]
    texts, words = [s.text for s in sentences], [s.offsets for s in sentences]
    runs = [METHODS["random"].scores(None, [f"{t}" for t in texts], words, seed=seed) for seed in range(4)]
    alone = [label_metrics(sentences, [run], samples=0)["average_precision"].value for run in runs]
    assert label_metrics(sentences, runs, samples=0)["average_precision"].value == pytest.approx(np.mean(alone))


def test_top_of_corpus_selects_the_gold_number() -> None:
    run = [WordScores("a b c", [(0, 1), (2, 3), (4, 5)], [1.0, 1.0, 1.0]), WordScores("d", [(0, 1)], [2.0])]
    chosen = top_of_corpus([[1, 0, 0], [1]], run)
    assert sum(map(sum, chosen)) == 2 and chosen[1] == [True]
    assert chosen == top_of_corpus([[1, 0, 0], [1]], run)


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
