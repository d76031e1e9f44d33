"""The peers run on every family of encoders, and pool as each does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.attribution import METHODS, SentenceEncoder, attention_dropout
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
        for item in attention_dropout(encoder, SENTENCES):
            assert len(item.kept) + len(item.removed) == len(item.input_ids) == len(item.attention_mask)
