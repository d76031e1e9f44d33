"""The objective `copy`: the selector of another checkpoint, as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hardkuma.common.models import load_released
from hardkuma.data import bundled_texts
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.criterion import mean_rate
from hardkuma.training.recipe import load_recipe
from hardkuma.training.run import Run
from tests.training.conftest import build_store

TEXT = "Our flight to Oslo was delayed by snow."


def run_of_parts(**changes: Any) -> Run:
    recipe = load_recipe("parts", {"train.count": 2, **changes})
    model = HardKumaModel.from_encoder(recipe.encoder, **recipe.config_settings()).eval()
    return Run(recipe, model)


def test_the_selector_of_a_checkpoint_is_taken_as_it_is(tmp_path: Any) -> None:
    run, (released, tokenizer) = run_of_parts(), load_released()
    run.rows = np.arange(60)
    run.store = build_store(run.model, list(bundled_texts())[:60], tmp_path, "float16")
    copy = run.objectives[0]
    copy.check(run)
    assert copy.fit(run)
    inputs = tokenizer([TEXT], return_tensors="pt")
    with torch.no_grad():
        got, expected = (model.selector_inputs(0, **inputs)[0] for model in (run.model, released))
        assert torch.equal(got, expected), "its table of isolated tokens came along"
        assert torch.equal(run.model.gate_head.log_odds(0, got), released.gate_head.log_odds(0, expected))
    assert float(mean_rate(run.model, run.store, run.rows)[0]) == pytest.approx(0.3, rel=0.05), (
        "its rate is that of this text"
    )
    assert copy.report(run).paragraph == "Gates of `meaning`: those of the head that comes with hardkuma, not trained here."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selectors.meaning.hidden_size": 32}, "'released' has selectors.meaning.hidden_size = 128, and this recipe 32"),
        ({"model.concentration_min": 0.2}, "'released' has concentration_min = 0.1, and this recipe 0.2; use the same, or"),
        (
            {"selectors.meaning.train.checkpoint": "/absent"},
            "selectors.meaning.train.checkpoint cannot be loaded: .*/absent",
        ),
    ],
)
def test_a_selector_of_another_make_is_refused(changes: dict[str, Any], message: str) -> None:
    run = run_of_parts(**changes)
    with pytest.raises(ValueError, match=message):
        run.objectives[0].check(run)
