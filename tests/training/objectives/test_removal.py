"""The removal objective: its gates are more faithful than untrained ones, and what was measured is kept."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from hardkuma import load_released
from hardkuma.data import bundled_texts
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training import subsets
from hardkuma.training.criterion import mean_rate, selection_quality
from hardkuma.training.objectives.removal import Removal
from hardkuma.training.run import Run
from hardkuma.training.store import StateStore
from tests.training.conftest import build_store, make_run

TRAIN = {"objective": "removal", "sentences": 80, "epochs": 10}
ROWS = np.arange(80)
MEANING = {
    "unit": "word",
    "layer": [0.5, 1.0],
    "reads": ["state", "pool_share", "isolated"],
    "hidden_size": 16,
    "target_rate": 0.3,
}


@cache
def isolated_table() -> dict[str, torch.Tensor]:
    """Of MiniLM, which the released head has."""
    return {name: value for name, value in load_released()[0].gate_head.named_buffers() if name.startswith("isolated")}


def new_model(**config: object) -> HardKumaModel:
    torch.manual_seed(0)
    values = {"selectors": {"meaning": MEANING}, "concentration_min": 0.1, **config}
    return HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", **values).eval()


def fresh_model(**config: object) -> HardKumaModel:
    model = new_model(**config)
    for name, value in isolated_table().items():
        getattr(model.gate_head, name).copy_(value)
    return model


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    texts = list(bundled_texts())[:120]
    return build_store(fresh_model(), texts, tmp_path_factory.mktemp("store"), "float16")


def removal(run: Run) -> Removal:
    (objective,) = run.objectives
    assert isinstance(objective, Removal)
    return objective


def test_fitted_gates_are_more_faithful_and_the_same_twice(store: StateStore) -> None:
    held_out, models = np.arange(80, 120), []
    for _ in range(2):
        run = make_run(fresh_model(), TRAIN, store, ROWS)
        before = selection_quality(run.model, store, held_out)
        assert removal(run).fit(run)
        done = removal(run).outcome
        assert done.sentences <= 80 and done.subsets == 2 * done.sentences and done.unexplained < 0.9
        after = selection_quality(run.model, store, held_out)
        assert after.sufficiency > before.sufficiency + 0.1 and after.remainder < before.remainder - 0.05
        assert float(mean_rate(run.model, store, ROWS)[0]) == pytest.approx(0.3, rel=0.05), "at its target rate"
        models.append(run.model)
    first, second = (model.gate_head.state_dict() for model in models)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    report = removal(run).report(run)
    assert f"{done.subsets:,} subsets" in report.paragraph and "`meaning`" in report.paragraph
    assert report.entries[0]["unexplained"] == done.unexplained


def test_every_setting_makes_a_difference(store: StateStore) -> None:
    """`--epochs 1` and `--epochs 40` gave the same weights, as did 13 other keys."""
    small = {**TRAIN, "sentences": 20, "epochs": 3}
    weights = []
    for changed in ({}, {"sentences": 30}, {"subsets": 4}, {"epochs": 4}, {"learning_rate": 0.01}):
        run = make_run(fresh_model(), {**small, **changed}, store, ROWS)
        assert removal(run).fit(run)
        weights.append(run.model.gate_head.selectors[0].hidden.weight)
        assert not any(torch.equal(weights[-1], other) for other in weights[:-1]), changed


def test_values_on_disk_are_not_measured_again(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**TRAIN, "sentences": 20, "epochs": 3}
    first = make_run(fresh_model(), small, store, ROWS)
    assert removal(first).fit(first)

    def forbidden(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(subsets, "subset_cosines", forbidden)
    second = make_run(fresh_model(), small, store, ROWS)
    assert removal(second).fit(second)


def test_an_interrupt_changes_nothing(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(fresh_model(), TRAIN, store, ROWS)
    before = [value.clone() for value in run.model.gate_head.selectors.parameters()]
    monkeypatch.setattr(Run, "is_interrupted", lambda self: True)
    assert not removal(run).fit(run)
    assert "stopped; the same command goes on where it was." in capsys.readouterr().err
    assert all(torch.equal(*pair) for pair in zip(before, run.model.gate_head.selectors.parameters(), strict=True))


def test_gates_of_tokens_are_refused() -> None:
    run = make_run(new_model(selectors={"meaning": {}}), TRAIN)
    with pytest.raises(
        ValueError, match=r"selectors\.meaning: objective removal trains gates of unit word or name, got unit 't"
    ):
        removal(run).check(run)


def test_an_encoder_that_is_trained_meanwhile_is_refused() -> None:
    both = {"a": {"train": {"objective": "contrastive"}}, "b": {"train": TRAIN}}
    model = new_model(selectors={"a": {}, "b": {"unit": "word"}}, freeze_encoder=False)
    run = make_run(model, TRAIN)
    removal(make_run(new_model(selectors={"b": {"unit": "word"}}, freeze_encoder=False), TRAIN)).check(run)
    run.recipe.selectors = both
    with pytest.raises(ValueError, match=r"selectors\.b: objective removal needs a frozen encoder"):
        run.objectives[1].check(run)
