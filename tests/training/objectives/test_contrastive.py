"""Selectors that one contrastive objective trains together: what the symmetric KL between their gates does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.evaluation.statistics import spearman
from hardkuma.training.objectives.contrastive import Contrastive
from hardkuma.training.recipe import load_recipe
from hardkuma.training.store import usable_rows
from tests.training.conftest import build_store, make_run

TRAIN = {"objective": "contrastive", "batch_size": 16, "epochs": 20, "max_steps": 80}


def agreement(lambda_kl: float, copies: int, encoder: Path, corpus: Path, folder: Path) -> list[float]:
    """Spearman of the gates of one selector of recipe `dual` with those of its copies, trained from the same weights."""
    recipe = load_recipe("dual", {"model.lambda_kl": lambda_kl})
    values = next(iter(recipe.selector_settings().values()))
    torch.manual_seed(0)
    selectors = {f"copy_{number}": dict(values) for number in range(copies)}
    model = HardKumaModel.from_encoder(str(encoder), **recipe.model, selectors=selectors).eval()
    first, *others = model.gate_head.selectors
    for other in others:
        other.load_state_dict(first.state_dict())
    texts = corpus.read_text().splitlines()
    store = build_store(model, texts, folder / "store", "float32")
    run = make_run(model, TRAIN, store, usable_rows(store, model), output=str(folder))
    assert run.objectives[0].fit(run) and isinstance(run.objectives[0], Contrastive)
    batch = store.read(np.arange(60), model)
    probs = model(**batch.inputs).gate_probs.detach().transpose(0, 1)[:, batch.content].numpy()
    assert probs.mean(1) == pytest.approx([0.2] * copies, abs=0.03), "the rate of each holds"
    return [spearman(probs[0], row) for row in probs[1:]]


@pytest.mark.parametrize("copies", [2, 3])
def test_negative_kl_parts_copies_of_one_selector(
    copies: int, encoder_folder: Path, corpus: Path, tmp_path: Path
) -> None:  # fmt: skip
    assert min(agreement(0.0, copies, encoder_folder, corpus, tmp_path / "off")) > 0.6
    assert np.mean(agreement(-10.0, copies, encoder_folder, corpus, tmp_path / "on")) < 0.3


def test_positive_kl_aligns(encoder_folder: Path, corpus: Path, tmp_path: Path) -> None:
    assert agreement(10.0, 2, encoder_folder, corpus, tmp_path)[0] > 0.85
