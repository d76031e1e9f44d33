"""Key terms: counts by hand, spans, lower-cased variants joined, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hardkuma import HardKumaModel
from hardkuma.__main__ import main
from hardkuma.apps.terms import find_terms, rank_terms
from hardkuma.common.models import load_released
from hardkuma.scoring_hardkuma import ScoredText
from hardkuma.words_hardkuma import find_words

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
    terms = find_terms(model, TEXTS, 50, rate=0.5)
    names = [term.text.casefold() for term in terms]
    whole = " ".join(TEXTS).casefold()
    assert len(names) > 5 and len(set(names)) == len(names), "variants in another case are one term"
    for name, term in zip(names, terms, strict=True):
        assert term.count == whole.count(name), name
        assert term.spread == sum(name in text.casefold() for text in TEXTS), name
        assert name in term.example.casefold() and term.example in " ".join(TEXTS)
    scores = [term.score for term in terms]
    assert scores == sorted(scores, reverse=True) and scores[0] > scores[-1]
    assert find_terms(model, TEXTS, 3, rate=0.5) == terms[:3]


def scored(text: str, *probabilities: float) -> ScoredText:
    return ScoredText(text, find_words(text), list(probabilities), windows=1, threshold=0.5)


def test_the_example_is_the_sentence_in_which_a_term_is_most_probable() -> None:
    sentences = [scored("a kraken .", 0.1, 0.6), scored("Kraken !", 0.9), scored("the Kraken ?", 0.1, 0.8)]
    (term,) = rank_terms(enumerate(sentences))
    assert (term.text, term.example, term.count, term.spread) == ("Kraken", "Kraken !", 3, 3)
    assert term.score == pytest.approx(0.6 + 0.9 + 0.8)
    assert [term.text for term in rank_terms([(0, scored("x y", 0.2, 0.4))], rate=0.5)] == ["y"]
    with pytest.raises(ValueError, match="number must be a whole number >= 1, got 0"):
        rank_terms([], 0)


def test_names_are_whole_and_without_function_words(model: HardKumaModel) -> None:
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
    assert "no term was found" in capsys.readouterr().err
    (tmp_path / "long.txt").write_text("x" * 3000 + "\n")
    assert main(["terms", str(tmp_path / "long.txt"), "--quiet"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 300
    with pytest.raises(ValueError, match=r"got one string; wrap it: \[text\]"):
        find_terms(None, "a text")  # type: ignore[arg-type] # no model is asked
    (tmp_path / "empty.txt").write_text("\n \n")
    assert main(["terms", str(tmp_path / "empty.txt"), "--quiet", "--format", "jsonl"]) == 0
    shown = capsys.readouterr()
    assert "the input is empty" in shown.err and "--rate" not in shown.err and not shown.out
