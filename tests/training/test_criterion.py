"""The label-free criterion: what it selects, and its cosines against a loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.kumaraswamy_hardkuma import select_rate
from hardkuma.training.criterion import selection_quality
from hardkuma.training.store import build_store
from tests.conftest import SENTENCES


def test_selection_at_a_rate_takes_content_only_and_breaks_ties_by_place() -> None:
    content = torch.tensor([[False, True, True, True, True, False], [True, False, False, False, False, False]])
    probs = torch.tensor([[[0.9, 0.2, 0.5, 0.5, 0.1, 0.9]], [[0.1, 0.9, 0.9, 0.9, 0.9, 0.9]]])
    assert select_rate(probs, content[:, None], 0.25)[0, 0].tolist() == [0, 0, 1, 0, 0, 0]
    assert select_rate(probs, content[:, None], 0.5)[0, 0].tolist() == [0, 0, 1, 1, 0, 0]
    assert select_rate(probs, content[:, None], 0.01)[1, 0].tolist() == [1, 0, 0, 0, 0, 0], "at least one"


def test_criterion_against_a_loop(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(view="hidden", target_rate=0.3)
    store = build_store(model, SENTENCES, tmp_path / "store", "float32", progress=False)
    quality = selection_quality(model, store, np.arange(len(SENTENCES)), batch_size=4)
    sums = [0.0, 0.0]
    for sentence in SENTENCES:
        inputs = model.tokenizer([sentence], return_tensors="pt")
        with torch.no_grad():
            out = model(**inputs)
        probs, ids = out.gate_probs[0], inputs["input_ids"][0]
        places = [i for i in range(len(ids)) if ids[i] not in (0, 1, 3)]
        best = sorted(places, key=lambda i: (-float(probs[i]), i))[: math.ceil(0.3 * len(places))]
        for side, chosen in enumerate([set(best), set(places) - set(best)]):
            keep = torch.tensor([[int(i in chosen or i not in places) for i in range(len(ids))]])
            with torch.no_grad():
                states = model.encoder(input_ids=inputs["input_ids"], attention_mask=keep).last_hidden_state
            vector = (states * keep[..., None]).sum(1) / keep.sum()
            sums[side] += float(torch.cosine_similarity(vector, out.anchor_embedding))
    assert quality.sufficiency == pytest.approx(sums[0] / len(SENTENCES), abs=1e-5)
    assert quality.remainder == pytest.approx(sums[1] / len(SENTENCES), abs=1e-5)
    assert quality.score == pytest.approx(quality.sufficiency - quality.remainder)
    assert not model.training
