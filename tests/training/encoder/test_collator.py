"""Batches of views: padding, positions, cuts and masks as the encoder gets them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hardkuma.evaluation.baselines import SentenceEncoder
from hardkuma.training.encoder.collator import DRAW, ROW, ViewCollator
from hardkuma.training.encoder.objectives import multiplied_embeddings
from hardkuma.training.encoder.sentence import read_sentences
from hardkuma.training.encoder.views import make_augmentation
from tests.conftest import build_model
from tests.toy import toy_transformer

TEXTS = ["a b c the museum", "rain", "a museum the rain c b a"]


@pytest.fixture
def toy() -> SentenceEncoder:
    return toy_transformer(["a", "b", "c", "the", "museum", "rain", "[MASK]"])


def collator_of(toy: SentenceEncoder, view: dict, **options: object) -> ViewCollator:
    sentences = read_sentences(toy.tokenizer, TEXTS, 32)
    return ViewCollator(sentences, make_augmentation(view, 32), toy.tokenizer, toy.encoder, **options)


def rows(*pairs: tuple[int, int]) -> list[dict[str, int]]:
    return [{ROW: row, DRAW: draw} for row, draw in pairs]


def test_a_view_depends_on_seed_and_draw_alone(toy: SentenceEncoder) -> None:
    collator = collator_of(toy, {"random_deletion": {"k": 2, "t": 1}})
    together, alone = collator(rows((0, 7), (2, 8))), collator(rows((2, 8)))
    length = alone["positive_1_input_ids"].shape[1]
    assert torch.equal(together["positive_1_input_ids"][1:, :length], alone["positive_1_input_ids"])
    seen = {tuple(collator(rows((2, draw)))["positive_1_input_ids"][0].tolist()) for draw in range(30)}
    assert len(seen) > 5
    other = collator_of(toy, {"random_deletion": {"k": 2, "t": 1}}, seed=1)
    assert any(
        not torch.equal(other(rows((2, draw)))["positive_1_input_ids"], collator(rows((2, draw)))["positive_1_input_ids"])
        for draw in range(5)
    )


def test_padding_is_on_the_right(toy: SentenceEncoder) -> None:
    batch = collator_of(toy, {"dropout": None}, views=2)(rows((0, 0), (1, 1)))
    assert {key.rpartition("_input_ids")[0] for key in batch if "ids" in key} == {"anchor", "positive_1", "positive_2"}
    coded = toy.tokenizer([TEXTS[0], TEXTS[1]], padding=True, return_tensors="pt")
    assert torch.equal(batch["anchor_input_ids"], coded["input_ids"])
    assert torch.equal(batch["positive_2_attention_mask"], coded["attention_mask"])


def test_shuffled_positions_reach_the_encoder(toy: SentenceEncoder) -> None:
    batch = collator_of(toy, {"token_shuffling": None})(rows((0, 3)))
    positions = batch["positive_1_position_ids"]
    assert sorted(positions[0].tolist()) == list(range(7)) and positions[0, 0] == 0 and positions[0, 6] == 6
    with torch.no_grad():
        plain = toy.encoder(input_ids=batch["anchor_input_ids"]).last_hidden_state
        moved = toy.encoder(input_ids=batch["anchor_input_ids"], position_ids=positions).last_hidden_state
    assert (plain - moved).abs().max() > 1e-3


def test_roberta_counts_positions_from_behind_the_padding() -> None:
    model = build_model("roberta")
    sentences = read_sentences(model.tokenizer, ["the river runs"], 32)
    collator = ViewCollator(sentences, make_augmentation({"token_shuffling": None}), model.tokenizer, model.encoder)
    assert sorted(collator(rows((0, 0)))["positive_1_position_ids"][0].tolist()) == [2, 3, 4, 5, 6]


def test_encoders_without_positions_say_so() -> None:
    model = build_model("hardkuma_static")
    sentences = read_sentences(model.tokenizer, ["the river runs"], 32)
    collator = ViewCollator(sentences, make_augmentation({"token_shuffling": None}), model.tokenizer, model.encoder)
    with pytest.raises(ValueError, match="StaticEncoder takes no position_ids: leave token_shuffling out"):
        collator(rows((0, 0)))


def test_cut_embeddings_are_zero_where_they_were_cut(toy: SentenceEncoder) -> None:
    batch = collator_of(toy, {"token_cutoff": {"rate": 0.5}, "feature_cutoff": {"rate": 0.25}})(rows((0, 1)))
    kept = batch["positive_1_kept"]
    assert kept.shape == (1, 7, 32)
    whole_tokens = ~kept[0].any(1)
    assert whole_tokens.sum() == 2 and (~kept[0][~whole_tokens]).sum(1).tolist() == [8] * 5
    seen = []
    handle = toy.encoder.encoder.layer[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with multiplied_embeddings(toy.encoder, kept), torch.no_grad():
        toy.encoder(input_ids=batch["positive_1_input_ids"])
    assert torch.equal(seen[0] != 0, kept)
    with torch.no_grad():
        toy.encoder(input_ids=batch["positive_1_input_ids"])  # outside nothing is cut
    handle.remove()
    assert (seen[1] != 0).all()


def test_masks_are_15_percent_of_the_words(toy: SentenceEncoder) -> None:
    toy.tokenizer.mask_token = "[MASK]"
    collator, chosen, content = collator_of(toy, {"dropout": None}, mask_words=True), 0, 0
    fates = {"mask": 0, "kept": 0, "other": 0}
    for draw in range(600):
        batch = collator(rows((2, draw)))
        ids, masked, labels = (batch[f"anchor_{name}"][0] for name in ("input_ids", "masked", "labels"))
        hidden = labels != -100
        assert not hidden[0] and not hidden[-1] and torch.equal(labels[hidden], ids[hidden])
        assert torch.equal(masked[~hidden], ids[~hidden])
        chosen, content = chosen + int(hidden.sum()), content + 7
        for before, after in zip(ids[hidden].tolist(), masked[hidden].tolist(), strict=True):
            fate = "mask" if after == toy.tokenizer.mask_token_id else "kept" if after == before else "other"
            fates[fate] += 1
    assert chosen / content == pytest.approx(0.15, abs=0.02)
    assert fates["mask"] / chosen == pytest.approx(0.8 + 0.1 / 11, abs=0.05) and min(fates.values()) > 0
    toy.tokenizer.mask_token = None
    with pytest.raises(ValueError, match="no mask token"):
        collator(rows((2, 0)))


def test_pad_without_rows_of_views(toy: SentenceEncoder) -> None:
    sentence = read_sentences(toy.tokenizer, ["a b"], 32)[0]
    assert collator_of(toy, {"dropout": None}).pad([sentence])["input_ids"].dtype == torch.int64
    assert np.array_equal(sentence.words, [-1, 0, 1, -1])
