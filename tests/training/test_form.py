"""Gates of entities: what form teaches, what it leaves out, and the rate at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.data import bundled_texts
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.calibration import calibrate_rate, mean_rate
from hardkuma.training.form import Vocabulary, _words, train_by_form, word_opinions
from hardkuma.training.recipe import Recipe
from hardkuma.training.store import StateStore, build_store
from hardkuma.words_hardkuma import SURFACE_CLASSES, find_words, word_classes

ROWS = np.arange(64)  # enough where the rate of these very sentences is meant
RECIPE = Recipe(entities_epochs=3)


def fresh_model(**config: object) -> HardKumaModel:
    torch.manual_seed(0)
    values = {"selector_layer": 4, "shape_min": 0.1, "target_rate": 0.2, "selector_unit": "name", **config}
    return HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", **values).eval()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    texts = list(bundled_texts())[:400]
    return build_store(fresh_model(), texts, tmp_path_factory.mktemp("store"), "float16", progress=False)


def opinions(text: str) -> dict[str, float]:
    words = find_words(text)
    classes = torch.tensor(word_classes(text, words))
    no = torch.zeros(len(words), dtype=torch.bool)
    return {text[a:b]: float(value) for (a, b), value in zip(words, word_opinions(classes, no, no), strict=True)}


def test_a_capital_inside_a_sentence_teaches() -> None:
    found = opinions("Yesterday we met Anna in Rome with NATO and @bob near 1901")
    assert found == {
        **dict.fromkeys(("we", "met", "in", "with", "and", "near", "1901"), -1.0),
        **dict.fromkeys(("Anna", "Rome"), 1.0),
        **dict.fromkeys(("Yesterday", "NATO", "@bob"), 0.0),
    }


@pytest.mark.parametrize(
    "text",
    ["The Old Man And The Sea", "THE OLD MAN and THE SEA", "nothing here has a capital letter at all"],
    ids=["title", "shouted", "lower case"],
)
def test_some_sentences_teach_nothing(text: str) -> None:
    assert set(opinions(text).values()) == {0.0}


def test_words_of_a_stored_sentence(tmp_path: Path) -> None:
    model = fresh_model()
    text = 'He said: Paris, "Berlin" or Windows10 and 4,500 in Kathmandu.'
    store = build_store(model, [text], tmp_path, None, progress=False)
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    words = next(iter(_words(store.read(np.arange(1), model), vocabulary)))
    ids = store.tokens([0])["input_ids"][0]
    starts = model.tokenizer.convert_ids_to_tokens(ids[words.firsts])
    found = dict(zip(starts, words.opinions.tolist(), strict=True))
    # After a colon or a quotation mark, and with letters and digits: nothing. A thousand's comma does not part a number.
    assert found["paris"] == found["berlin"] == found["windows"] == 0.0
    assert found["4"] == found["said"] == found["or"] == -1.0 and "500" not in starts
    assert found[model.tokenizer.tokenize("Kathmandu")[0]] == 1.0
    assert len(words.types) == len(words.firsts)


def test_learns_names_from_form_but_not_by_form(store: StateStore) -> None:
    model = fresh_model()
    found = train_by_form(model, store, np.arange(400), RECIPE, selector=0, progress=False)
    assert 0 < found.capitals < found.words and f"{found.capitals:,}" in found.describe()
    text = "yesterday the old ferry from stockholm brought anna larsson and her tired dog back to helsinki"
    gates = {w["word"]: w["probability"] for w in model.gate_records([text])[0]["words"]}
    names, others = ("stockholm", "anna", "larsson", "helsinki"), ("the", "from", "and", "her", "back", "to")
    assert min(gates[name] for name in names) > max(gates[other] for other in others)


def test_is_the_same_twice(store: StateStore) -> None:
    weights = []
    for _ in range(2):
        model = fresh_model()
        train_by_form(model, store, ROWS, Recipe(seed=3), selector=0, progress=False)
        weights.append(model.gate_head.selectors[0].hidden.weight.clone())
    assert torch.equal(*weights)


def test_text_without_capitals_is_a_true_error(tmp_path: Path) -> None:
    model = fresh_model()
    texts = ["Rain fell on the old town.", "Snow fell on the river."]
    store = build_store(model, texts, tmp_path, None, progress=False)
    with pytest.raises(ValueError, match=r"none of the \d+ words .* has a capital inside a sentence"):
        train_by_form(model, store, np.arange(2), RECIPE, selector=0, progress=False)


@pytest.mark.parametrize("rates", [(0.05, 0.5), (0.2, 0.2)])
def test_calibration_sets_the_rate_of_any_gates(store: StateStore, rates: tuple[float, float]) -> None:
    names = ["meaning", "entities"]
    model = fresh_model(selector_names=names, target_rate=dict(zip(names, rates, strict=True)))
    apart = mean_rate(model, store, ROWS)
    before = model.gate_head.selectors[0].shapes.weight.clone()
    moved = calibrate_rate(model, store, ROWS)
    assert len(moved) == 2 and (apart - torch.tensor(rates)).abs().max() > 0.01
    assert mean_rate(model, store, ROWS).tolist() == pytest.approx(list(rates), rel=0.02)
    assert torch.equal(before, model.gate_head.selectors[0].shapes.weight)  # nothing but one bias moves


def test_stored_states_of_an_inner_layer_give_the_same_gates(store: StateStore) -> None:
    model = fresh_model()
    batch = store.fetch(np.arange(8))
    encoded = batch.pop("encoded")
    with torch.no_grad():
        near = model(**batch, encoded=encoded, return_embeddings=False).gate_probs
        exact = model(**batch, return_embeddings=False).gate_probs
    assert torch.allclose(near, exact, atol=2e-3)  # half-precision store
    with pytest.raises(ValueError, match="selector_layer is 4, but encoded has no 'layer_states'"):
        model(**batch, encoded={"states": encoded["states"]})


def test_every_class_is_decided() -> None:
    """A new class of written form must be given a place here."""
    silent = {"unknown", "initial_start", "capitals", "single_capital", "mixed", "caseless", "handle"}
    no = torch.zeros(3, dtype=torch.bool)
    lower, inside = (SURFACE_CLASSES.index(name) for name in ("lower", "initial_inside"))
    for number, name in enumerate(SURFACE_CLASSES):
        value = float(word_opinions(torch.tensor([inside, lower, number]), no, no)[2])
        assert (value == 0) == (name in silent)
