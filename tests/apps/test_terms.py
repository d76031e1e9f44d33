"""Key phrases: scores by hand, counts and places, wrapped lines, candidates of taggers and users, bad input, commands."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hardkuma import HardKumaModel
from hardkuma.__main__ import main
from hardkuma.apps.terms import _Finder, _Phrase, document_sentences, find_terms, rank_terms, stream_terms
from hardkuma.common.models import load_released
from hardkuma.scoring_hardkuma import ScoredText, score_texts
from hardkuma.words_hardkuma import find_words

TEXTS = [
    "The Large Hadron Collider is near Geneva. The collider was built by CERN.",
    "Physicists use large hadron colliders to find the Higgs boson. The Higgs boson!",
    "",
    "It was with them.",
]
WRAPPED = """\
The ferry to the island was cancelled because of fog,
and its passengers waited at the harbour for a rescue
helicopter of the ferry company.

- milk
- bread
"""


def rounded(terms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Scores depend on the batch in the seventh digit."""
    return [{**term, "score": round(term["score"], 4)} for term in terms]


@pytest.fixture(scope="module")
def model() -> HardKumaModel:
    return load_released()[0]


def test_counts_spread_and_places_are_those_of_the_texts(model: HardKumaModel) -> None:
    terms = find_terms(model, TEXTS, 50)
    by_text = {term["text"].casefold(): term for term in terms}
    assert len(by_text) == len(terms) > 3
    assert by_text["higgs boson"]["count"] == 2 and by_text["higgs boson"]["spread"] == 1
    (collider,) = find_terms(model, TEXTS, candidates=[["large hadron collider"]] * len(TEXTS))
    assert (collider["count"], collider["spread"]) == (2, 2), "capitals and plurals are one phrase"
    for term in terms:
        assert list(term) == ["text", "score", "count", "spread", "example", "places"]
        found = [TEXTS[place["row"]][place["start"] : place["end"]] for place in term["places"]]
        assert term["text"] in found and len(found) == term["count"]
        assert term["text"].casefold().rstrip("s") in term["example"].casefold()
        assert any(term["example"] in text for text in TEXTS)
        assert term["spread"] == len({place["row"] for place in term["places"]})
    scores = [term["score"] for term in terms]
    assert scores == sorted(scores, reverse=True) and scores[0] > scores[-1] > 0
    assert find_terms(model, TEXTS, 3) == terms[:3]
    assert find_terms(model, iter(TEXTS), 10_000) == find_terms(model, TEXTS, 1_000), "as many as there are"
    json.dumps(terms)


def test_a_stream_gives_each_document_by_itself(model: HardKumaModel, make_model: Callable) -> None:
    rows = list(stream_terms(model, iter(TEXTS), 5))
    assert [len(row) > 0 for row in rows] == [True, True, False, False]
    for text, row in zip(TEXTS, rows, strict=True):
        assert rounded(row) == rounded(find_terms(model, [text], 5))
        assert rounded(row) == rounded(rank_terms(model, text, score_texts(model, document_sentences(text)), 5))
    seen: list[str] = []

    def texts() -> object:
        for text in ["Rain damaged the old harbour. " * 300] * 40:
            seen.append(text)
            yield text

    next(stream_terms(make_model(), texts(), 5))  # type: ignore[arg-type]
    assert len(seen) < 40, "documents are read as they are needed"


def scored(text: str, *probabilities: float) -> ScoredText:
    return ScoredText(text, find_words(text), list(probabilities), windows=1, threshold=0.5)


def test_the_score_is_that_of_the_formula(make_model: Callable) -> None:
    model = make_model()  # without a table of isolated tokens: the cosine is 1
    assert not hasattr(model.gate_head, "isolated_table")
    text = "Red kraken. A kraken, the kraken."
    sentences = [scored("Red kraken.", 0.5, 0.25), scored("A kraken, the kraken.", 0.1, 0.75, 0.1, 0.5)]
    assert document_sentences(text) == [sentence.text for sentence in sentences]
    terms = {term["text"]: term for term in rank_terms(model, text, sentences)}
    length = 6**2 / (6**2 + 400**2)
    assert terms["Red kraken"]["score"] == pytest.approx(0.75)
    # The third word is its first; two of its three places are no part of a longer phrase.
    expected = 0.75 * math.sqrt(2 / 3) * (1 + 3 / 100) ** (-(1 + length) / 2) * 2 ** (length / 2)
    assert terms["kraken"]["score"] == pytest.approx(expected)
    assert terms["kraken"]["count"] == 3 and terms["kraken"]["example"] == "A kraken, the kraken."
    with pytest.raises(ValueError, match="number must be a whole number >= 1, got 0"):
        rank_terms(model, text, sentences, 0)


