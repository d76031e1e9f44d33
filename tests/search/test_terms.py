"""Key terms: counts by hand, spans, lower-cased variants joined, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hardkuma import HardKumaModel
from hardkuma.__main__ import main
from hardkuma.common.models import load_released
from hardkuma.search import find_terms

TEXTS = [
    "The Large Hadron Collider stands near Geneva. The collider was built by CERN.",
    "Physicists use the large hadron collider to find the Higgs boson.",
    "",
    "It was of no use to them.",
]


@pytest.fixture(scope="module")
def model() -> HardKumaModel:
    return load_released()[0]


def test_counts_and_spread_are_those_of_the_texts(model: HardKumaModel) -> None:
    terms = {term.text.casefold(): term for term in find_terms(model, TEXTS, 50, rate=0.5)}
    whole = " ".join(TEXTS).casefold()
    assert terms
    for name, term in terms.items():
        assert term.count == whole.count(name), name
        assert term.spread == sum(name in text.casefold() for text in TEXTS), name
        assert term.example.casefold().count(name) and term.example in " ".join(TEXTS)
    assert len(terms) == len(find_terms(model, TEXTS, 50, rate=0.5)), "variants in another case are one term"
    scores = [term.score for term in find_terms(model, TEXTS, 50, rate=0.5)]
    assert scores == sorted(scores, reverse=True)
    assert len(find_terms(model, TEXTS, 3, rate=0.5)) == 3


def test_names_are_whole_and_without_grammar(model: HardKumaModel) -> None:
    names = [term.text for term in find_terms(model, TEXTS, 10, selector="entities")]
    assert any("Hadron Collider" in name for name in names) and "Geneva" in names
    assert not any(name.casefold().startswith(("the ", "of ")) or name.casefold().endswith(" of") for name in names)


def test_punctuation_ends_a_term(make_model: Callable) -> None:
    terms = find_terms(make_model(), ["paris, london berlin . 1891"], rate=1.0)
    assert {term.text for term in terms} == {"paris", "london berlin"}, "numbers alone are no terms"
    assert find_terms(make_model(), []) == [] and find_terms(make_model(), ["", "!"]) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    words = ["terms", str(tmp_path / "in.jsonl"), "--field", "body", "--quiet", "--selector", "entities"]
    assert main([*words, "--format", "jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(found[0]) == ["text", "count", "spread", "score", "example"]
    assert main([*words, "--number", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 and shown[0].split() == ["term", "count", "rows", "example"] and found[0]["text"] in shown[1]
    (tmp_path / "empty.txt").write_text("!\n")
    assert main(["terms", str(tmp_path / "empty.txt"), "--quiet"]) == 0
    assert "no word was selected" in capsys.readouterr().err
