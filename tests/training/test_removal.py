"""Training by removal: subsets, the fit, and that its gates are more faithful than untrained ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.data import bundled_texts
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.criterion import selection_quality
from hardkuma.training.recipe import Recipe
from hardkuma.training.removal import train_by_removal
from hardkuma.training.sentences import MIN_WORDS, TokenWords, read_sentences
from hardkuma.training.store import StateStore, build_store
from hardkuma.training.subsets import SubsetEncoder, random_subsets, subset_sizes

RECIPE = Recipe(objective="removal", removal_sentences=150, removal_epochs=10)
ROWS = np.arange(150)


def fresh_model() -> HardKumaModel:
    torch.manual_seed(0)
    return HardKumaModel.from_encoder(
        "sentence-transformers/all-MiniLM-L6-v2",
        selector_unit="word",
        selector_layer=[0.5, 1.0],
        selector_inputs=["state", "pooled", "alone"],
        selector_hidden_size=16,
        shape_min=0.1,
        target_rate=0.3,
    ).eval()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    texts = list(bundled_texts())[:200]
    return build_store(fresh_model(), texts, tmp_path_factory.mktemp("store"), "float16", progress=False)


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


def test_random_subsets_hang_on_the_sentence_and_the_seed() -> None:
    short, long = (TokenWords(np.arange(words), np.arange(words)) for words in (4, 30))
    alone = random_subsets([long], 6, seed=0)
    assert [words for number, words in random_subsets([short, long], 6, seed=0) if number == 1] == [job[1] for job in alone]
    assert random_subsets([long], 2, seed=0) == alone[:2]
    assert random_subsets([long], 6, seed=1) != alone
    other = TokenWords(np.arange(30) + 1, np.arange(30))
    assert random_subsets([other], 6, seed=0) != alone


def test_words_are_those_of_the_text(store: StateStore) -> None:
    model = fresh_model()
    sentences = read_sentences(store, ROWS, 20, 0, model)
    assert len(sentences.rows) == 20 and (sentences.counts >= MIN_WORDS).all()
    for row, tokens in zip(sentences.rows, sentences.tokens, strict=True):
        words = tokens.words[tokens.words >= 0]
        assert (np.diff(words) >= 0).all() and set(words) == set(range(tokens.number))
        assert (tokens.words < 0).sum() == 2 and len(tokens.ids) == store.lengths[row]


def test_fitted_gates_are_more_faithful_and_the_same_twice(store: StateStore, tmp_path: Path) -> None:
    held_out, models = np.arange(150, 200), []
    for _ in range(2):
        model = fresh_model()
        before = selection_quality(model, store, held_out)
        done = train_by_removal(model, store, ROWS, RECIPE, progress=False)
        assert done is not None and done.sentences <= 150 and done.subsets == 2 * done.sentences
        after = selection_quality(model, store, held_out)
        assert after.sufficiency > before.sufficiency + 0.1 and after.remainder < before.remainder - 0.05
        assert done.unexplained < 0.9
        models.append(model)
    first, second = (model.gate_head.state_dict() for model in models)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_values_on_disk_are_not_measured_again(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    train_by_removal(fresh_model(), store, ROWS, RECIPE, progress=False)

    def forbidden(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(SubsetEncoder, "values", forbidden)
    assert train_by_removal(fresh_model(), store, ROWS, RECIPE, progress=False) is not None


def test_an_interrupt_changes_nothing(store: StateStore) -> None:
    model = fresh_model()
    before = [value.clone() for value in model.gate_head.selectors.parameters()]
    assert train_by_removal(model, store, ROWS, RECIPE, interrupted=lambda: True, progress=False) is None
    assert all(torch.equal(*pair) for pair in zip(before, model.gate_head.selectors.parameters(), strict=True))


def test_too_short_sentences_are_an_error(tmp_path: Path) -> None:
    model = fresh_model()
    short = build_store(model, ["Rain.", "Marie moved"], tmp_path, "float16", progress=False)
    with pytest.raises(ValueError, match="no sentence has 4 words or more"):
        train_by_removal(model, short, np.arange(2), RECIPE, progress=False)
