"""Installed spaCy pipelines as a reference: found without spaCy, run on the words that are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardkuma.evaluation.baselines.registry import spacy_methods
from hardkuma.evaluation.baselines.spacy_entities import cut_text, ner_packages

from ...apps.spacy_packages import install_pipeline

spacy = pytest.importorskip("spacy")


def test_packages_with_ner_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(ner_packages())
    install_pipeline(tmp_path, "toy_names", {"PERSON": ["Ana"]})
    install_pipeline(tmp_path, "toy_empty", None)
    (install_pipeline(tmp_path, "toy_broken", {"PERSON": ["Ana"]}) / "meta.json").write_text("{")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(ner_packages()) - before == {"toy_names"} and ner_packages()["toy_names"] == "1.2.3"
    method = next(method for method in spacy_methods() if method.name == "spacy_toy_names")
    assert method.title == "spaCy toy_names 1.2.3 (reference)" and not method.ranked and method.role == "reference"


def test_decisions_are_of_the_words_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"PERSON": ["Ana", "O'Neil"], "DATE": ["1891"], "CARDINAL": ["two"], "GPE": ["New York"]}
    install_pipeline(tmp_path, "toy_names", names)
    monkeypatch.syspath_prepend(str(tmp_path))
    method = next(method for method in spacy_methods() if method.name == "spacy_toy_names")
    # spaCy's own tokenizer would cut "O'Neil," and "New York" would be two words.
    texts = ["O'Neil, 1891: two in New York", "", "nothing (Ana)"]
    words = [[(0, 6), (8, 12), (14, 17), (18, 20), (21, 29)], [], [(0, 7), (9, 12)]]
    pieces, numbers = cut_text(texts[0], words[0])
    assert [texts[0][start:end] for start, end in pieces] == ["O'Neil", ",", "1891", ":", "two", "in", "New York"]
    assert [pieces[number] for number in numbers] == words[0]
    results = method.scores(None, texts, words)
    # The ruler knows "New York" as two tokens, and this is one: decisions are of the words given, no others.
    assert [result.selected for result in results] == [[True, False, False, False, False], [], [False, True]]
    assert [result.scores for result in results] == [[1.0, 0.0, 0.0, 0.0, 0.0], [], [0.0, 1.0]]
    apart = method.scores(None, ["in New York"], [[(0, 2), (3, 6), (7, 11)]])[0]
    assert apart.selected == [False, True, True]


def test_what_stands_between_words_keeps_its_place() -> None:
    assert cut_text("  a , , b ", [(2, 3), (8, 9)]) == ([(2, 3), (4, 5), (6, 7), (8, 9)], [0, 3])
    assert cut_text("", []) == ([], [])
    assert cut_text("...", []) == ([(0, 3)], [])
