"""A run before its first step: what it encodes, whose output folder it takes, and signals."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardkuma.training import criterion
from hardkuma.training import run as run_module
from hardkuma.training.arguments import parse_arguments
from hardkuma.training.objectives import parts as parts_module
from hardkuma.training.recipe import Recipe, load_recipe
from hardkuma.training.report import save_run
from hardkuma.training.run import InterruptFlag, Run, check_output, needed_rows, start_run
from hardkuma.training.store import StateStore, write_tokens
from hardkuma.training.words import choose_sentences
from tests.conftest import SENTENCES, build_model

TEXTS = [*SENTENCES, *[f"the museum in paris opened {w}" for w in ("1891", "2020", "in london", "again", "today")], "a b"]
ROWS, HELD_OUT = np.arange(len(TEXTS))[2:], np.arange(2)
REMOVAL = {"objective": "removal", "sentences": 3}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "COMPARED", 2)
    monkeypatch.setattr(criterion, "SENTENCES", 2)
    monkeypatch.setattr(criterion, "SENTENCES_OF_PARTS", 4)
    monkeypatch.setattr(parts_module, "SENTENCES", 20)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("trains", "surface", "stores_states", "wanted"),
    [
        ([{"objective": "contrastive"}], False, True, "all"),
        ([{"objective": "contrastive"}], False, False, "all"),
        ([{"objective": "contrastive", "batches": "random"}], False, True, "all"),
        ([{"objective": "contrastive", "batches": "random"}], False, False, "compared"),
        ([REMOVAL], True, True, "all"),
        ([REMOVAL], True, False, "chosen"),
        ([REMOVAL], False, True, "chosen and calibrated"),
        ([REMOVAL, {"objective": "form"}], False, True, "all"),
        ([REMOVAL, {"objective": "form"}], False, False, "chosen"),
        ([{"objective": "copy"}], False, True, "calibrated"),
        ([{"objective": "copy"}], False, False, "compared"),
    ],
)
def test_needed(trains: list[dict], surface: bool, stores_states: bool, wanted: str, tmp_path: Path) -> None:
    selectors = {f"s{number}": {"train": train} for number, train in enumerate(trains)}
    recipe = Recipe(selectors=selectors, surface=surface)
    run = Run(recipe, build_model(selectors=recipe.selector_settings()))
    tokens = write_tokens(run.model, TEXTS, tmp_path, progress=False)
    found = needed_rows(run, tokens, ROWS, HELD_OUT, stores_states)
    if wanted == "all":
        assert found is None
        return
    expected = {*ROWS[:2], *HELD_OUT}
    if "chosen" in wanted:
        expected |= set(choose_sentences(tokens, ROWS, 3, 0, run.model).tolist())
    if "calibrated" in wanted:
        expected |= set(np.random.default_rng(0).permutation(ROWS)[:2].tolist())
    assert found is not None and found.tolist() == sorted(expected)


def recipe_of(words: list[str]) -> Recipe:
    options = parse_arguments(words)
    assert not isinstance(options, str)
    return load_recipe(options.recipe, options.overrides)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["contrastive", "default", "parts"])
def test_a_run_encodes_nothing_twice(name: str, arguments: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    extra: dict[str, Any] = {"held_out": 8}
    if name == "contrastive":
        extra |= {"train.max_steps": 2}
    if name == "default":
        extra |= {"surface": "false", "selectors.entities": "null", "train.sentences": 20}
    if name == "parts":
        extra |= {"train.names": "[one, other]", "train.sentences": 20}
    real, without = StateStore.fetch, []

    def fetch(self: StateStore, rows: np.ndarray, forms: bool = False, states: bool = True) -> dict:
        batch = real(self, rows, forms, states)
        if states and "encoded" not in batch:
            without.append(rows)
        return batch

    monkeypatch.setattr(StateStore, "fetch", fetch)
    run = start_run(recipe_of(arguments(recipe=name, **extra)))
    encoded = int(run.store.is_encoded(np.arange(len(run.store))).sum())
    assert (encoded == len(run.store)) == (name == "contrastive") and encoded >= 20
    assert all(objective.fit(run) for objective in run.objectives)
    run.adapt_surface()
    assert save_run(run).is_dir() and not without, "all that was read was stored"


# ---- the output folder ------------------------------------------------------------------------------------------------


def recipe_into(folder: Path, **keys: Any) -> Recipe:
    return Recipe(selectors={"meaning": {"train": {"objective": "contrastive"}}}, output=str(folder), **keys)


def test_a_folder_that_another_recipe_has_used_is_left_alone(tmp_path: Path) -> None:
    check_output(recipe_into(tmp_path / "new"), resume=False, overwrite=False)
    mine, other = recipe_into(tmp_path), recipe_into(tmp_path, seed=1)
    other.save(tmp_path / "model" / "recipe.yaml")
    for resume in (False, True):
        with pytest.raises(ValueError, match="was made by another recipe: use another --output, or --overwrite to repl"):
            check_output(mine, resume, overwrite=False)
    check_output(mine, resume=False, overwrite=True)
    check_output(other, resume=False, overwrite=False)
    (tmp_path / "model" / "recipe.yaml").unlink()
    with pytest.raises(ValueError, match="was made by another recipe"):
        check_output(mine, resume=False, overwrite=False)


def test_checkpoints_are_not_thrown_away(tmp_path: Path) -> None:
    mine, other = recipe_into(tmp_path), recipe_into(tmp_path, seed=1)
    mine.save(tmp_path / "recipe.yaml")
    (tmp_path / "checkpoints" / "step-00000005").mkdir(parents=True)
    check_output(mine, resume=False, overwrite=False)  # one that was never finished is nothing
    (tmp_path / "checkpoints" / "step-00000005" / "progress.json").write_text("{}")
    with pytest.raises(ValueError, match="has checkpoints of an unfinished run: go on with --resume, or start over with"):
        check_output(mine, resume=False, overwrite=False)
    check_output(mine, resume=True, overwrite=False)
    check_output(mine, resume=False, overwrite=True)
    with pytest.raises(ValueError, match="differs from this recipe"):
        check_output(other, resume=True, overwrite=False)


# ---- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_noted_and_the_second_acts_as_before(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, frame: heard.append(number))
    try:
        with InterruptFlag() as interrupt:
            assert not interrupt.is_set
            signal.raise_signal(number)
            assert interrupt.is_set and heard == []
            signal.raise_signal(number)
            assert heard == [number]
        signal.raise_signal(number)
        assert heard == [number, number]
    finally:
        signal.signal(number, before)


def test_handlers_come_back_when_nothing_happened() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with InterruptFlag() as interrupt:
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not interrupt.is_set
