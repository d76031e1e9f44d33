"""The decision against a loop that reads like its description; what like words share; cases that people have judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardkuma import HardKumaModel, load_released
from hardkuma.configuration_hardkuma import SelectorConfig
from hardkuma.decision_hardkuma import WordRows, count_at_rate, decide, share_gates
from hardkuma.words_hardkuma import FUNCTION, LINK, NEGATION
from tests.conftest import SENTENCES

THRESHOLD = 0.5
Word = tuple[float, float, int, bool]  # probability, weight, role, whether it joins the word before


def rows(words: list[Word], padding: int = 0) -> WordRows:
    """One row of words, with so many empty places behind it."""
    probs, weights, roles, joins = zip(*[*words, *[(0.0, 0.0, 0, False)] * padding], strict=True)
    among = [True] * len(words) + [False] * padding
    tensors = [torch.tensor([values]) for values in (probs, weights, among, roles, joins)]
    return WordRows(*tensors)


def select(words: list[Word], selector: SelectorConfig, padding: int = 0, **options: Any) -> list[int]:
    found = decide(rows(words, padding), selector, THRESHOLD, **options)[0]
    return found.nonzero().flatten().tolist()


# ---- the rule, as a loop -------------------------------------------------------------------------------------------------


def with_links(members: set[int], words: list[Word]) -> set[int]:
    links = set()
    for first in sorted(members):
        for gap in (1, 2):
            between = list(range(first + 1, first + 1 + gap))
            after = first + gap + 1
            if after in members and all(i < len(words) and words[i][2] == LINK and i not in members for i in between):
                links |= set(between) if all(words[i][3] for i in [*between, after]) else set()
    return members | links


def runs_of(members: set[int], words: list[Word]) -> list[list[int]]:
    runs: list[list[int]] = []
    for i in sorted(members):
        if runs and runs[-1][-1] == i - 1 and words[i][3]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def expected(words: list[Word], selector: SelectorConfig, rate: float | None, threshold: float | None) -> list[int]:
    everything = range(len(words))
    of_words = selector.unit in ("word", "name")
    content = [i for i in everything if not of_words or words[i][2] == 0 or words[i][0] > THRESHOLD]
    ranked = sorted(everything, key=lambda i: (i not in content, -words[i][0]))
    if selector.unit == "name":
        likely = {i for i in content if words[i][0] > THRESHOLD / 2}
        runs = [run for run in runs_of(with_links(likely, words), words) if any(words[i][0] > THRESHOLD for i in run)]
        if rate is None:
            bar = THRESHOLD if threshold is None else threshold
            chosen = {i for i in everything if words[i][0] > bar}
            return sorted(chosen | {i for run in runs if set(run) & chosen for i in run})
        inside = {i: run for run in runs for i in run}
        best = {id(run): min(ranked.index(i) for i in run) for run in runs}
        count, chosen = count_at_rate(len(words), rate), set()
        for i in sorted(everything, key=lambda i: best[id(inside[i])] if i in inside else ranked.index(i)):
            if i not in chosen and len(chosen) < count:
                chosen |= set(inside.get(i, [i]))
        return sorted(chosen)
    if rate is not None:
        return sorted(ranked[: count_at_rate(len(words), rate)])
    if threshold is not None:
        return [i for i in everything if words[i][0] > threshold]
    if selector.unit == "word" and all(word[2] for word in words):
        return []
    if selector.share is None:
        chosen = {i for i in everything if words[i][0] > THRESHOLD}
        return sorted(chosen or (set(ranked[:1]) if selector.unit == "word" else set()))
    chosen, held = set(), 0.0
    total, least = sum(words[i][0] for i in content), max(2, count_at_rate(len(words), selector.least_rate))
    for i in sorted(content, key=lambda i: -words[i][0]):
        if held < selector.share * (1 - 1e-6) * total or len(chosen) < least:
            chosen.add(i)
        held += words[i][0]
    likely = chosen | {i for i in content if words[i][1] >= selector.phrase_gate}
    chosen |= {i for run in runs_of(with_links(likely, words), words) if set(run) & chosen for i in run}
    added = set()
    for i in everything:
        if words[i][2] == NEGATION and i not in chosen:
            for distance in (1, 2, 3):
                if i + distance in chosen and all(words[j][3] for j in range(i + 1, i + distance + 1)):
                    added |= set(range(i, i + distance))
                    break
    return sorted(chosen | added)


VALUES = st.sampled_from([0.0, 0.1, 0.2, 0.26, 0.3, 0.5, 0.6, 0.9])
WORDS = st.lists(
    st.tuples(VALUES, VALUES, st.sampled_from([0, 0, 0, FUNCTION, LINK, NEGATION]), st.booleans()), min_size=1, max_size=9
)


@settings(deadline=None, max_examples=600, derandomize=True)
@given(
    words=WORDS,
    unit=st.sampled_from(["word", "name", "token", "part"]),
    share=st.sampled_from([None, 0.3, 0.5, 1.0]),
    options=st.sampled_from([{}, {"rate": 0.2}, {"rate": 0.5}, {"rate": 1.0}, {"threshold": 0.1}, {"threshold": 0.55}]),
    padding=st.integers(0, 3),
)
def test_the_rule_is_that_of_a_loop(
    words: list[Word], unit: str, share: float | None, options: dict[str, float], padding: int
) -> None:
    # Sums of like numbers in another order may differ by rounding; a tenth of a thousandth apart they do not.
    words = [(p + i * 1e-4, w, role, joins) for i, (p, w, role, joins) in enumerate(words)]
    selector = SelectorConfig(unit=unit, share=share if unit == "word" else None)
    found = select(words, selector, padding, **options)
    assert found == expected(words, selector, options.get("rate"), options.get("threshold"))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.13, 0.2, 0.29, 0.3, 0.35, 0.5, 0.95, 1.0])
def test_one_count_for_a_number_and_for_tensors(rate: float) -> None:
    numbers = torch.arange(0, 513)
    among = torch.arange(512) < numbers[:, None]
    probs, none = torch.rand(513, 512), torch.zeros(513, 512, dtype=torch.long)
    words = WordRows(probs, probs, among, none, among)
    chosen = decide(words, SelectorConfig(), THRESHOLD, rate).sum(-1).tolist()
    assert chosen == [count_at_rate(number, rate) for number in numbers.tolist()]
    assert chosen == [math.ceil(round(rate * number, 6)) for number in numbers.tolist()]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, 20, float("nan")])
def test_a_rate_is_a_fraction(rate: float) -> None:
    with pytest.raises(ValueError, match=rf"rate must be a fraction in \(0, 1\], got {rate}"):
        select([(0.5, 0.5, 0, False)], SelectorConfig(unit="word"), rate=rate)


def test_phrases_are_an_option_of_a_rate() -> None:
    words = [(0.9, 0.9, 0, False), (0.3, 0.3, 0, True), (0.1, 0.1, 0, True), (0.8, 0.8, 0, True)]
    selector = SelectorConfig(unit="word", share=0.5)
    assert select(words, selector, rate=0.25) == [0]
    assert select(words, selector, rate=0.25, phrases=True) == [0, 1]
    assert select(words, selector, threshold=0.85, phrases=True) == [0, 1]


# ---- what like words share -----------------------------------------------------------------------------------------------


def test_shared_gates_against_a_loop() -> None:
    torch.manual_seed(0)
    probs, among = torch.rand(2, 70), torch.rand(2, 70) > 0.1
    vectors = torch.nn.functional.normalize(torch.randn(2, 70, 4), dim=-1)
    found = share_gates(probs, vectors, among, 0.4)
    for row in range(2):
        top = sorted(range(70), key=lambda i: -float(probs[row, i] * among[row, i]))[:64]
        for w in range(70):
            like = {v: max(0.0, (float(vectors[row, w] @ vectors[row, v]) - 0.4) / 0.6) for v in top if v != w}
            shared = sum(float(probs[row, v] * among[row, v]) * min(value, 1.0) for v, value in like.items())
            assert float(found[row, w]) == pytest.approx(float(probs[row, w]) + shared * bool(among[row, w]), abs=1e-4)


def spans(text: str, model: HardKumaModel | None = None) -> list[str]:
    return [span["text"] for span in (model or load_released()[0]).gate_records([text])[0]["spans"]]


def test_words_that_stand_for_each_other_do_not_lose() -> None:
    """One of two like words would be enough, so each has half of the gate; together they are what the text is about."""
    text = "Bitcoin plunges 20% as China bans crypto mining"
    model = load_released()[0]
    assert {"Bitcoin", "crypto"} <= set(" ".join(spans(text, model)).split())
    model.config.selectors["meaning"].like_cosine = 0.999
    assert not {"Bitcoin", "crypto"} & set(" ".join(spans(text, model)).split()), "without what they share"


def test_negations_stay_with_what_they_deny() -> None:
    assert "not kill" in spans("He did not kill the bird.")
    assert spans("No evidence of metastatic disease was found.") == ["No evidence of metastatic disease"]
    assert spans("to be or not to be") == []


@torch.no_grad()
def test_tensors_and_texts_agree() -> None:
    """The same words by `forward` and by `gate_records`, where no text knows more than its tokens."""
    model, tokenizer = load_released()
    texts = [*SENTENCES, "the senate passed a sweeping climate bill", "he did not kill the bird", "it is what it is"]
    gates = model(**tokenizer(texts, padding=True, return_tensors="pt"), selector="meaning").gates
    for row, record in zip(gates, model.gate_records(texts), strict=True):
        encoded = tokenizer(record["text"], return_offsets_mapping=True)
        chosen = {i for i, word in enumerate(record["words"]) if word["selected"]}
        for gate, (start, end) in zip(row.tolist(), encoded["offset_mapping"], strict=False):
            touched = [i for i, word in enumerate(record["words"]) if start < end and word["start"] <= start < word["end"]]
            assert bool(gate) == bool(set(touched) & chosen), (record["text"], start, end)


def test_the_rule_does_not_depend_on_batch_mates(make_two: Callable) -> None:
    model = make_two(selectors={"meaning": {"share": 0.5, "unit": "word", "reads": ["state", "isolated"]}}).eval()
    model.build_isolated_table()
    together = model.gate_records(SENTENCES)
    assert [record["spans"] for record in together] != [[] for _ in SENTENCES]
    for text, record in zip(SENTENCES, together, strict=True):
        alone = model.gate_records([text])[0]
        assert [word["selected"] for word in record["words"]] == [word["selected"] for word in alone["words"]]
