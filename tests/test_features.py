"""Gates that read an inner layer do not pay for the layers above it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from hardkuma import HardKumaModel
from tests.conftest import FAMILIES, SENTENCES

# Families whose last state is that of the last layer; the others end with a norm and run as a whole.
PLAIN = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert")


def layers_run(model: HardKumaModel, inputs: dict) -> int:
    """How many of the encoder's layers one call runs."""
    number = model.encoder.config.num_hidden_layers
    lists = [m for m in model.encoder.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == number]
    called = []
    hooks = [layer.register_forward_hook(lambda *_: called.append(1)) for layer in (lists[0] if lists else ())]
    model.gate_probabilities(**inputs)
    for hook in hooks:
        hook.remove()
    return len(called)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [-1, -2, 1])
def test_probabilities_are_those_of_a_full_pass(family: str, layer: int, make_model: Callable, tokenize: Callable) -> None:
    if family == "hardkuma_static" and layer != -1:
        pytest.skip("has no layers")
    model = make_model(family, selector_layer=layer)
    inputs = tokenize(model, SENTENCES)
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
    if family in PLAIN:
        assert layers_run(model, inputs) == (2 if layer == -1 else 1)


def test_weights_are_shared_and_counted_once(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1)
    inputs, names = tokenize(model, SENTENCES), list(model.state_dict())
    before = model.gate_probabilities(**inputs)
    assert list(model.state_dict()) == names and len(list(model.parameters())) == len(
        list(copy.deepcopy(model).parameters())
    )
    with torch.no_grad():
        for weight in model.encoder.parameters():
            weight.mul_(1.5)
    after = model.gate_probabilities(**inputs)
    assert not torch.equal(before, after) and torch.equal(after, model(**inputs).gate_probs)
    model.to(torch.float64)
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
    model.encoder = make_model(seed=1).encoder
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)


def test_attention_features_need_the_whole_encoder(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1, selector_inputs=["state", "attention"])
    inputs = tokenize(model, SENTENCES)
    assert layers_run(model, inputs) == 2
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)


def test_selectors_padding_and_surface(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1, num_selectors=2)
    model.gate_head.surface_log_odds[:, 3] = 2.0
    inputs = tokenize(model, SENTENCES)
    shapes = torch.full_like(inputs["input_ids"], 3)
    expected = model(**inputs, surface_ids=shapes).gate_probs
    assert expected.ndim == 3
    assert torch.equal(model.gate_probabilities(**inputs, surface_ids=shapes), expected)
    left = {name: values.flip(1) for name, values in inputs.items()}
    assert torch.equal(model.gate_probabilities(**left), model(**left).gate_probs)


def test_a_broken_encoder_is_reported(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1)
    inputs = tokenize(model, SENTENCES)
    model.gate_probabilities(**inputs)
    with torch.no_grad():
        next(model.encoder.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.gate_probabilities(**inputs)
