"""In which words two texts differ: against a naive loop, on what an embedding hardly sees, on people's labels."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hardkuma import HardKumaModel, explain_pair, find_differences
from hardkuma.apps.differences import DIFFERENT, SAME, join_differences, word_chance
from hardkuma.evaluation.differences import read_pairs
from hardkuma.evaluation.statistics import spearman
from hardkuma.words_hardkuma import ENGLISH, find_words
from tests.conftest import SENTENCES

DATA = Path(os.environ.get("HARDKUMA_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))


def spans(side: dict) -> list[str]:
    return [span["text"] for span in side["differences"]]


def test_differs_is_the_equation(minilm: HardKumaModel) -> None:
    """Sentences without a function word or a contrast: a loop over words, neighbours and words of the other text."""
    texts = "Marie Curie studied physics", "Students like chemistry lessons, mostly"
    states = []
    for text in texts:
        coded = minilm.tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = coded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            last = minilm.encoder(**coded).last_hidden_state[0]
        words = find_words(text)
        means = [
            torch.stack([last[t] for t, (s, e) in enumerate(offsets) if s < end and e > start and e > s]).mean(0)
            for start, end in words
        ]
        rows = []
        for i, own in enumerate(means):
            before, after = means[max(i - 1, 0)], means[min(i + 1, len(means) - 1)]
            rows.append(torch.nn.functional.normalize((before + 2 * own + after) / 4, dim=0))
        states.append(rows)
    found = find_differences(minilm, [texts])[0]
    for name, own, other in (("a", *states), ("b", *states[::-1])):
        for word, row in zip(found[name]["words"], own, strict=True):
            lacking = (1 - max(float(row @ vector) for vector in other)) / (1 - word_chance(minilm))
            expected = min(max((lacking - SAME) / (1 - SAME), 0.0), 1.0)
            assert not ENGLISH.is_function_word(word["word"]) and word["differs"] == pytest.approx(expected, abs=1e-5)
    assert 0.1 < found["a"]["words"][-1]["differs"] < 0.9


def test_a_function_word_differs_as_what_it_belongs_to(minilm: HardKumaModel) -> None:
    side = find_differences(minilm, [("She lives in the city, by the sea", "She lives on a farm")])[0]["a"]
    by_word = [(word["word"], word["differs"]) for word in side["words"]]
    values = dict(by_word)
    assert values["in"] == values["city"] and values["by"] == values["sea"] == by_word[-1][1]
    assert values["city"] != values["sea"] and values["She"] == values["lives"] < DIFFERENT


@pytest.mark.parametrize(
    ("a", "b", "first", "second"),
    [
        ("The shop opens at 3 pm.", "The shop opens at 5 pm.", ["3"], ["5"]),
        ("Profits increased in the spring.", "Profits decreased in the spring.", ["increased"], ["decreased"]),
        ("The film was good.", "The film was not good.", [], ["not"]),
        ("He accepted the offer.", "He took the offer.", [], []),
        ("It was large when we arrived.", "It was small when we arrived.", ["large"], ["small"]),
    ],
)
def test_what_an_embedding_hardly_sees(a: str, b: str, first: list[str], second: list[str], minilm: HardKumaModel) -> None:
    pair = find_differences(minilm, [(a, b)])[0]
    assert spans(pair["a"]) == first and spans(pair["b"]) == second and pair["similarity"] > 0.7
    explained = explain_pair(minilm, a, b)
    assert spans(explained["a"]) == first and spans(explained["b"]) == second
    assert not any(word["carries"] and word["differs"] == 1 for name in "ab" for word in explained[name]["words"])


@pytest.mark.parametrize("text", ["The shop does not open at 3 pm.", "Paris", "", "!", "the"])
def test_nothing_differs_in_identical_texts(text: str, minilm: HardKumaModel) -> None:
    pair = find_differences(minilm, [(text, text)])[0]
    assert all(word["differs"] == 0 for name in "ab" for word in pair[name]["words"])
    assert pair["a"]["differences"] == pair["b"]["differences"] == pair["notes"] == []


def test_everything_differs_from_an_unrelated_or_empty_text(minilm: HardKumaModel) -> None:
    unrelated, empty = find_differences(minilm, [("Interest rates rose.", "A cat sleeps."), ("A cat sleeps.", "")])
    assert spans(unrelated["a"]) == ["Interest rates rose"] and spans(unrelated["b"]) == ["A cat sleeps"]
    assert [word["differs"] for word in empty["a"]["words"]] == [1.0, 1.0, 1.0] and empty["b"]["words"] == []


def test_one_pass_a_text(minilm: HardKumaModel) -> None:
    word_chance(minilm)
    rows: list[int] = []
    hook = minilm.encoder.register_forward_hook(lambda *seen: rows.append(len(seen[-1][0])))
    found = find_differences(minilm, [("a cat", "a dog"), ("a cat", "two cats")])
    hook.remove()
    assert sum(rows) == 3 and json.loads(json.dumps(found, allow_nan=False)) == found


def test_other_languages_are_said(minilm: HardKumaModel) -> None:
    texts = "The cat is on the mat.", "Die Katze ist auf der Matte."
    (note,) = find_differences(minilm, [texts])[0]["notes"]
    assert note.startswith("the texts are of different languages (English, German)")
    assert note in explain_pair(minilm, *texts)["notes"]


@pytest.mark.parametrize("family", ["bert", "hardkuma_static", "qwen3"])
def test_any_encoder_and_long_texts(family: str, make_model: Callable) -> None:
    model = make_model(family)
    long = " ".join(SENTENCES * 3)
    pair = find_differences(model, [(long, SENTENCES[0]), ("", SENTENCES[0]), ("\ud83d paris", "x")], batch_size=2)[0]
    assert [(word["start"], word["end"]) for word in pair["a"]["words"]] == find_words(long)
    assert all(0 <= word["differs"] <= 1 for name in "ab" for word in pair[name]["words"])
    if pair["a"]["truncated"]:
        assert pair["a"]["words"][-1]["differs"] == 0, "the encoder has not seen it"


def test_a_pair_has_both_and_a_word_is_one_of_them(minilm: HardKumaModel) -> None:
    pair = explain_pair(minilm, "A cat sleeps on the mat.", "My cat is called Tom.")
    for name in "ab":
        within = [any(s["start"] <= w["start"] < s["end"] for s in pair[name]["differences"]) for w in pair[name]["words"]]
        carries = [word["carries"] for word in pair[name]["words"]]
        assert any(within) and any(carries) and not any(x and y for x, y in zip(within, carries, strict=True))
    link = pair["links"][0]
    assert link["words"] == [pair[name]["words"][link[name]]["word"] for name in "ab"]


def test_spans_end_at_punctuation_and_at_words_that_carry() -> None:
    text = "a red, big dog ran"
    words = [{"start": s, "end": e, "differs": 0.5, "carries": text[s:e] == "dog"} for s, e in find_words(text)]
    assert [span["text"] for span in join_differences(text, words)] == ["a red", "big", "ran"]
    words[1]["carries"] = True
    assert [span["text"] for span in join_differences(text, words)] == ["big", "ran"], "an article alone is none"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It fell 3% today", ["3%"]),
        ("It fell 3 % today", ["3"]),
        ("It costs $30, or 28€.", ["$30", "28€"]),
        ("5€6", ["5€", "6"]),
        ("20° or 20", ["20°", "20"]),
        ("$", []),
        ("No. 3.", ["3"]),
    ],
)
def test_the_sign_of_a_number_differs_with_it(text: str, expected: list[str]) -> None:
    words = [{"start": s, "end": e, "differs": float(text[s].isdigit())} for s, e in find_words(text)]
    spans = join_differences(text, words)
    assert [span["text"] for span in spans] == [text[span["start"] : span["end"]] for span in spans] == expected


def test_bad_arguments(make_model: Callable) -> None:
    model = make_model()
    for wrong in (("paris", "london"), ["ab"], [("paris", "london", "rome")], [("paris",)], [None]):
        with pytest.raises(ValueError, match=r"pairs must be a list of pairs of texts, \[\(a, b\)\]; one of them is "):
            find_differences(model, wrong)
    with pytest.raises(ValueError, match=r"b must be a text \(str\), got a list"):
        find_differences(model, [("paris", ["london"])])
    with pytest.raises(ValueError, match="batch_size must be a whole number >= 1, got 0"):
        find_differences(model, [], batch_size=0)
    with pytest.raises(ValueError, match="training mode"):
        find_differences(model.train(), [("paris", "london")])


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "differences").is_dir(), reason=f"no labelled pairs in {DATA}; set HARDKUMA_DATA")
@pytest.mark.parametrize(("name", "least"), [("ists", 0.74), ("ists_negatives", 0.65)])
def test_people_agree(name: str, least: float, minilm: HardKumaModel) -> None:
    from hardkuma.cli.tables import our_method

    pairs = read_pairs(DATA / "differences" / f"{name}.jsonl")
    values = our_method(minilm)(pairs)
    gold = [label for pair in pairs for text in pair for label in text.labels]
    found = [value for sides in values for side in sides for value in side]
    kept = [i for i, label in enumerate(gold) if label >= 0]
    assert spearman([gold[i] for i in kept], [found[i] for i in kept]) > least
