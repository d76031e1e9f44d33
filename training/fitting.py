"""What every fit of a single selector begins and ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..modeling_hardkuma import HardKumaModel
from ..selectors_hardkuma import Selector


def fresh_selector(model: HardKumaModel, number: int, seed: int) -> Selector:
    """A selector of the model with new random weights, the same for the same seed."""
    selector = model.gate_head.selectors[number]
    assert isinstance(selector, Selector)
    torch.manual_seed(seed)
    for layer in selector.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.reset_parameters()
    return selector


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
