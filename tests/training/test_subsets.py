"""Embeddings of parts of sentences: the same as under an attention mask, for every family, packed or not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.sentences import TokenWords
from hardkuma.training.subsets import SubsetEncoder
from tests.conftest import FAMILIES, SENTENCES


def parts(model: HardKumaModel) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, rows = np.random.default_rng(0), []
    for text in SENTENCES:
        ids = np.array(model.tokenizer(text)["input_ids"])
        special = np.isin(ids, model.config.special_token_ids)
        rows += [(ids, special | (rng.random(len(ids)) < share)) for share in (0.3, 0.7, 1.0)]
    return [(ids, kept) for ids, kept in rows if kept.any()]


@pytest.mark.parametrize("family", FAMILIES)
def test_same_as_under_a_mask(make_model: Callable, family: str) -> None:
    model = make_model(family)
    encoder = SubsetEncoder(model)
    rows = parts(model)
    vectors = encoder.embed(rows)
    for (ids, kept), vector in zip(rows, vectors, strict=True):
        content = ~np.isin(ids, model.config.special_token_ids)
        tensors = [torch.from_numpy(np.asarray(array))[None] for array in (ids, np.ones_like(ids), kept & content)]
        expected = model.encode_subsets(tensors[0], tensors[1], tensors[2][:, None].float())[0, 0]
        assert torch.allclose(vector, expected, atol=1e-4 * float(expected.abs().max()))


def test_packs_what_it_can(make_model: Callable) -> None:
    assert SubsetEncoder(make_model("bert")).first_position == 0
    model = make_model("roberta")
    assert SubsetEncoder(model).first_position == model.encoder.config.pad_token_id + 1
    # Relative positions are counted inside of the encoder: tokens must stay where they are.
    assert SubsetEncoder(make_model("mpnet")).first_position is None


def test_values_are_cosines_of_kept_and_rest(make_model: Callable) -> None:
    model = make_model()
    ids = np.array(model.tokenizer(SENTENCES[0])["input_ids"])
    words = np.where(np.isin(ids, model.config.special_token_ids), -1, np.arange(len(ids)) - 1)
    sentence = TokenWords(ids, words)
    assert sentence.number == len(ids) - 2
    whole = model(input_ids=torch.from_numpy(ids)[None]).anchor_embedding.detach()
    everything = list(range(sentence.number))
    values = SubsetEncoder(model).values([sentence], whole, [(0, [0, 2]), (0, everything)])
    kept = torch.zeros(2, len(ids))
    kept[0, [1, 3]] = 1
    kept[1] = 1 - kept[0]
    vectors = model.encode_subsets(torch.from_numpy(ids)[None], torch.ones(1, len(ids)), kept[None])[0]
    assert values[0].tolist() == pytest.approx(torch.cosine_similarity(vectors, whole).tolist(), abs=1e-5)
    assert float(values[1, 0]) == pytest.approx(1.0, abs=1e-5)