def test_place_counts_for_more_in_longer_documents(make_model: Callable) -> None:
    def ratio(words: int) -> float:
        """Of the score of the last word to that of the first."""
        text = " ".join(["kraken,", *["the"] * (words - 2), "ferry"])
        gates = [0.5, *[0.0] * (words - 2), 0.5]
        terms = {term["text"]: term["score"] for term in rank_terms(make_model(), text, [scored(text, *gates)])}
        return terms["ferry"] / terms["kraken"]

    exponent = math.log(ratio(100)) / math.log(1 + 99 / 100), math.log(ratio(900)) / math.log(1 + 899 / 100)
    assert exponent[0] == pytest.approx(-0.53, abs=0.01) and exponent[1] == pytest.approx(-0.92, abs=0.01)


def test_wrapped_lines_are_one_paragraph(model: HardKumaModel) -> None:
    whole = WRAPPED.replace("\nand", " and").replace("\nhelicopter", " helicopter")
    assert document_sentences(WRAPPED) == document_sentences(whole)
    assert document_sentences(WRAPPED)[-2:] == ["- milk", "- bread"]
    wrapped, plain = find_terms(model, [WRAPPED], 50), find_terms(model, [whole], 50)
    assert [(term["text"], term["score"]) for term in wrapped] == [(term["text"], term["score"]) for term in plain]
    places = [place for term in wrapped for place in term["places"]]
    assert any("\n" in WRAPPED[place["start"] : place["end"]] for place in places), "a phrase goes over the end of a line"
    for term in wrapped:
        for place in term["places"]:
            assert (
                " ".join(WRAPPED[place["start"] : place["end"]].split()).casefold().startswith(term["text"][:3].casefold())
            )
    crlf = find_terms(model, [WRAPPED.replace("\n", "\r\n")], 50)
    assert [term["text"] for term in crlf] == [term["text"] for term in wrapped]


def test_names_are_whole_and_without_function_words(model: HardKumaModel) -> None:
    names = [term["text"] for term in find_terms(model, TEXTS, 10, selector="entities")]
    assert any("Hadron Collider" in name for name in names) and "Geneva" in names
    assert not any(name.casefold().startswith(("the ", "of ")) or name.casefold().endswith(" of") for name in names)


def test_phrases_are_no_longer_than_asked_for(model: HardKumaModel) -> None:
    assert 1 < max(len(term["text"].split()) for term in find_terms(model, TEXTS, 50)) <= 4
    assert {len(term["text"].split()) for term in find_terms(model, TEXTS, 50, max_words=1)} == {1}
    with pytest.raises(ValueError, match="max_words must be a whole number >= 1, got 0"):
        find_terms(model, TEXTS, max_words=0)


def test_diversity_puts_apart_what_is_alike(model: HardKumaModel, make_model: Callable) -> None:
    phrases = {
        ("neural", "network"): _Phrase(score=1.0),
        ("artificial", "neural", "network"): _Phrase(score=0.9),
        ("pancake",): _Phrase(score=0.5),
    }
    first, second, third = phrases
    for own in (model, make_model()):  # cosines; without a table, common words
        assert [key for key, _ in _Finder(own, 3, diversity=0.0)._best(phrases)] == [first, second, third]
        assert [key for key, _ in _Finder(own, 3, diversity=0.7)._best(phrases)] == [first, third, second]
        assert [key for key, _ in _Finder(own, 2, diversity=0.7)._best(phrases)] == [first, third]
    text = TEXTS[0]
    with pytest.raises(ValueError, match=r"diversity must be in \[0, 1\], got 2"):
        find_terms(model, [text], diversity=2)


# ---- candidates of others -----------------------------------------------------------------------------------------------

TAGGED = "The newly trained deep neural networks beat a well-known method."


def tagged(text: str = TAGGED, tags: str = "DET ADV VERB ADJ ADJ NOUN VERB DET ADJ PUNCT VERB NOUN PUNCT") -> object:
    spacy = pytest.importorskip("spacy")
    doc = spacy.blank("en")(text)
    assert len(doc) == len(tags.split()), [token.text for token in doc]
    for token, tag in zip(doc, tags.split(), strict=True):
        token.pos_ = tag
        if token.text in ("trained", "known"):
            token.set_morph("Tense=Past|VerbForm=Part")
    return doc


def test_noun_phrases_of_a_tagger(model: HardKumaModel) -> None:
    found = {term["text"] for term in find_terms(model, [TAGGED], candidates=[tagged()], max_words=9)}
    assert any(phrase.endswith("neural networks") for phrase in found) and len(found) == 2
    assert any(phrase.endswith("method") for phrase in found), "a participle with a hyphen is an adjective"
    assert not any("beat" in phrase or "newly" in phrase for phrase in found)
    with pytest.raises(ValueError, match="no parts of speech; run a pipeline with a tagger"):
        find_terms(model, [TAGGED], candidates=[pytest.importorskip("spacy").blank("en")(TAGGED)])
    with pytest.raises(ValueError, match="the spaCy document is of another text: 'The newly"):
        find_terms(model, ["Rain."], candidates=[tagged()])


