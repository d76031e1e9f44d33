"""Faithfulness against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordScores
from hardkuma.evaluation.faithfulness import (
    faithfulness,
    top_words,
)
from tests.toy import toy_encoder, toy_transformer

WORDS = ["the", "of", "in", "was", "rain", "##y", "paris", "london", "museum", "river", "."]
TEXTS = ["the rainy museum of London .", "Paris", "in the river was the museum of the rainy river"]


@pytest.fixture
def encoder() -> SentenceEncoder:
    return toy_transformer(WORDS)


def scored(texts: list[str], seed: int = 0) -> list[WordScores]:
    return METHODS["random"].scores(None, texts, seed=seed)


@pytest.mark.parametrize("removal", ["mask", "text"])
def test_faithfulness_against_brute_force(encoder: SentenceEncoder, removal: str) -> None:
    rates = [0.2, 0.5]
    results = scored(TEXTS)
    found = faithfulness(encoder, results, rates, removal)
    for i, result in enumerate(results):
        whole = encoder.encode([result.text])[0]
        for j, rate in enumerate(rates):
            number = max(1, int(np.ceil(rate * len(result.words))))
            top = sorted(sorted(range(len(result.words)), key=lambda w: -result.scores[w])[:number])
            alone, without = _embed_by_hand(encoder, result, top, removal)
            expected = float(torch.cosine_similarity(alone, whole, dim=0))
            assert found.sufficiency[i, j] == pytest.approx(expected, abs=1e-5)
            expected = 1 - float(torch.cosine_similarity(without, whole, dim=0))
            assert found.comprehensiveness[i, j] == pytest.approx(expected, abs=1e-5)


def _embed_by_hand(encoder: SentenceEncoder, result: WordScores, top: list[int], removal: str) -> tuple:
    if removal == "text":
        forms = [result.text[start:end] for start, end in result.words]
        rest = [form for i, form in enumerate(forms) if i not in top]
        alone, without = " ".join(forms[i] for i in top), " ".join(rest) + result.text[result.words[-1][1] :]
        return tuple(encoder.encode([alone, without]))
    coded = encoder.tokenizer(result.text, return_offsets_mapping=True, return_tensors="pt")
    offsets = coded["offset_mapping"][0].tolist()
    vectors = []
    for alone in (True, False):
        mask = torch.zeros_like(coded["attention_mask"])
        for token, (start, end) in enumerate(offsets):
            chosen = any(start < result.words[w][1] and end > result.words[w][0] for w in top)
            mask[0, token] = 1 if start == end else int(chosen == alone)
        states = encoder.encoder(input_ids=coded["input_ids"], attention_mask=mask).last_hidden_state[0]
        vectors.append(states[mask[0].bool()].mean(0))
    return tuple(vectors)


def test_a_good_ranking_is_more_faithful_than_its_reverse() -> None:
    vectors = {f"w{i}": np.random.default_rng(i).normal(size=8).tolist() for i in range(8)}
    vectors["paris"] = (10 * np.random.default_rng(99).normal(size=8)).tolist()
    known = toy_encoder(vectors)
    text = "w0 w1 w2 paris w3 w4 w5 w6 w7 w0"
    good = METHODS["norm"].scores(known, [text])
    bad = [WordScores(r.text, r.words, [-s for s in r.scores]) for r in good]
    best, worst = faithfulness(known, good), faithfulness(known, bad)
    assert best.areas(best.sufficiency)[0] > worst.areas(worst.sufficiency)[0] + 0.3
    assert best.areas(best.comprehensiveness)[0] > worst.areas(worst.comprehensiveness)[0] + 0.3


def test_areas_and_empty_texts(encoder: SentenceEncoder) -> None:
    found = faithfulness(encoder, [*scored(["rainy museum"]), WordScores("!", [], [])], [0.5, 1.0])
    assert np.isnan(found.sufficiency[1]).all()
    assert found.sufficiency[0, 1] == pytest.approx(1.0, abs=1e-6)
    assert found.areas(found.sufficiency)[0] == pytest.approx(found.sufficiency[0].mean())


def test_equal_selections_are_run_once(encoder: SentenceEncoder) -> None:
    with encoder.counting() as used:
        faithfulness(encoder, scored(["Paris"]), [0.05, 0.1, 0.2])
    assert used.forward == 3  # the text, the word alone, the text without it


def test_bad_rates_and_removals_are_named(encoder: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="ascending"):
        faithfulness(encoder, scored(TEXTS), [0.5, 0.1])
    with pytest.raises(ValueError, match="mask, text; got 'zero'"):
        faithfulness(encoder, scored(TEXTS), removal="zero")


def test_top_words() -> None:
    generator = np.random.default_rng(0)
    assert top_words([0.1, 0.9, 0.5, 0.7, 0.2], 0.05, generator) == [1]
    assert top_words([0.1, 0.9, 0.5, 0.7, 0.2], 0.4, generator) == [1, 3]
    assert top_words([0.1, 0.9, 0.5, 0.7, 0.2], 0.41, generator) == [1, 2, 3]
    assert top_words([], 0.5, generator) == []
    # Ties have no favourite place.
    firsts = [top_words([1.0] * 4, 0.25, generator)[0] for _ in range(2000)]
    assert np.bincount(firsts) == pytest.approx([500] * 4, abs=80)
