"""Co-training: the selector learns from states what the form of words says, and the rate is held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.corpora import bundled_texts
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.surface_hardkuma import SURFACE_CLASSES
from hardkuma.training.calibration import calibrate_rate, mean_rate
from hardkuma.training.cotraining import cotrain
from hardkuma.training.store import StateStore, build_store

ROWS = np.arange(64)  # enough where the rate of these very sentences is meant
NAMES = SURFACE_CLASSES.index("initial_inside")


def fresh_model(**config: object) -> HardKumaModel:
    torch.manual_seed(0)
    values = {"selector_inputs": ["state"], "selector_layer": 4, "shape_min": 0.1, "target_rate": 0.2, **config}
    return HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", **values).eval()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    texts = list(bundled_texts())[:400]
    return build_store(fresh_model(), texts, tmp_path_factory.mktemp("store"), "float16", progress=False)


def favour_names(model: HardKumaModel, store: StateStore) -> None:
    """Gates as a contrastive phase leaves them: names somewhat more probable than the rest."""
    optimizer = torch.optim.Adam(model.gate_head.parameters(), lr=3e-3)
    for start in range(0, 192, 32):
        batch = store.fetch(np.arange(start, start + 32), shapes=True)
        ids, encoded = batch.pop("surface_ids"), batch.pop("encoded")
        out = model(**batch, encoded=encoded, return_embeddings=False)
        z = model.gate_distribution(out).selection_log_odds(0.5)
        wanted = torch.where(ids == NAMES, 0.6, 0.2)
        torch.nn.functional.binary_cross_entropy_with_logits(z[ids > 0], wanted[ids > 0]).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_learns_names_from_form_but_not_by_form(store: StateStore) -> None:
    model = fresh_model()
    favour_names(model, store)
    found = cotrain(model, store, np.arange(400), epochs=3, progress=False)
    assert found is not None and found.selected == [["initial_inside"]]
    text = "yesterday the old ferry from stockholm brought anna larsson and her tired dog back to helsinki"
    gates = {w["word"]: w["probability"] for w in model.gate_records([text])[0]["words"]}
    names, others = ("stockholm", "anna", "larsson", "helsinki"), ("the", "from", "and", "her", "back", "to")
    assert min(gates[name] for name in names) > max(gates[other] for other in others)


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_holds_the_rate(store: StateStore, rate: float) -> None:
    model = fresh_model(target_rate=rate)
    favour_names(model, store)
    assert cotrain(model, store, np.arange(400), epochs=3, progress=False) is not None
    total, number = 0.0, 0
    for start in range(0, 400, 50):
        batch = store.fetch(np.arange(start, start + 50))
        probs = model(**batch, return_embeddings=False).gate_probs.detach()
        total, number = total + float(probs.sum()), number + int((probs > 0).sum())
    assert total / number == pytest.approx(rate, rel=0.2)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_calibration_sets_the_rate_of_any_gates(store: StateStore, rate: float) -> None:
    model = fresh_model(num_selectors=2)
    apart = mean_rate(model, store, ROWS)
    before = model.gate_head.selectors[0].shapes.weight.clone()
    moved = calibrate_rate(model, store, ROWS, rate)
    assert len(moved) == 2 and (apart - rate).abs().max() > 0.01
    assert mean_rate(model, store, ROWS).tolist() == pytest.approx([rate, rate], rel=0.02)
    assert torch.equal(before, model.gate_head.selectors[0].shapes.weight)  # nothing but one bias moves


def test_leaves_gates_alone_where_form_says_nothing(store: StateStore) -> None:
    model, said = fresh_model(), []
    before = {name: value.clone() for name, value in model.gate_head.state_dict().items()}
    assert cotrain(model, store, np.arange(100), log=said.append, progress=False) is None
    assert "no form of words" in said[0]
    assert all(torch.equal(value, before[name]) for name, value in model.gate_head.state_dict().items())


def test_is_the_same_twice(store: StateStore, tmp_path: Path) -> None:
    weights = []
    for _ in range(2):
        model = fresh_model()
        favour_names(model, store)
        cotrain(model, store, np.arange(64), seed=3, progress=False)
        weights.append(model.gate_head.selectors[0].hidden.weight.clone())
    assert torch.equal(*weights)


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
