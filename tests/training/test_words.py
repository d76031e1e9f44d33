"""Words of stored sentences, what a selector reads of them, and subsets: the same as under an attention mask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.training import subsets
from hardkuma.training.store import TokenFile, write_tokens
from hardkuma.training.subsets import random_subsets, subset_cosines, subset_sizes
from hardkuma.training.words import MIN_WORDS, TokenWords, choose_sentences, read_inputs, read_sentences
from tests.conftest import FAMILIES, SENTENCES, build_model
from tests.training.conftest import build_store

TEXTS = [*SENTENCES, *[f"the museum in paris opened {w}" for w in ("1891", "2020", "in london", "again", "today")], "a b"]
ROWS = np.arange(len(TEXTS))[2:]


def words_of(tokens: TokenFile, row: int) -> int:
    return int(tokens.read(np.array([row]), build_model(), states=False).leading.sum())


def test_sentences_are_chosen_as_one_by_one(tmp_path: Path) -> None:
    model = build_model()
    tokens = write_tokens(model, TEXTS, tmp_path, progress=False)
    long_enough = np.array([row for row in ROWS if words_of(tokens, row) >= MIN_WORDS])
    assert 3 < len(long_enough) < len(ROWS)
    expected = np.sort(long_enough[np.random.default_rng(5).permutation(len(long_enough))[:3]])
    assert choose_sentences(tokens, ROWS, 3, 5, model).tolist() == expected.tolist()
    assert choose_sentences(tokens, ROWS, 99, 5, model).tolist() == long_enough.tolist()


def test_too_short_sentences_are_an_error(tmp_path: Path) -> None:
    model = build_model()
    tokens = write_tokens(model, ["einstein !", "a team"], tmp_path, progress=False)
    with pytest.raises(ValueError, match="no sentence has 4 words or more"):
        choose_sentences(tokens, np.arange(2), 9, 0, model)


def test_words_are_those_of_the_text(tmp_path: Path) -> None:
    model = build_model()
    tokens = write_tokens(model, TEXTS, tmp_path, progress=False)
    sentences = read_sentences(tokens, ROWS, 4, 0, model)
    assert len(sentences.rows) == 4 and (sentences.counts >= MIN_WORDS).all()
    for row, sentence in zip(sentences.rows, sentences.tokens, strict=True):
        words = sentence.words[sentence.words >= 0]
        assert (np.diff(words) >= 0).all() and set(words) == set(range(sentence.number))
        assert (sentence.words < 0).sum() == 2 and len(sentence.ids) == tokens.lengths[row]


@pytest.mark.parametrize("cache_type", ["float32", None])
def test_inputs_of_words_are_those_of_one_sentence_at_a_time(cache_type: str | None, tmp_path: Path) -> None:
    model = build_model(selectors={"meaning": {"unit": "word", "reads": ["state", "leave_one_out"], "layer": [1, -1]}})
    store = build_store(model, TEXTS, tmp_path, cache_type)
    sentences = read_sentences(store, ROWS, 6, 0, model)
    inputs = read_inputs(model, store, sentences, 0, progress=False)
    padded = inputs.padded(np.arange(6), sentences.counts)
    measures = inputs.x[:, -2:].float().sinh()
    assert torch.allclose(measures.mean(0), torch.zeros(2), atol=1e-2), "measures are standardised"
    assert torch.allclose(measures.std(0), torch.ones(2), atol=1e-2)
    for number, row in enumerate(sentences.rows):
        alone, counts = model.selector_inputs(0, **store.read(np.array([row]), model).inputs)
        assert counts.tolist() == [sentences.counts[number]]
        assert torch.allclose(padded[number, : len(alone)], alone, atol=2e-2), "in half precision"
        assert not padded[number, len(alone) :].any()


@pytest.mark.parametrize("words", [4, 5, 11, 40])
def test_sizes_are_those_of_the_rates(words: int) -> None:
    sizes = subset_sizes(words)
    assert sizes == sorted(set(sizes)) and sizes[0] == max(1, -(-words // 20)) and sizes[-1] == -(-words // 2)


def test_random_subsets_come_in_pairs_of_one_size() -> None:
    sentences = [TokenWords(np.arange(words), np.arange(words)) for words in (4, 30)]
    jobs = random_subsets(sentences, 6, seed=0)
    assert len(jobs) == 12
    for first, second in zip(jobs[::2], jobs[1::2], strict=True):
        assert first[0] == second[0] and len(first[1]) == len(second[1])
        assert len(set(first[1])) == len(first[1]) in subset_sizes([4, 30][first[0]])


def test_random_subsets_are_seeded_per_sentence() -> None:
    short, long = (TokenWords(np.arange(words), np.arange(words)) for words in (4, 30))
    alone = random_subsets([long], 6, seed=0)
    assert [words for number, words in random_subsets([short, long], 6, seed=0) if number == 1] == [job[1] for job in alone]
    assert random_subsets([long], 2, seed=0) == alone[:2]
    assert random_subsets([long], 6, seed=1) != alone
    other = TokenWords(np.arange(30) + 1, np.arange(30))
    assert random_subsets([other], 6, seed=0) != alone


@pytest.mark.parametrize("family", FAMILIES)
def test_cosines_are_those_under_a_mask(family: str, make_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One subset after the other, by the encoder itself; batches hold sentences of several lengths."""
    monkeypatch.setattr(subsets, "BATCH", 5)
    model, sentences = make_model(family), []
    for text in SENTENCES:
        ids = np.array(model.tokenizer(text)["input_ids"])
        special = np.isin(ids, model.config.special_token_ids)
        sentences.append(TokenWords(ids, np.where(special, -1, (~special).cumsum() - 1)))
    jobs = random_subsets(sentences, 4, seed=0)
    anchors = torch.randn(len(sentences), 32)
    values = subset_cosines(model, sentences, anchors, jobs)
    for (number, words), cosines in zip(jobs, values, strict=True):
        tokens = sentences[number]
        inside = np.isin(tokens.words, words)
        for kept, cosine in zip((inside | (tokens.words < 0), ~inside), cosines, strict=True):
            mask = torch.from_numpy(kept).long()[None]
            with torch.no_grad():
                states = model.encoder(input_ids=torch.from_numpy(tokens.ids)[None], attention_mask=mask).last_hidden_state
            vector = (states[0] * mask[0, :, None]).sum(0) / mask.sum().clamp_min(1)
            expected = torch.cosine_similarity(vector, anchors[number], dim=0)
            if kept.any():
                assert float(cosine) == pytest.approx(float(expected), abs=1e-4)
