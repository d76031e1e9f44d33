"""Texts to records: words and their gates, rates, spans, independence of the batch; windows over long texts."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardkuma import HardKumaModel, highlight, load_released
from hardkuma.configuration_hardkuma import SelectorConfig
from hardkuma.gate_head_hardkuma import count_at_rate
from hardkuma.scoring_hardkuma import (
    AGGREGATES,
    Record,
    ScoredText,
    Windows,
    WordTokens,
    gate_records,
    join_records,
    score_texts,
    split_record,
    window_overlap,
)
from hardkuma.words_hardkuma import WordIndex, find_words
from tests.conftest import SENTENCES, WORDS, several


def test_words_have_the_largest_probability_of_their_tokens(minilm: HardKumaModel) -> None:
    text = "Marie Skłodowska-Curie moved, unexpectedly, to Paris 🙂."
    inputs = minilm.tokenizer([text], return_offsets_mapping=True, return_tensors="pt")
    offsets = inputs.pop("offset_mapping")[0].tolist()
    probs = minilm(**inputs).gate_probs[0]
    words = gate_records(minilm, [text])[0]["words"]
    assert len(words) == 7
    for word in words:
        inside = [
            float(p)
            for p, (s, e) in zip(probs.detach(), offsets, strict=True)
            if s < word["end"] and e > word["start"] and e > s
        ]
        assert word["probability"] == pytest.approx(max(inside), abs=1e-6)
        assert word["selected"] == (word["probability"] > 0.5)


def test_long_texts_run_in_windows_and_nothing_is_cut(make_model: Callable) -> None:
    model = make_model()
    text = " ".join(SENTENCES * 6)
    words = gate_records(model, [text])[0]["words"]
    assert [(w["start"], w["end"]) for w in words] == find_words(text)
    assert len(words) > 3 * 40 and all(0 < word["probability"] < 1 for word in words)


@pytest.mark.parametrize("family", ["bert", "hardkuma_static"])
def test_words_in_overlapping_windows_against_a_loop(family: str, make_model: Callable) -> None:
    """A word takes its value from the window in which it stands furthest from an edge; ties take the largest."""
    model = make_model(family)
    # A word of 60 tokens is longer than a window.
    text = " ".join(SENTENCES * 3) + " " + "paris-" * 30 + "london and " + " ".join(SENTENCES)
    encoded = model.tokenizer(
        [text], truncation=True, max_length=40, stride=10, return_overflowing_tokens=True, return_offsets_mapping=True
    )
    assert len(encoded["input_ids"]) > 3
    best: dict[tuple[int, int], tuple[int, float]] = {}
    for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        probs = model(torch.tensor([ids])).gate_probs[0].tolist()
        for span in find_words(text):
            places = [i for i, (s, e) in enumerate(offsets) if s < span[1] and e > span[0] and e > s]
            if places:
                margin = min(min(i, len(ids) - 1 - i) for i in places)
                best[span] = max(best.get(span, (-1, 0.0)), (margin, max(probs[i] for i in places)))
    scored = score_texts(model, [text])[0]
    assert scored.windows == len(encoded["input_ids"]) and scored.words == find_words(text)
    assert scored.probabilities == pytest.approx([best[span][1] for span in scored.words], abs=1e-5)


def test_a_token_over_several_words_counts_for_each(make_model: Callable) -> None:
    model, text = make_model(), "marie curie moved"
    pieces = [(0, 2), (2, 5), (6, 8), (8, 11), (12, 17)]
    whole, split = (score_texts(model, [text], words=[spans])[0].probabilities for spans in (find_words(text), pieces))
    assert split == [whole[0], whole[0], whole[1], whole[1], whole[2]]
    assert score_texts(model, [text], words=[[(5, 6)]])[0].probabilities == [0.0], "no token touches the space"


def test_order_batch_and_company_do_not_matter(make_model: Callable) -> None:
    model = make_model()
    texts = ["", "paris", *SENTENCES, "!!!", " ".join(SENTENCES * 3)]
    together = [record["words"] for record in gate_records(model, texts, batch_size=3)]
    for text, words in zip(texts, together, strict=True):
        alone = gate_records(model, [text])[0]["words"]
        assert [(w["start"], w["end"], w["selected"]) for w in words] == [
            (w["start"], w["end"], w["selected"]) for w in alone
        ]
        assert all(abs(a["probability"] - b["probability"]) < 1e-5 for a, b in zip(words, alone, strict=True))
    assert together[0] == [] and together[len(texts) - 2] == []


def test_one_model_in_many_threads(make_two: Callable) -> None:
    words = random.Random(0)
    texts = [" ".join(words.sample(WORDS, 8)) for _ in range(64)]
    expected = gate_records(make_two(), texts)
    for _ in range(2):
        model, start = make_two(), threading.Barrier(8)

        def run(number: int, model: HardKumaModel = model, start: threading.Barrier = start) -> list[Record]:
            start.wait()
            return [gate_records(model, [text])[0] for text in texts[number::8]]

        with ThreadPoolExecutor(8) as threads:
            for number, records in enumerate(threads.map(run, range(8))):
                for found, wanted in zip(records, expected[number::8], strict=True):
                    assert [word["selected"] for word in found["words"]] == [word["selected"] for word in wanted["words"]]
                    probabilities = [word["probability"] for word in wanted["words"]]
                    assert [word["probability"] for word in found["words"]] == pytest.approx(probabilities, abs=1e-4)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 1.0])
def test_rate_selects_the_most_probable(rate: float, make_model: Callable) -> None:
    words = gate_records(make_model(), ["marie curie moved to paris in 1891 and the museum opened"], rate=rate)[0]["words"]
    chosen = [w["probability"] for w in words if w["selected"]]
    assert len(chosen) == math.ceil(rate * len(words))
    assert min(chosen) >= max([w["probability"] for w in words if not w["selected"]], default=0.0)


def test_surface_view_is_applied_from_the_text(make_model: Callable) -> None:
    model = make_model()
    with torch.no_grad():
        model.gate_head.surface_log_odds[0, 5] = 3.0  # capital inside a sentence
    text = "he moved to Paris and paris"
    shifted, plain = (gate_records(model, [text], use_surface=flag)[0]["words"] for flag in (True, False))
    moved = {
        text[a["start"] : a["end"]]
        for a, b in zip(shifted, plain, strict=True)
        if abs(a["probability"] - b["probability"]) > 1e-4
    }
    assert moved == {"Paris"}


def test_static_encoder_and_empty_texts(make_model: Callable) -> None:
    model = make_model("hardkuma_static")
    assert [record["words"] for record in gate_records(model, ["", ""])] == [[], []]
    assert len(gate_records(model, ["", "paris"])[1]["words"]) == 1
    assert score_texts(model, []) == []


def test_bad_arguments(make_model: Callable) -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"wrap it: \[text\]"):
        gate_records(model, "paris")
    with pytest.raises(ValueError, match=r"got a float: nan"):
        model.highlight(float("nan"))
    with pytest.raises(ValueError, match=r"number 1 is a float: nan\. An empty cell\? Give '' instead"):
        gate_records(model, ["paris", float("nan")])
    with pytest.raises(ValueError, match="got a DataFrame; give one of its columns"):
        gate_records(model, pandas.DataFrame({"text": ["paris"]}))
    with pytest.raises(ValueError, match=r"rate must be a fraction in \(0, 1\], got 20"):
        gate_records(model, ["paris"], rate=20)
    with pytest.raises(ValueError, match="no selector 'entities': this model has 'meaning'"):
        gate_records(model, ["paris"], selector="entities")
    with pytest.raises(ValueError, match="no selector 0: this model has 'meaning'"):
        gate_records(model, ["paris"], selector=0)
    with pytest.raises(ValueError, match="training mode"):
        gate_records(model.train(), ["paris"])


TEXTS = [
    "Marie Curie moved to Paris in 1891.",
    "cafe\u0301 I ❤️ 👨\u200d👩\u200d👧 🇫🇷 in दिल्ली, 東京タワー",
    "القاهرة می\u200cخواهم\tтест\r\nNew\nYork",
    "",
    "  …  ",
    "a" * 3000,
    "half \ud83d of a pair \x00",
]


def test_records_are_plain_json_with_true_offsets(minilm: HardKumaModel) -> None:
    texts = [*TEXTS, "The annual report was not approved by Ana. " * 60]
    records = gate_records(minilm, texts, rate=0.3)
    assert json.loads(json.dumps(records, allow_nan=False)) == records
    for text, record in zip(texts, records, strict=True):
        said = [*([] if record["spans"] else ["reason"]), *(["note"] if "note" in record else [])]
        assert list(record) == ["text", "words", "spans", "rate", "windows", *said] and record["text"] == text
        assert [(word["start"], word["end"]) for word in record["words"]] == find_words(text)
        for word in record["words"]:
            assert word["word"] == text[word["start"] : word["end"]]
            assert type(word["probability"]) is float and type(word["selected"]) is bool
            assert 0 <= word["probability"] <= 1
        for span in record["spans"]:
            inside = [w for w in record["words"] if span["start"] <= w["start"] and w["end"] <= span["end"]]
            assert span["text"] == text[span["start"] : span["end"]] and all(word["selected"] for word in inside)
            assert span["probability"] == max(word["probability"] for word in inside)
        chosen = [word["selected"] for word in record["words"]]
        assert record["rate"] == (sum(chosen) / len(chosen) if chosen else 0.0)
        assert all(
            any(s["start"] <= w["start"] < s["end"] for s in record["spans"]) == w["selected"] for w in record["words"]
        )
    assert [record["windows"] for record in records[:5]] == [1] * 5 and records[-1]["windows"] > 1
    assert records[3]["words"] == [] and records[3]["rate"] == 0.0


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Marie Curie", ["Marie Curie"]),
        ("Simon & Garfunkel", ["Simon & Garfunkel"]),
        ("J. K. Rowling", ["J. K. Rowling"]),
        ("Austro–Hungarian", ["Austro–Hungarian"]),
        ("won. Then", ["won", "Then"]),
        ("Paris, Rome", ["Paris", "Rome"]),
        ("Paris - Rome", ["Paris", "Rome"]),
        ("Paris\nRome", ["Paris", "Rome"]),
        ("🇫🇷🇩🇪", ["🇫🇷🇩🇪"]),
    ],
)
def test_what_joins_selected_words_to_a_span(text: str, spans: list[str]) -> None:
    words = find_words(text)
    scored = ScoredText(text, words, [0.6] * len(words), windows=1, threshold=0.5)
    assert [span["text"] for span in scored.select()["spans"]] == spans
    assert scored.select(threshold=0.7)["spans"] == []


def test_selecting_again_does_not_encode_again(make_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    scored = score_texts(model, SENTENCES)
    monkeypatch.setattr(model.encoder, "forward", None)
    for rate in (0.05, 0.2, 0.5):
        for item in scored:
            chosen = sum(word["selected"] for word in item.select(rate=rate)["words"])
            assert chosen == math.ceil(rate * len(item.words))
    nested = [{w["start"] for w in scored[4].select(rate=rate)["words"] if w["selected"]} for rate in (0.1, 0.3, 0.6, 1.0)]
    assert all(small < large for small, large in pairwise(nested)), "a larger rate only adds words"


def test_left_padding_and_chunks_change_nothing(make_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    plain = score_texts(model, SENTENCES)
    model.tokenizer.padding_side = "left"
    monkeypatch.setattr("hardkuma.scoring_hardkuma.BATCHES_PER_CHUNK", 1)
    for other, item in zip(score_texts(model, SENTENCES, batch_size=2), plain, strict=True):
        assert other.text == item.text and other.probabilities == pytest.approx(item.probabilities, abs=1e-5)


def test_every_selector_has_its_own_words(make_model: Callable) -> None:
    model = make_model(selectors=several(2))
    probs = model(**model.tokenizer([SENTENCES[5]], return_tensors="pt")).gate_probs[0, :, 1:-1]
    for k, name in enumerate(("selector_0", "selector_1")):
        found = score_texts(model, [SENTENCES[5]], selector=name)[0].probabilities
        assert found == pytest.approx(probs[k].tolist(), abs=1e-6)


def test_bad_texts_words_and_selections(make_model: Callable) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="number 1 is a NoneType: None"):
        gate_records(model, ["paris", None])
    with pytest.raises(ValueError, match=r"give one of rate, threshold and keep; got rate=0.2 and threshold=0.5"):
        gate_records(model, ["paris"], rate=0.2, threshold=0.5)
    with pytest.raises(ValueError, match=r"threshold must be a probability in \[0, 1\], got nan"):
        gate_records(model, ["paris"], threshold=math.nan)
    with pytest.raises(ValueError, match="batch_size must be a whole number >= 1, got 0"):
        gate_records(model, ["paris"], batch_size=0)
    with pytest.raises(ValueError, match=r"word \(2, 9\) of a text of 5 characters"):
        score_texts(model, ["paris"], words=[[(2, 9)]])
    with pytest.raises(ValueError, match="one list for each of the 1 texts, got 0"):
        score_texts(model, ["paris"], words=[])


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.45, 0.5, 0.75, 0.99, 1.0])
def test_one_rule_for_rates(rate: float, unit: str) -> None:
    """Rounded up, so that there is at least one."""
    for number in range(1, 60):
        count, values = math.ceil(round(rate * number, 6)), torch.rand(number)
        scored = scored_text("x " * number, values.tolist(), unit)
        assert count_at_rate(number, rate) == sum(scored.decide(rate=rate)) == count
    assert count_at_rate(0, rate) == 0 and scored_text("", [], unit).decide(rate=rate) == []


@pytest.mark.parametrize(("rate", "number", "count"), [(0.1, 30, 3), (0.07, 100, 7), (0.29, 100, 29), (0.7, 10, 7)])
def test_a_whole_number_but_for_rounding_is_not_rounded_up(rate: float, number: int, count: int) -> None:
    assert sum(scored_text("x " * number, [0.5] * number, "word").decide(rate=rate)) == count


# ---- gates of words and names -------------------------------------------------------------------------------------------


def scored_text(text: str, probabilities: list[float], unit: str) -> ScoredText:
    return ScoredText(text, find_words(text), probabilities, windows=1, threshold=0.5, selector=SelectorConfig(unit=unit))


def chosen_words(scored: ScoredText, **options: float) -> list[str]:
    return [word["word"] for word in scored.select(**options)["words"] if word["selected"]]


@pytest.mark.parametrize(
    ("text", "values", "names"),
    [
        # Neighbours join where one of two passes the threshold and both have .7 of it.
        ("New York city", [0.36, 0.9, 0.34], ["New York", "city"]),
        ("New York city", [0.3, 0.4, 0.2], ["New", "York", "city"]),
        # One or two links between them join too, however improbable, but not three, nor a link at the end, nor "of the".
        ("the Museum of Modern Art", [0.1, 0.7, 0.1, 0.6, 0.7], ["the", "Museum of Modern Art"]),
        ("Bank of America of late", [0.7, 0.6, 0.9, 0.4, 0.1], ["Bank of America", "of", "late"]),
        ("Maria de la van Isla", [0.9, 0.1, 0.1, 0.1, 0.9], ["Maria", "de", "la", "van", "Isla"]),
        ("Ana of the Red Cross", [0.9, 0.1, 0.1, 0.9, 0.9], ["Ana", "of", "the", "Red Cross"]),
        # A word that is spelled like a link and passes the threshold is a part of the name.
        ("to los angeles", [0.1, 0.9, 0.9], ["to", "los angeles"]),
        ("in las vegas de noche", [0.1, 0.9, 0.9, 0.3, 0.1], ["in", "las vegas", "de", "noche"]),
        ("Bank of, America", [0.9, 0.1, 0.9], ["Bank", "of", "America"]),
        ("Oslo and Rome", [0.9, 0.6, 0.1], ["Oslo and", "Rome"]),
        ("Oslo and Rome", [0.9, 0.1, 0.9], ["Oslo", "and", "Rome"]),
        # Titles have a full stop, as initials have; the last word of a sentence has one too.
        ("Dr. Smith in St. Petersburg", [0.6, 0.9, 0.1, 0.5, 0.9], ["Dr Smith", "in", "St Petersburg"]),
        ("Tom. Mary", [0.9, 0.9], ["Tom", "Mary"]),
    ],
)
def test_words_of_a_name(text: str, values: list[float], names: list[str]) -> None:
    """By the threshold a name is selected whole if one of its words passes; at a small rate the best one, whole."""
    scored, position, passing, best = scored_text(text, values, "name"), 0, [], (0.0, "")
    for name in names:
        own = values[position : position + len(name.split())]
        position += len(own)
        best = max(best, (max(own), name), key=lambda pair: pair[0])
        passing += name.split() if max(own) > 0.5 else []
    assert position == len(values)
    assert chosen_words(scored) == passing
    assert chosen_words(scored, rate=0.01) == (best[1].split() if best[0] > 0.5 else chosen_words(scored, rate=0.01))


def test_a_name_is_selected_whole_at_a_rate() -> None:
    text, values = "Marie Curie met Mies van der Rohe in Paris", [0.6, 0.95, 0.1, 0.55, 0.3, 0.3, 0.9, 0.05, 0.8]
    assert len(find_words(text)) == len(values) == 9
    name, token = scored_text(text, values, "name"), scored_text(text, values, "token")
    assert chosen_words(token, rate=0.1) == ["Curie"]
    assert chosen_words(name, rate=0.1) == ["Marie", "Curie"], "more than the rate, but whole"
    assert chosen_words(name, rate=0.22) == ["Marie", "Curie"]
    assert chosen_words(name, rate=0.33) == ["Marie", "Curie", "Mies", "van", "der", "Rohe"]
    assert chosen_words(token) == ["Marie", "Curie", "Mies", "Rohe", "Paris"]
    assert chosen_words(name) == ["Marie", "Curie", "Mies", "van", "der", "Rohe", "Paris"]
    assert chosen_words(name, threshold=0.85) == ["Marie", "Curie", "Mies", "van", "der", "Rohe"]
    assert chosen_words(name, rate=1.0) == [text[start:end] for start, end in name.words]


def test_punctuation_and_lines_part_names() -> None:
    for text in ("Rome, Paris", "Rome\nParis"):
        assert chosen_words(scored_text(text, [0.9, 0.8], "name"), rate=0.5) == ["Rome"]
    assert chosen_words(scored_text("J. Smith sang", [0.8, 0.9, 0.1], "name"), rate=0.3) == ["J", "Smith"]


@pytest.mark.parametrize(("unit", "first"), [("token", ["The"]), ("word", ["rain"]), ("name", ["rain"])])
def test_function_words_come_last(unit: str, first: list[str]) -> None:
    scored = scored_text("The rain of the US", [0.4, 0.2, 0.3, 0.3, 0.1], unit)
    assert chosen_words(scored, rate=0.2) == first
    if unit == "word":
        assert chosen_words(scored, rate=0.4) == ["rain", "US"] and chosen_words(scored, rate=0.6) == ["The", "rain", "US"]
    # One that passes the model's threshold is a word like others: a negation, say.
    passing = scored_text("No rain of the US", [0.9, 0.2, 0.3, 0.3, 0.1], unit)
    assert chosen_words(passing) == chosen_words(passing, rate=0.2) == ["No"]


def test_names_and_negations_of_the_released_head() -> None:
    model = load_released()[0]

    def spans(text: str, **options: Any) -> list[str]:
        return [span["text"] for span in model.gate_records([text], **options)[0]["spans"]]

    text = "i flew from new york to los angeles with delta"
    assert spans(text, selector="entities", rate=0.3) == ["new york", "los angeles"]
    text = "Dr. Sarah O'Neil of the University of Cambridge won the prize."
    for options in ({}, {"rate": 0.3}, {"rate": 0.5}):
        assert spans(text, selector="entities", **options)[:2] == ["Dr. Sarah O'Neil", "University of Cambridge"]
    text = "No evidence of metastatic disease was found."
    assert spans(text, rate=0.2) == ["No", "metastatic"] and spans(text) == ["No evidence of metastatic disease"]


@pytest.mark.parametrize("unit", ["token", "word", "name"])
def test_a_text_of_function_words_has_no_answer_and_a_reason(unit: str) -> None:
    scored = scored_text("It is what it is.", [0.1, 0.9, 0.2, 0.1, 0.8], unit)
    record = scored.select()
    if unit != "word":  # a name may be made of them: The Who
        assert chosen_words(scored) == ["is", "is"] and "reason" not in record
        return
    assert record["spans"] == [] and record["reason"] == "the text has no content word" and record["rate"] == 0.0
    # Who asks for a rate or a threshold has it.
    assert chosen_words(scored, rate=0.2) == ["is"] and chosen_words(scored, threshold=0.15) == ["is", "what", "is"]
    assert scored.select(threshold=0.95)["reason"] == "no word is more probable than 0.95"
    assert scored_text("It is rain.", [0.1, 0.9, 0.2], unit).select()["spans"], "one other word is enough"


def test_every_sentence_has_a_word_that_carries_it() -> None:
    text, values = "The rain fell", [0.3, 0.1, 0.2]
    assert chosen_words(scored_text(text, values, "word")) == ["fell"], "and no function word"
    for unit in ("token", "name"):
        assert chosen_words(scored_text(text, values, unit)) == []
    assert chosen_words(scored_text(text, values, "word"), threshold=0.5) == [], "a threshold that is asked for holds"
    assert chosen_words(scored_text("…", [], "word")) == []


@pytest.mark.parametrize("unit", ["token", "word", "name"])
def test_a_record_says_why_nothing_is_selected(unit: str) -> None:
    nothing = scored_text("… !", [], unit).select()
    assert nothing["words"] == nothing["spans"] == [] and nothing["reason"] == "the text has no word"
    assert scored_text("… !", [], unit).select(rate=0.5)["reason"] == "the text has no word"
    assert scored_text("rain", [0.3], unit).select(threshold=0.35)["reason"] == "no word is more probable than 0.35"
    assert "reason" not in scored_text("rain", [0.9], unit).select()
    assert ("reason" in scored_text("rain", [0.3], unit).select()) == (unit != "word")


def test_records_of_a_model_of_words(make_two: Callable) -> None:
    model = make_two()
    text = "marie curie moved to paris in 1891 ."
    for name, unit in (("meaning", "word"), ("entities", "name")):
        scored = score_texts(model, [text, ""], selector=name)
        assert [item.selector.unit for item in scored] == [unit, unit]
        # The words are those of the text, whatever the vocabulary says: curie is a word of its own here.
        inputs = model.tokenizer([text], return_tensors="pt")
        expected = model(**inputs, continues=torch.zeros_like(inputs["input_ids"]), selector=name).gate_probs[0, 1:-2]
        assert scored[0].probabilities == pytest.approx(expected.tolist(), abs=1e-6)
    assert score_texts(model, [text])[0].selector.unit == "word"
    # Words that are given count instead.
    given = score_texts(model, [text], words=[[(0, 11), (12, 17)]])[0].probabilities
    inputs = model.tokenizer([text], return_tensors="pt")
    continues = torch.zeros_like(inputs["input_ids"])
    continues[0, 2] = 1
    expected = model(**inputs, continues=continues, selector="meaning").gate_probs[0, [1, 3]]
    assert given == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_number_with_thousands_is_one_word(minilm: HardKumaModel) -> None:
    record = gate_records(minilm, ["It cost $4,500 in 1,2."])[0]
    assert [word["word"] for word in record["words"]] == ["It", "cost", "4,500", "in", "1", "2"]


def test_records_of_several_selectors_part_again_with_their_reasons() -> None:
    words = [(0, 3), (4, 7)]
    rows = {"none": [0.1, 0.2], "one": [0.9, 0.1]}
    records = {name: ScoredText("Bob ran", words, row, 1, 0.5).select() for name, row in rows.items()}
    parts = split_record(join_records(records))
    assert parts["one"] == records["one"] and "reason" not in parts["one"]
    assert parts["none"] == records["none"] | {"reason": "no word is more probable than the threshold"}
    for text, spans in (("Bob ran", words), ("...", [])):
        record = ScoredText(text, spans, [0.1] * len(spans), 1, 0.5).select()
        assert split_record(join_records({"a": record, "b": record})) == {"a": record, "b": record}


# ---- windows over long texts, against loops that spell the rules out ---------------------------------------------------

LENGTH = 12  # characters of a text


@st.composite
def word_spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Words of a text: in order, not empty, not overlapping, with or without gaps."""
    edges = sorted(draw(st.sets(st.integers(0, LENGTH), max_size=8)))
    return [span for span in pairwise(edges) if draw(st.booleans())]


