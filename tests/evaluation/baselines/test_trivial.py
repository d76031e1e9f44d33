"""Chance, position, capitals."""

from __future__ import annotations

from hardkuma.evaluation.baselines import METHODS

from ..conftest import whitespace_words


def test_random_is_seeded_and_uniform() -> None:
    texts = [f"word {'and word ' * 20}{i}" for i in range(50)]
    values = [v for r in METHODS["random"].scores(None, texts) for v in r.scores]
    assert 0.45 < sum(values) / len(values) < 0.55
    assert METHODS["random"].scores(None, texts)[7].scores == METHODS["random"].scores(None, texts[7:8])[0].scores


def test_capitals_by_hand() -> None:
    text = "She met NATO . Then iPhone 5 in ‘Rome’"
    result = METHODS["capitals"].scores(None, [text], [whitespace_words(text)])[0]
    assert result.scores == [0.5, 0, 1, 0, 0.5, 0, 0, 0, 1]
    assert result.selected == [value == 1 for value in result.scores]
