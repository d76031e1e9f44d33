"""Candidates by gates alone: what begins, continues and ends a phrase."""

from __future__ import annotations

import pytest

from hardkuma.apps.candidates import GatedWords, find_keys, fold_word, gate_phrases
from hardkuma.scoring_hardkuma import ScoredText
from hardkuma.words_hardkuma import find_words


def phrases(text: str, **gates: float) -> list[str]:
    """Candidates of a sentence whose words have gates of .5, but for those that are named."""
    spans = find_words(text)
    words = [text[start:end] for start, end in spans]
    values = [gates.get(word, 0.5) for word in words]
    scored = ScoredText(text, spans, values, windows=1, threshold=0.5)
    joins = [i > 0 and scored.joins(i) for i in range(len(words))]
    found = gate_phrases(GatedWords(words, spans, values, joins))
    return [" ".join(words[i] for i in phrase) for phrase in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red ferries, old boats of the harbour", ["red ferries", "old boats", "harbour"]),
        ("it nearly sank the family assembly", ["family assembly"]),
        ("the article reviews the literature", ["article", "literature"]),
        ("we study neural networks", ["neural networks"]),
        ("the storm attained hurricane status", ["storm", "hurricane status"]),
        ("an adaptive weighted mean was computed", ["adaptive weighted mean"]),
        ("the Senate approved spending bills", ["Senate", "spending bills"]),
        ("a method of learning words", ["method", "words"]),
        ("machine learning with neural networks", ["machine learning", "neural networks"]),
        ("a computer-aided tool based on gates", ["computer-aided tool", "gates"]),
        ("three boats said Monday", ["boats"]),
        ("an x 1891 of kraken 7", ["kraken"]),
        ("", []),
    ],
)
def test_what_ends_a_phrase(text: str, expected: list[str]) -> None:
    assert phrases(text) == expected


def test_a_phrase_begins_with_a_gate_and_goes_on_with_less() -> None:
    assert phrases("new quantum devices", new=0.16, devices=0.16) == ["quantum devices"]
    assert phrases("new quantum devices", new=0.2, devices=0.14) == ["new quantum"]
    assert phrases("old quantum gates", quantum=0.1) == ["old", "gates"]


def test_folding_and_finding() -> None:
    assert fold_word("Processes") == "process" and fold_word("bus") == "bus" and fold_word("NATO") == "nato"
    words = ["deep", "network", "deep", "network"]
    assert list(find_keys(words, [False, True, False, True], {("deep", "network"), ("network", "deep")})) == [
        range(0, 2),
        range(2, 4),
    ]
