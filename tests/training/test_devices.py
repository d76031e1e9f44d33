"""Training on a device that is none, against the CPU: whole runs, to the last phase before the folder is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

from hardkuma.training.arguments import parse_arguments
from hardkuma.training.loop import checkpoints, load_last_checkpoint
from hardkuma.training.objectives.contrastive import Contrastive
from hardkuma.training.recipe import load_recipe
from hardkuma.training.run import start_run
from tests.device_cases import Case, run_cases
from tests.forks import ForkServer

REMOVAL = {
    "recipe": "default",
    "selectors.meaning.train": "{objective: removal, sentences: 60, epochs: 1}",
    "selectors.meaning.layer": "[0.0, 1.0]",
    "selectors.entities.layer": "[0.0, 1.0]",
}
CONTRASTIVE = {
    "recipe": "contrastive",
    "selectors.meaning.layer": 1,
    "selectors.meaning.reads": "[state]",  # measures are divided by their spread, which is tiny for a random encoder
    "train.batch_size": 16,
    "train.max_steps": 3,
    "train.evaluate_every": 2,
    "train.log_every": 1,
    "train.epochs": 2,
}
RUNS: dict[str, dict[str, Any]] = {
    "neighbours": CONTRASTIVE,
    "live": {**CONTRASTIVE, "cache": "never", "train.batches": "random"},
    "attention": {**CONTRASTIVE, "recipe": "attention", "train.batches": "random"},
    "thawed, in parts": {**CONTRASTIVE, "model.freeze_encoder": "false", "train.micro_batch": 4},
    "mixed precision": {**CONTRASTIVE, "train.mixed_precision": "bf16", "cache": "never"},
    "removal and form": REMOVAL,
    "removal and form, live": {**REMOVAL, "cache": "never"},
    "parts": {
        "recipe": "parts",
        "selectors.meaning.train": REMOVAL["selectors.meaning.train"],
        "selectors.meaning.layer": "[0.5, 1.0]",
        "train.count": 2,
        "train.steps": 2,
        "train.names": "[one, other]",
    },
}


def train(device: torch.device, folder: Path, settings: dict[str, Any], common: dict[str, Any]) -> Any:
    """The gate head after all objectives."""
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(cpu=True).device = device
    values = {**common, **settings, "output": folder}
    words = [str(values.pop("recipe"))]
    for key, value in values.items():
        words += [f"--{key}", str(value)]
    options = parse_arguments(words)
    recipe = load_recipe(options.recipe, options.overrides)
    run = start_run(recipe)
    assert run.model.device.type == device.type
    for objective in run.objectives:
        assert objective.fit(run)
        if isinstance(objective, Contrastive):
            fitting = objective.fitting
            fitting._save_checkpoint()
            assert len(checkpoints(folder / "checkpoints")) == 1
            progress, best = load_last_checkpoint(folder / "checkpoints", run.model, fitting.optimizer, print)
            assert progress.step == fitting.progress.step and best is not None
    run.adapt_surface()
    logged = {f"{i}/{key}": value for i, entry in enumerate(run.history) for key, value in entry.items()}
    if options.overrides.get("train.mixed_precision") or run.model.config.parts:
        return sorted(logged)  # devices round in half precision, and draw weights of new layers, in their own ways
    weights = {name: value.cpu() for name, value in run.model.gate_head.state_dict().items()}
    assert weights.pop("surface_log_odds").any() == recipe.surface  # of rare classes it is too sensitive to be compared
    for name in [name for name in weights if name.startswith("isolated")]:
        del weights[name]  # where two directions matter alike, rounding turns them; what selectors read of them is the same
    return weights, logged


def make_cases(encoder: str, text: str) -> dict[str, Case]:
    common = {"encoder": encoder, "data": f"[{text}]", "split_sentences": "false", "held_out": 16}
    return {name: partial(train, settings=settings, common=common) for name, settings in RUNS.items()}


@pytest.fixture(scope="module")
def outcomes(
    forks: ForkServer, encoder_folder: Path, cased: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("devices")
    (folder / "text.txt").write_text("\n".join(cased.read_text().splitlines()[:100]) + "\n")
    return run_cases(forks, "tests.training.test_devices", folder, encoder_folder, folder / "text.txt")


@pytest.mark.parametrize("name", RUNS)
def test_the_device_trains_what_the_cpu_trains(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "", outcomes[name]