def test_candidates_as_spans_offsets_and_strings(model: HardKumaModel) -> None:
    doc = tagged()
    start = TAGGED.index("neural")
    by_span = find_terms(model, [TAGGED], candidates=[[doc[4:6]]])  # type: ignore[index]
    by_offsets = find_terms(model, [TAGGED], candidates=[[(start, start + len("neural networks"))]])
    by_string = find_terms(model, [TAGGED], candidates=[["Neural network", "no such phrase"]])
    assert by_span == by_offsets == by_string and [term["text"] for term in by_span] == ["neural networks"]
    crossing = find_terms(model, ["Rain, snow."], candidates=[[(0, 10)]])
    assert [(term["text"], term["count"]) for term in crossing] == [("Rain, snow", 1)], "punctuation does not cut it"
    assert find_terms(model, [TAGGED], candidates=[[]]) == []
    for wrong, problem in (
        ([(5, 900)], "inside of its text of 64 characters"),
        ([7], "a candidate is a span"),
        ("x", "got 'x'"),
    ):
        with pytest.raises(ValueError, match=problem):
            find_terms(model, [TAGGED], candidates=[wrong])
    for items, found in (([], "fewer"), ([[], []], "more")):
        with pytest.raises(ValueError, match=f"one item for each text; there are {found}"):
            find_terms(model, [TAGGED], candidates=items)


# ---- bad input ----------------------------------------------------------------------------------------------------------


def test_what_has_no_phrase(make_model: Callable) -> None:
    model = make_model()
    for texts in ([], ["", " \n\n "], ["!"], ["1891 7"], ["the of and"]):
        assert find_terms(model, texts) == [], texts
        assert list(stream_terms(model, texts)) == [[] for _ in texts]
    with pytest.raises(ValueError, match=r"got one string; wrap it: \[text\]"):
        find_terms(None, "a text")  # type: ignore[arg-type] # no model is asked
    with pytest.raises(TypeError, match=r"^stream_terms\(\) has no option 'max_word'; did you mean max_words\?$"):
        next(stream_terms(model, [TAGGED], max_word=3))
    with pytest.raises(ValueError, match="a text must be a string, got int"):
        find_terms(model, [7])  # type: ignore[list-item]


def test_odd_texts(model: HardKumaModel) -> None:
    assert [term["text"] for term in find_terms(model, ["Kraken"])] == ["Kraken"]
    code = "def main():\n    return kraken_count + 1\n\nclass Ferry:\n    pass\n"
    for text in (
        code,
        "- milk\n- eggs\n- bread",
        "x" * 100_000,
        "a \ud800 kraken",
        "\x00\x1b[31m kraken",
        "kraken\u2028ferry",
    ):
        for term in find_terms(model, [text]):
            assert all(0 <= place["start"] < place["end"] <= len(text) for place in term["places"])


@pytest.mark.slow
def test_a_megabyte(make_model: Callable) -> None:
    sentence = "The ferry company cancelled a boat to the island. "
    text = sentence * (1_000_000 // len(sentence))
    terms = find_terms(make_model(), [text], 3)
    assert all(term["count"] == 20_000 for term in terms)


def test_another_language_is_said_once(model: HardKumaModel) -> None:
    spanish = (
        "El barco de la compañía fue cancelado por la niebla y los pasajeros esperaron muchas horas en el puerto. " * 4
    )
    with pytest.warns(UserWarning, match="function words that the model knows") as said:
        find_terms(model, [spanish, spanish])
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_terms(model, [WRAPPED * 3])


# ---- the command --------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: HardKumaModel) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    words = [str(tmp_path / "in.jsonl"), "--field", "body", "--quiet"]
    shown = []
    for name in ("keyphrases", "terms"):
        assert main([name, *words, "--format", "jsonl"]) == 0
        shown.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert shown[0] == shown[1] and rounded(shown[0]) == rounded(find_terms(model, TEXTS))
    assert main(["keyphrases", *words, "--number", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].split() == ["phrase", "count", "rows", "example"]
    assert main(["keyphrases", *words, "--each", "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == [0, 1, 2, 3] and rounded(rows[1]["terms"]) == rounded(
        find_terms(model, [TEXTS[1]])
    )
    assert main(["keyphrases", *words, "--tagger", "no_such_model"]) == 1
    assert "--tagger no_such_model: spaCy has no such model" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["keyphrases", *words, "--diversity", "2"])
    assert end.value.code == 2 and "--diversity must be in [0, 1], got 2.0" in capsys.readouterr().err


def test_a_text_file_is_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: HardKumaModel) -> None:
    (tmp_path / "wrapped.txt").write_text(WRAPPED)
    for words, documents in (([], [WRAPPED]), (["--lines"], WRAPPED.split("\n"))):
        assert main(["keyphrases", str(tmp_path / "wrapped.txt"), "--quiet", "--format", "jsonl", *words]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert rounded(found) == rounded(find_terms(model, documents))
    for content, problem in (("!\n", "no phrase was found"), ("\n \n", "the input is empty")):
        (tmp_path / "empty.txt").write_text(content)
        assert main(["keyphrases", str(tmp_path / "empty.txt"), "--quiet"]) == 0
        shown = capsys.readouterr()
        assert problem in shown.err and not shown.out
    (tmp_path / "long.txt").write_text("x" * 3000 + "\n")
    assert main(["terms", str(tmp_path / "long.txt"), "--quiet"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 300
