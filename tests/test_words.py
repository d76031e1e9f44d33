"""Words and their written forms in many scripts, statistics of the forms, and their effect on gates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardkuma import load_released
from hardkuma.words_hardkuma import (
    ENGLISH,
    LONGEST_REMEMBERED,
    NUM_SURFACE_CLASSES,
    SURFACE_CLASSES,
    SurfaceStatistics,
    continues_batch,
    find_words,
    surface_batch,
    surface_ids,
    word_class,
)
from tests.conftest import SENTENCES, several

CASES = [
    ("walks", "lower"),
    ("Paris", "initial_inside"),
    ("NATO", "capitals"),
    ("I", "single_capital"),
    ("iPhone", "mixed"),
    ("mRNA", "mixed"),
    ("McDonald", "initial_inside"),
    ("U.S", "capitals"),
    ("O'Neil", "initial_inside"),
    ("B2B", "digit"),
    ("2020", "digit"),
    ("٢٠٢٠", "digit"),
    ("Москва", "initial_inside"),
    ("город", "lower"),
    ("Ελλάδα", "initial_inside"),
    ("東京", "caseless"),
    ("القاهرة", "caseless"),
    ("दिल्ली", "caseless"),
    ("תל", "caseless"),
    ("@ana", "handle"),
    ("#Rio2016", "handle"),
    ("…", "symbol"),
    ("🙂", "symbol"),
    ("é", "lower"),
]


@pytest.mark.parametrize(("word", "expected"), CASES, ids=[w for w, _ in CASES])
def test_classes(word: str, expected: str) -> None:
    assert SURFACE_CLASSES[word_class(word)] == expected


def test_sentence_starts() -> None:
    text = "Paris won. “London lost”? Then (Berlin) drew!\nRome too: Oslo."
    names = {
        text[s:e]: SURFACE_CLASSES[i]
        for (s, e), i in zip(find_words(text), surface_ids(text, find_words(text)), strict=True)
    }
    assert names["Paris"] == names["London"] == names["Then"] == names["Rome"] == "initial_start"
    assert names["Berlin"] == names["Oslo"] == "initial_inside"


def test_words_of_many_scripts() -> None:
    text = "cafe\u0301 in दिल्ली, 東京タワー — naïve O’Brien's @user_1 #tag"
    assert [text[s:e] for s, e in find_words(text)] == [
        "cafe\u0301",
        "in",
        "दिल्ली",
        "東",
        "京",
        "タワー",
        "naïve",
        "O’Brien",
        "'s",
        "@user_1",
        "#tag",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京は2020年、ロンドン", "東京 は 2020 年 ロンドン"),
        ("北京。#北京", "北 京 #北 京"),
        ("ป็นเมือง", "ป็น เมือง"),
        ("ភ្នំ မြန်မာ", "ភ្នំ မြန် မာ"),
        ("한국어 문장", "한국어 문장"),
    ],
)
def test_scripts_without_spaces(text: str, words: str) -> None:
    assert [text[s:e] for s, e in find_words(text)] == words.split()


def test_inner_joiners_and_rarer_emoji() -> None:
    text = "Inter\u00adnational צה״ל ▶️ ©️ 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f ©"
    assert [text[s:e] for s, e in find_words(text)] == text.split()[:-1]


def test_an_emoji_is_one_word_and_a_stray_mark_is_none() -> None:
    text = "I ❤️ 🍕👨\u200d👩\u200d👧 🇫🇷🇩🇪 👍🏽 1️⃣ می\u200cخواهم → \u0301 ok"
    expected = ["I", "❤️", "🍕", "👨\u200d👩\u200d👧", "🇫🇷", "🇩🇪", "👍🏽", "1️⃣", "می\u200cخواهم", "ok"]
    assert [text[s:e] for s, e in find_words(text)] == expected


def test_a_token_over_several_words_and_one_of_white_space() -> None:
    text = "🙂 Ana, 7\n\n"
    assert surface_ids(text, [(0, 5), (1, 2), (5, 8), (5, 6), (8, 10)]) == [5, 0, 2, 1, 0]


def test_sub_words_take_the_class_of_their_word() -> None:
    text = "see iPhones"
    assert surface_ids(text, [(0, 3), (4, 5), (5, 8), (8, 11)]) == [3, 8, 8, 8]
    # A tokenizer that keeps the space inside the token.
    assert surface_ids(text, [(0, 3), (3, 11)]) == [3, 8]


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=40))
def test_any_text_gives_a_class_for_every_character(text: str) -> None:
    ids = surface_ids(text, [(i, i + 1) for i in range(len(text))])
    assert len(ids) == len(text) and all(0 <= i < NUM_SURFACE_CLASSES for i in ids)
    spans = find_words(text)
    assert all(0 <= s < e <= len(text) for s, e in spans)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_log_odds_by_hand_and_shrinkage() -> None:
    statistics = SurfaceStatistics()
    probs = torch.tensor([[[0.8, 0.2, 0.2, 0.9]]])
    statistics.update(probs, torch.tensor([[5, 3, 3, 0]]), torch.ones(1, 4))
    overall = torch.logit(torch.tensor(0.4))
    plain = statistics.shifts()[0]
    assert float(plain[5]) == pytest.approx(float(torch.logit(torch.tensor(0.8)) - overall), abs=1e-5)
    assert float(plain[3]) == pytest.approx(float(torch.logit(torch.tensor(0.2)) - overall), abs=1e-5)
    weights = statistics.weights(2.0)
    assert float(weights[5]) == pytest.approx(1 / 3, abs=1e-5), "1 of 1 + 2"
    assert float(weights[3]) == pytest.approx(1 / 2, abs=1e-5), "2 of 2 + 2"
    assert float(weights[9]) == 0.0 and torch.equal(statistics.weights(0.0)[[3, 5, 9]], torch.tensor([1.0, 1.0, 0.0]))
    assert float(plain[0]) == 0.0 and float(plain[9]) == 0.0


def test_without_surface_ids_or_with_unknown_nothing_changes(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors=several(2))
    with torch.no_grad():
        model.gate_head.surface_log_odds[:, 1:] = torch.randn(2, NUM_SURFACE_CLASSES - 1)
    inputs = tokenize(model, SENTENCES)
    plain = model(**inputs)
    unknown = model(**inputs, surface_ids=torch.zeros_like(inputs["input_ids"]))
    assert torch.equal(plain.gate_probs, unknown.gate_probs)


def test_surface_view_shifts_the_logit_by_the_class(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"form_weight": 0.5}})
    with torch.no_grad():
        model.gate_head.surface_log_odds[0, 3] = 2.0
    inputs = tokenize(model, SENTENCES)
    content = inputs["attention_mask"].bool() & ~torch.isin(inputs["input_ids"], torch.tensor([0, 1, 3]))
    plain = torch.logit(model(**inputs).gate_probs[content])
    moved = torch.logit(model(**inputs, surface_ids=torch.full_like(inputs["input_ids"], 3)).gate_probs[content])
    assert torch.allclose(moved - plain, torch.ones_like(plain), atol=1e-3)
    wrong = torch.full_like(inputs["input_ids"], NUM_SURFACE_CLASSES)
    with pytest.raises(ValueError, match=r"surface_ids must lie in \[0, 10\]"):
        model(**inputs, surface_ids=wrong)


def test_one_pass_adaptation(make_model: Callable) -> None:
    model = make_model(form_shrinkage=1.0)
    texts = ["Marie Curie moved to Paris in 1891 .", "the museum in London opened"]
    batch = dict(model.tokenizer(texts, padding=True, return_offsets_mapping=True, return_tensors="pt"))
    batch["surface_ids"] = surface_batch(texts, batch.pop("offset_mapping"))
    log_odds = model.adapt_surface([batch])
    assert torch.equal(model.gate_head.surface_log_odds, log_odds)
    assert float(log_odds[0, 3]) != 0 and float(log_odds[0, 0]) == 0
    # Half of the way that is left, and half again: shrunk to the old values, not to zero.
    again = model.adapt_surface([batch])
    counts = torch.bincount(batch["surface_ids"].flatten(), minlength=NUM_SURFACE_CLASSES)[3]
    goal = float(log_odds[0, 3]) * (1 + 1 / float(counts))
    assert float(again[0, 3]) == pytest.approx(goal + (float(log_odds[0, 3]) - goal) / (1 + float(counts)), abs=1e-4)
    with pytest.raises(ValueError, match="no content token"):
        model.adapt_surface([])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4,500", ["4,500"]),
        ("1,234,567.89 $4,500.", ["1,234,567.89", "4,500"]),
        ("12,34 and 1,2345", ["12", "34", "and", "1", "2345"]),
        ("a,500 4,5000", ["a", "500", "4", "5000"]),
    ],
)
def test_a_comma_of_thousands_belongs_to_its_number(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in find_words(text)] == words


def test_function_words() -> None:
    yes = ["the", "The", "of", "don't", "don’t", "I", "'s", "’s", "Whom", "ourselves"]
    no = ["US", "IT", "WHO", "paris", "run", "", "B", "theory", "new"]
    assert [word for word in [*yes, *no] if ENGLISH.is_function_word(word)] == yes


def test_tokens_that_go_on_with_a_word() -> None:
    text = "Visit São-Paulo's U.S. 4,500"
    offsets = [(0, 0), (0, 5), (6, 9), (9, 10), (10, 15), (15, 16), (16, 17), (18, 19), (19, 20), (20, 21), (21, 22)]
    offsets += [(23, 24), (24, 25), (25, 28), (0, 0)]
    found = continues_batch([text, ""], [offsets, [(0, 0)] * len(offsets)])
    assert found.dtype == torch.long and not found[1].any()
    pieces = [text[start:end] for start, end in offsets]
    goes_on = [piece for piece, value in zip(pieces, found[0].tolist(), strict=True) if value]
    # The full stop at the end of U.S. is no part of it, as everywhere.
    assert goes_on == ["-", "Paulo", "s", ".", "S", ",", "500"]


def test_a_token_over_several_words_is_of_the_first() -> None:
    offsets = [(0, 1), (1, 4), (4, 5)]  # a|b c|d: the middle token ends one word and starts the next
    assert continues_batch(["ab cd"], [offsets]).tolist() == [[0, 1, 0]]


def test_long_words_are_not_kept_in_memory() -> None:
    """30 requests of long words made 650 MB of it: what is remembered is bounded by its bytes."""
    tracemalloc.start()
    try:
        for number in range(2000):
            word_class(f"{number:06d}" + "x" * 20_000)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
        for number in range(1 << 17):
            word_class(f"{number:06d}" + "\U0001f600" * (LONGEST_REMEMBERED - 6))
        assert tracemalloc.get_traced_memory()[0] < 40_000_000
    finally:
        tracemalloc.stop()
    assert word_class("x" * 100) == word_class("x") and word_class("Xx" * 100, True) == word_class("Xx", True)


def test_an_address_is_one_word() -> None:
    text = "Mail 联系john.smith@example.co.uk, or a@b, or @ana."
    assert [text[start:end] for start, end in find_words(text)][3:] == [
        "john.smith@example.co.uk",
        "or",
        "a",
        "@b",
        "or",
        "@ana",
    ]


def test_capitals_of_titles_and_shouted_texts_say_nothing_of_names() -> None:
    model = load_released()[0]
    texts = ["How To Fix A Leaking Tap In Five Easy Steps", "THE QUICK BROWN FOX JUMPED OVER BARACK OBAMA"]
    for view in (True, False):
        records = model.gate_records(texts, selector="entities", use_surface=view)
        assert not records[0]["spans"] and "OVER" not in [word["word"] for word in records[1]["words"] if word["selected"]]
    met = model.gate_records(["Barack Obama met Angela Merkel in Berlin."], selector="entities")[0]
    assert [span["text"] for span in met["spans"]] == ["Barack Obama", "Angela Merkel", "Berlin"]
