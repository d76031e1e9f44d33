"""The label-free criterion against a loop, and rates that are met exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.training.criterion import calibrate_rate, mean_rate, selection_quality
from tests.conftest import SENTENCES
from tests.training.conftest import build_store

ROWS = np.arange(len(SENTENCES))


def test_criterion_against_a_loop(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(selectors={"meaning": {"target_rate": 0.3}})
    store = build_store(model, SENTENCES, tmp_path / "store", "float32")
    quality = selection_quality(model, store, ROWS, batch_size=4)
    sums = [0.0, 0.0]
    for text in SENTENCES:
        inputs = model.tokenizer([text], return_tensors="pt")
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


@pytest.mark.parametrize("unit", ["token", "name"])
@pytest.mark.parametrize("rates", [(0.05, 0.5), (0.2, 0.2)])
def test_calibration_sets_the_rate_of_any_gates(
    rates: tuple[float, float], unit: str, make_model: Callable, tmp_path: Path
) -> None:
    selectors = {name: {"unit": unit, "target_rate": rate} for name, rate in zip("ab", rates, strict=True)}
    model = make_model(selectors=selectors, concentration_min=0.1)
    store = build_store(model, SENTENCES, tmp_path / "store", "float32")
    apart = mean_rate(model, store, ROWS)
    before = {name: value.clone() for name, value in model.gate_head.state_dict().items()}
    added = calibrate_rate(model, store, ROWS)
    assert len(added) == 2 and (apart - torch.tensor(rates)).abs().max() > 0.01
    assert mean_rate(model, store, ROWS).tolist() == pytest.approx(list(rates), rel=0.02)
    changed = [name for name, value in model.gate_head.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["rate_shift"], "nothing else moves"


def test_calibration_of_one_selector_leaves_the_others(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(selectors={"a": {"target_rate": 0.4}, "b": {"target_rate": 0.4}})
    store = build_store(model, SENTENCES, tmp_path / "store", "float32")
    before = mean_rate(model, store, ROWS)
    calibrate_rate(model, store, ROWS, selectors=[1])
    after = mean_rate(model, store, ROWS)
    assert float(after[0]) == float(before[0]) and float(after[1]) == pytest.approx(0.4, rel=0.02)
