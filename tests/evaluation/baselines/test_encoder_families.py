"""The peers run on every family of encoders, and pool as each does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder
from hardkuma.training.encoder.registry import make_augmentation
from hardkuma.training.encoder.scorers import score_sentences
from hardkuma.training.encoder.sentence import read_sentences
from tests.conftest import FAMILIES, SENTENCES

ONE_PASS = ("norm", "cosine", "attention", "rollout", "loo_pooled", "gates")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(make_model: Callable[..., HardKumaModel], family: str) -> None:
    model = make_model(family)
    encoder = SentenceEncoder.from_model(model, token_budget=40)
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        anchor = model(inputs["input_ids"], inputs["attention_mask"]).anchor_embedding
    torch.testing.assert_close(encoder.encode(SENTENCES), anchor, atol=1e-4, rtol=1e-4)
    names = [*ONE_PASS, "loo"] + ([] if METHODS["integrated_gradients"].missing else ["integrated_gradients"])
    for name in names:
        if family == "hardkuma_static" and name in ("attention", "rollout"):
            continue  # it has no attention
        for result in METHODS[name].scores(encoder, SENTENCES):
            assert len(result.scores) == len(result.words) and not result.missing
            assert torch.isfinite(torch.tensor(result.scores)).all(), name
    if family != "hardkuma_static":
        sentences = read_sentences(encoder.tokenizer, SENTENCES, model.max_length)
        drop = make_augmentation({"attention_naive": {"k": 1, "t": 1}})
        scored = score_sentences(encoder, SENTENCES, sentences, ["attention"])
        dropped = [len(sentence) - len(drop(sentence, np.random.default_rng(0))) for sentence in scored]
        assert set(dropped) <= {0, 1} and sum(dropped) > len(dropped) / 2
