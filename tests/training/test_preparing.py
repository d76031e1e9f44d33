"""What a run reads of its store was encoded before, and not much more than that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hardkuma.training import calibration, preparing
from hardkuma.training.arguments import parse_arguments
from hardkuma.training.preparing import needed_rows
from hardkuma.training.recipe import Recipe, load_recipe
from hardkuma.training.sentences import MIN_WORDS, choose_sentences
from hardkuma.training.store import StateStore, TokenFile, write_tokens
from hardkuma.training.trainer import Trainer
from tests.conftest import SENTENCES, build_model, build_two_selectors

TEXTS = [*SENTENCES, *[f"the museum in paris opened {w}" for w in ("1891", "2020", "in london", "again", "today")], "a b"]
ROWS, HELD_OUT = np.arange(len(TEXTS))[2:], np.arange(2)
REMOVAL = {"objective": "removal", "surface": False, "removal_sentences": 3}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "COMPARED", 2)
    monkeypatch.setattr(calibration, "SENTENCES", 2)
    monkeypatch.setattr(calibration, "SENTENCES_OF_KINDS", 4)


def words_of(tokens: TokenFile, row: int) -> int:
    return int(tokens.read(np.array([row]), build_model(), states=False).leading.sum())


def test_sentences_are_chosen_as_one_by_one(tmp_path: Path) -> None:
    model = build_model()
    tokens = write_tokens(model, TEXTS, tmp_path, progress=False)
    long_enough = np.array([row for row in ROWS if words_of(tokens, row) >= MIN_WORDS])
    assert 3 < len(long_enough) < len(ROWS)
    expected = np.sort(long_enough[np.random.default_rng(5).permutation(len(long_enough))[:3]])
    assert choose_sentences(tokens, ROWS, 3, 5, model).tolist() == expected.tolist()
    assert choose_sentences(tokens, ROWS, 99, 5, model).tolist() == long_enough.tolist()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("settings", "stores_states", "wanted"),
    [
        ({}, True, "all"),
        ({"batches": "random"}, True, "all"),
        ({}, False, "all"),
        ({"batches": "random"}, False, "compared"),
        ({**REMOVAL, "surface": True}, True, "all"),
        ({**REMOVAL, "surface": True}, False, "chosen"),
        (REMOVAL, True, "chosen and calibrated"),
        ({**REMOVAL, "meaning": "released"}, True, "calibrated"),
        ({**REMOVAL, "meaning": "released"}, False, "compared"),
    ],
)
def test_needed(settings: dict, stores_states: bool, wanted: str, tmp_path: Path) -> None:
    model, recipe = build_model(), Recipe(**settings)
    tokens = write_tokens(model, TEXTS, tmp_path, progress=False)
    found = needed_rows(model, tokens, ROWS, HELD_OUT, recipe, stores_states)
    if wanted == "all":
        assert found is None
        return
    expected = {*ROWS[:2], *HELD_OUT}
    if "chosen" in wanted:
        expected |= set(choose_sentences(tokens, ROWS, 3, 0, model).tolist())
    if "calibrated" in wanted:
        expected |= set(np.random.default_rng(0).permutation(ROWS)[:2].tolist())
    assert found is not None and found.tolist() == sorted(expected)


def test_entities_read_all_text(tmp_path: Path) -> None:
    model = build_two_selectors()
    tokens = write_tokens(model, TEXTS, tmp_path, progress=False)
    assert needed_rows(model, tokens, ROWS, HELD_OUT, Recipe(**REMOVAL), True) is None
    alone = Recipe(**REMOVAL, entities_epochs=0)
    assert needed_rows(model, tokens, ROWS, HELD_OUT, alone, True) is not None


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("recipe", ["contrastive", "default", "specialise"])
def test_a_run_encodes_nothing_twice(
    recipe: str, arguments: Callable, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra: dict[str, object] = {"max_steps": 2, "held_out": 8, "removal_sentences": 20, "removal_epochs": 1}
    if recipe == "default":
        extra |= {"surface": "false", "model__selector_names": "[meaning]", "model__selector_layer": "[0.0, 1.0]"}
    if recipe == "specialise":
        extra |= {"kinds": 2, "kinds_steps": 2, "model__selector_layer": "{meaning: [0.5, 1.0], kind: 1.0}"}
        extra |= {"selector_names": "[one, other]", "meaning": "null"}
    real, without = StateStore.fetch, []

    def fetch(self: StateStore, rows: np.ndarray, shapes: bool = False, states: bool = True) -> dict:
        batch = real(self, rows, shapes, states)
        if states and "encoded" not in batch:
            without.append(rows)
        return batch

    monkeypatch.setattr(StateStore, "fetch", fetch)
    options = parse_arguments(arguments(recipe=recipe, **extra))
    trainer = Trainer(load_recipe(options.recipe, options.overrides))
    encoded = int(trainer.store.is_encoded(np.arange(len(trainer.store))).sum())
    assert (encoded == len(trainer.store)) == (recipe == "contrastive") and encoded >= 20
    assert trainer.run() and trainer.complete().is_dir()
    assert not without, "all that was read was stored"
