"""What every fit of a single selector begins and ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..common.models import load_model
from ..gate_head_hardkuma import Selector
from ..modeling_hardkuma import HardKumaModel


def fresh_selector(model: HardKumaModel, number: int, seed: int) -> Selector:
    """A selector of the model with new random weights, the same for the same seed."""
    selector = model.gate_head.selectors[number]
    assert isinstance(selector, Selector)
    torch.manual_seed(seed)
    for layer in selector.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.reset_parameters()
    return selector


RELEASED = "released"  # what the released gate head is called in recipes
# Settings that two selectors must share if one is to take the other's weights and mean the same by them.
_SHARED = ("selector_inputs", "selector_layer", "selector_unit", "selector_hidden_size")
_SHARED_BY_ALL = ("encoder_fingerprint", "shape_min", "shape_max", "shape_bound", "sampler", "gate_threshold")


def take_meaning(model: HardKumaModel, name: str) -> None:
    """Give the model's selector of meaning the weights of that of another checkpoint.

    Args:
        name: folder or Hub id of the checkpoint; "released" is the released gate head.

    Raises:
        ValueError: if they differ in what the weights belong to.
    """
    other = load_model(None if name == RELEASED else name, device=str(model.device))
    mine, theirs = model.config.find_selector(), other.config.find_selector()
    values = {key: (getattr(model.config, key), getattr(other.config, key)) for key in _SHARED_BY_ALL}
    values |= {key: (model.config.of_selector(key, mine), other.config.of_selector(key, theirs)) for key in _SHARED}
    for key, (wanted, given) in values.items():
        if wanted != given:
            raise ValueError(
                f"meaning: {name!r} has {key} = {given!r}, and this recipe {wanted!r}; use the same, or `--meaning null`, "
                "which trains it."
            )
    model.gate_head.selectors[mine].load_state_dict(other.gate_head.selectors[theirs].state_dict())


@contextmanager
def training_with_dropout(selector: Selector, dropout: float) -> Iterator[None]:
    """While it lasts, the selector trains with this dropout; then it is in eval mode, with its own."""
    selector.train()
    own, selector.dropout = selector.dropout, dropout
    try:
        yield
    finally:
        selector.dropout = own
        selector.eval()