@st.composite
def token_spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Tokens of a window: empty ones, ones over several words, ones that share their characters (bytes of an emoji)."""
    spans = draw(st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, 5)), max_size=7))
    return [(start, min(start + size, LENGTH)) for start, size in sorted(spans)]


def touch(token: tuple[int, int], word: tuple[int, int]) -> bool:
    return bool(set(range(*token)) & set(range(*word)))


def make_windows(rows: list[tuple[int, list[tuple[int, int]]]]) -> Windows:
    flat = torch.tensor([span for _, row in rows for span in row], dtype=torch.long).view(-1, 2)
    owners = torch.tensor([owner for owner, _ in rows], dtype=torch.long)
    lengths = torch.tensor([len(row) for _, row in rows], dtype=torch.long)
    return Windows(owners, lengths, flat[:, 0], flat[:, 1], {})


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(word_spans(), min_size=1, max_size=3), data=st.data())
def test_tokens_find_the_words_that_they_touch(texts: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    index = WordIndex(texts, [LENGTH] * len(texts))
    owner, tokens = data.draw(st.integers(0, len(texts) - 1)), data.draw(token_spans())
    starts, ends = torch.tensor(tokens, dtype=torch.long).view(-1, 2).T
    first, count = index.touched(torch.tensor([owner]), starts[None], ends[None])
    for token, word, number in zip(tokens, first[0].tolist(), count[0].tolist(), strict=True):
        found = list(range(word, word + number))
        assert found == [index.firsts[owner] + i for i, span in enumerate(texts[owner]) if touch(token, span)]


COMBINE: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "first": lambda values: values[0],
}


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(word_spans(), min_size=1, max_size=3), data=st.data())
def test_words_take_the_window_in_which_they_stand_furthest_from_an_edge(
    texts: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    owners = st.integers(0, len(texts) - 1)
    rows = data.draw(st.lists(st.tuples(owners, token_spans()), max_size=5))
    windows = make_windows(rows)
    numbers = torch.arange(len(windows.starts)).float()
    # Some order of values that has nothing to do with the places.
    values = (numbers * 7 + 3) % 11 / 11
    tokens = WordTokens(windows, WordIndex(texts, [LENGTH] * len(texts)))
    firsts = windows.firsts.tolist()
    for how in AGGREGATES:
        expected = []
        for owner, words in enumerate(texts):
            for word in words:
                best: tuple[int, float] = (-1, 0.0)
                for row, (own, spans) in enumerate(rows):
                    places = [i for i, span in enumerate(spans) if own == owner and touch(span, word)]
                    if places:
                        margin = min(min(i, len(spans) - 1 - i) for i in places)
                        best = max(best, (margin, COMBINE[how]([float(values[firsts[row] + i]) for i in places])))
                expected.append(best[1])
        assert tokens.values(values, how).tolist() == pytest.approx(expected, abs=1e-6), how


def test_windows_hold_every_token_and_overlap_by_a_quarter(make_model: Callable) -> None:
    model = make_model()
    texts = ["", " ".join(SENTENCES * 5), "paris"]
    length = model.max_length
    assert (length, window_overlap(length)) == (40, 10)
    windows = Windows.cut(model.tokenizer, texts, length)
    ids = [row.tolist() for row in windows.inputs["input_ids"].split(windows.lengths.tolist())]
    assert [len(row) for row in ids] == windows.lengths.tolist() and max(len(row) for row in ids) == length
    for number, text in enumerate(texts):
        rows = [row[1:-1] for row, owner in zip(ids, windows.owners.tolist(), strict=True) if owner == number]
        assert len(rows) == 1 or (number == 1 and len(rows) > 2)
        whole = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [token for i, row in enumerate(rows) for token in (row if i == 0 else row[10:])] == whole
        assert all(before[-10:] == row[:10] for before, row in pairwise(rows))


def test_batches_hold_every_window_once_and_pad_with_nothing(make_model: Callable) -> None:
    model = make_model()
    windows = Windows.cut(model.tokenizer, [*SENTENCES, ""], 40)
    seen: list[int] = []
    for tokens, inside in windows.batches(3):
        rows = windows.numbers[tokens[:, 0]]
        assert len(rows) <= 3 and tokens.shape == inside.shape == (len(rows), int(windows.lengths[rows].max()))
        assert (windows.numbers[tokens] == rows[:, None])[inside].all()
        seen += tokens[inside].tolist()
    assert sorted(seen) == list(range(len(windows.starts)))


def test_highlights_show_themselves(minilm: HardKumaModel, tmp_path: Path) -> None:
    shown = minilm.highlight("Is <b>raw</b> fish [safe]?", rate=0.5)
    assert shown == highlight("Is <b>raw</b> fish [safe]?", minilm, rate=0.5)
    assert "&lt;b&gt;" not in str(shown) and r"\[" in str(shown) and "[" in str(shown)
    html = shown.to_html()
    assert html == shown._repr_html_()
    assert "<b>" not in html and "&lt;" in html and "border-bottom" in html
    shown.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and html in page
    for name in ("page.pdf", "page"):
        with pytest.raises(ValueError, match=f"not as '{name}'; give a name that ends in .html"):
            shown.save(tmp_path / name)
        assert not (tmp_path / name).exists()
    shown.save(str(tmp_path / "PAGE.HTM"))


def test_an_unknown_option_is_answered_by_the_name_of_what_was_called(minilm: HardKumaModel) -> None:
    for call, name in (
        (minilm.highlight, "highlight"),
        (minilm.gate_records, "gate_records"),
        (minilm.faithfulness, "faithfulness"),
        (partial(gate_records, minilm), "gate_records"),
    ):
        for wrong, near in (
            ("ratio", "rate"),
            ("threshhold", "threshold"),
            ("selectors", "selector"),
            ("keep_meaning", "keep"),
        ):
            with pytest.raises(TypeError, match=rf"^{name}\(\) has no option '{wrong}'; did you mean {near}\?$"):
                call(["Rain."], **{wrong: 0.2})
    with pytest.raises(TypeError, match=r"^highlight\(\) has no option 'xy'; it has: rate, threshold, keep, phrases, "):
        highlight("Rain.", minilm, xy=1)
