"""Options of the notes' equations that are off by default, each against a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.configuration_hardkuma import SelectorConfig
from hardkuma.data.lines import CorpusError
from hardkuma.data.readers import read_kept_rows
from hardkuma.gate_head_hardkuma import WordRows, decide
from hardkuma.training.encoder.collator import DRAW, ROW, ViewCollator
from hardkuma.training.encoder.sentence import Sentence
from hardkuma.training.encoder.views import RandomDeletion, WordReplacement, make_augmentation

SENTENCE = Sentence(np.array([2, 11, 12, 13, 14, 15, 3]), np.array([-1, 0, 0, 1, 2, 3, -1]))


@pytest.mark.parametrize("reads", ["state", "input", "anchor"])
def test_layer_norm_can_be_switched_off(reads: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"reads": [reads], "layer_norm": False}})
    inputs = tokenize(model, ["marie curie moved to paris"])
    x, _ = model.selector_inputs(0, **inputs)
    states = model(**inputs).last_hidden_state[0]
    pooled = states.mean(0)
    raw = {
        "state": states,
        "input": model.get_input_embeddings()(inputs["input_ids"])[0],
        "anchor": states * pooled / pooled.norm(),
    }[reads]
    assert torch.allclose(x, raw[1:-1], atol=1e-5), "without [CLS] and [SEP], as it is"
    model.config.selectors["meaning"].layer_norm = True
    for found, row in zip(model.selector_inputs(0, **inputs)[0], raw[1:-1], strict=True):
        expected = (row - row.mean()) / (row.var(unbiased=False) + 1e-5).sqrt()
        assert torch.allclose(found, expected, atol=1e-4)


def test_function_words_as_words_like_others() -> None:
    probs, yes = torch.tensor([[0.4, 0.3, 0.1]]), torch.ones(1, 3, dtype=torch.bool)
    words = WordRows(probs, probs, yes, torch.tensor([[1, 0, 0]]), yes)
    assert decide(words, SelectorConfig(unit="word"), 0.5, rate=0.3).tolist() == [[False, True, False]]
    alike = SelectorConfig(unit="word", function_words=True)
    assert decide(words, alike, 0.5, rate=0.3).tolist() == [[True, False, False]]


def test_deletion_by_a_fraction() -> None:
    for rate, left in ((0.0, 4), (0.25, 3), (0.5, 2), (0.74, 2), (1.0, 1)):
        view = RandomDeletion(rate=rate)(SENTENCE, np.random.default_rng(0))
        assert len(view.word_numbers) == left and view.ids[0] == 2 and view.ids[-1] == 3
    with pytest.raises(ValueError, match="rate must be in"):
        RandomDeletion(rate=20)


def test_replaced_words() -> None:
    view = WordReplacement(100, rate=0.5, special=50)(SENTENCE, np.random.default_rng(3))
    assert view.word_numbers.tolist() == [0, 1, 2, 3], "as many words, in their places"
    new = {int(word) for word, token in zip(view.words, view.ids, strict=True) if word >= 0 and token >= 50}
    assert len(new) == 2
    for word in set(range(4)) - new:
        assert view.ids[view.words == word].tolist() == SENTENCE.ids[SENTENCE.words == word].tolist()


def test_views_on_both_sides() -> None:
    from tests.toy import toy_transformer

    toy = toy_transformer(["a"])
    for both in (False, True):
        view = make_augmentation({"random_deletion": {"rate": 0.5}})
        collator = ViewCollator([SENTENCE], view, toy.tokenizer, toy.encoder, both_sides=both)
        batch = collator([{ROW: 0, DRAW: number} for number in range(8)])
        anchors, others = batch["anchor_attention_mask"].sum(-1), batch["positive_1_attention_mask"].sum(-1)
        assert bool((anchors < 7).all()) == both and bool((others < 7).all())
        if both:
            same = [
                torch.equal(*pair) for pair in zip(batch["anchor_input_ids"], batch["positive_1_input_ids"], strict=False)
            ]
            assert not all(same), "draws of their own"


def test_columns_by_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("1\tA fine film.\n0\tDull.\n")
    assert [(row.text, row.kept["1"]) for row in read_kept_rows(path, column="2", keep=["1"])] == [
        ("A fine film.", "1"),
        ("Dull.", "0"),
    ]
    for keep, message in (("label", "'label' is none"), ("3", "column 3 asked for, 2 found")):
        with pytest.raises(CorpusError, match=message):
            list(read_kept_rows(path, column="2", keep=[keep]))
