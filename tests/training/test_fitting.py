"""What fits of a selector begin with: the selector of meaning of another checkpoint."""

from __future__ import annotations

import pytest
import torch

from hardkuma.common.models import load_released
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.fitting import take_meaning
from hardkuma.training.recipe import Recipe, load_recipe


def model_of_specialise(**changes: object) -> HardKumaModel:
    recipe = load_recipe("specialise", {"kinds": 2, **changes})
    assert recipe.meaning == "released"
    return HardKumaModel.from_encoder(recipe.encoder, **recipe.model_settings()).eval()


def test_the_meaning_of_a_checkpoint_is_taken_as_it_is() -> None:
    model, (released, tokenizer) = model_of_specialise(), load_released()
    inputs = tokenizer(["Our flight to Oslo was delayed by snow."], return_tensors="pt")
    take_meaning(model, "released")
    with torch.no_grad():
        got, expected = (m.selector_inputs(0, **inputs) for m in (model, released))
        assert torch.equal(got, expected)
        assert torch.equal(model.gate_head.log_odds(0, got), released.gate_head.log_odds(0, expected))


def test_a_meaning_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="selector_hidden_size = 128, and this recipe 32; use the same, or `--mean"):
        take_meaning(model_of_specialise(**{"model.selector_hidden_size": 32}), "released")


def test_a_meaning_that_nobody_would_take_is_refused() -> None:
    with pytest.raises(ValueError, match="objective is 'contrastive'; use objective: removal, or leave meaning out"):
        Recipe(objective="contrastive", meaning="released")
