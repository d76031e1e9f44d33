"""Training on a device that is none, against the CPU: whole runs, to the last phase before the folder is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

from hardkuma.training import resuming
from hardkuma.training.arguments import parse_arguments
from hardkuma.training.recipe import load_recipe
from hardkuma.training.trainer import Trainer
from tests.device_cases import Case, run_cases
from tests.forks import ForkServer

NAMES = ("paris", "berlin", "london", "marie", "curie", "einstein", "google", "apple", "nasa")
REMOVAL = {"recipe": "default", "removal_epochs": 1, "removal_sentences": 60, "model.selector_layer": "[0.0, 1.0]"}
CONTRASTIVE = {"recipe": "contrastive", "model.selector_layer": 1, "max_steps": 3, "model.rate_constraint": "lagrangian"}
RUNS: dict[str, dict[str, Any]] = {
    "neighbours": CONTRASTIVE,
    "live": {**CONTRASTIVE, "cache": "never", "batches": "length"},
    "attention": {**CONTRASTIVE, "recipe": "attention", "batches": "random"},
    "thawed, in parts, with dropout": {
        **CONTRASTIVE,
        "model.freeze_encoder": "false",
        "micro_batch": 4,
        "model.selector_dropout": 0.2,
    },
    "mixed precision": {**CONTRASTIVE, "mixed_precision": "bf16", "cache": "never"},
    "removal and entities": REMOVAL,
    "removal, live": {**REMOVAL, "cache": "never"},
    "kinds": {
        **REMOVAL,
        "recipe": "specialise",
        "meaning": "null",
        "kinds": 2,
        "kinds_steps": 2,
        "selector_names": "[one, other]",
        "model.selector_layer": "{meaning: [0.5, 1.0], kind: 1.0}",
    },
}


def train(device: torch.device, folder: Path, settings: dict[str, Any], common: dict[str, Any]) -> Any:
    """The gate head after all phases."""
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(cpu=True).device = device
    values = {**common, **settings, "output": folder}
    words = [str(values.pop("recipe"))]
    for key, value in values.items():
        words += [f"--{key}", str(value)]
    options = parse_arguments(words)
    recipe = load_recipe(options.recipe, options.overrides)
    trainer = Trainer(recipe)
    assert trainer.base.device.type == device.type and trainer.run()
    saved = resuming.checkpoints(folder / "checkpoints")
    if recipe.objective == "contrastive":
        trainer._save_checkpoint()
        saved = resuming.checkpoints(folder / "checkpoints")
        progress, best = resuming.load_checkpoint(saved[-1], trainer.base, trainer.optimizer)
        assert progress.step == trainer.progress.step and best is not None
    trainer.finish_gates()
    logged = {f"{i}/{key}": value for i, entry in enumerate(trainer.progress.history) for key, value in entry.items()}
    if recipe.mixed_precision != "no" or trainer.base.config.kinds:
        return sorted(logged)  # devices round in half precision, and draw weights of new layers, in their own ways
    weights = {name: value.cpu() for name, value in trainer.base.gate_head.state_dict().items()}
    assert weights.pop("surface_log_odds").any() == recipe.surface  # of rare classes it is too sensitive to be compared
    return weights, logged


def make_cases(encoder: str, text: str) -> dict[str, Case]:
    common = {"encoder": encoder, "data": f"[{text}]", "split_sentences": "false", "batch_size": 16, "held_out": 16}
    common |= {"evaluate_every": 2, "log_every": 1, "epochs": 2}
    return {name: partial(train, settings=settings, common=common) for name, settings in RUNS.items()}


@pytest.fixture(scope="module")
def outcomes(
    forks: ForkServer, encoder_folder: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("devices")
    lines = corpus.read_text().splitlines()[:100]
    cased = [" ".join(word.title() if word in NAMES else word for word in line.split()) for line in lines]
    (folder / "text.txt").write_text("\n".join(cased) + "\n")
    return run_cases(forks, "tests.training.test_devices", folder, encoder_folder, folder / "text.txt")


@pytest.mark.parametrize("name", RUNS)
def test_the_device_trains_what_the_cpu_trains(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "", outcomes[name]
