"""Which layers of an encoder start anew and which stay as they are; what is random without disturbing the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from ...encoder_hardkuma import build_encoder, layer_list


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, everything random follows from the seed; afterwards processor and device go on as if nothing had been drawn.

    >>> with seeded(3, torch.device("cpu")):
    ...     one = torch.rand(2)
    >>> with seeded(3, torch.device("cpu")):
    ...     print(torch.equal(one, torch.rand(2)))
    True
    """
    # torch.manual_seed seeds every device, and the run has this one alone.
    own = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(own, device_type=device.type):
        torch.manual_seed(seed)
        yield


def layers_of(encoder: PreTrainedModel) -> nn.ModuleList:
    """The encoder's layers, lowest first."""
    path = layer_list(encoder)
    if path is None:
        raise ValueError(f"{type(encoder).__name__} has no list of layers: leave reset_layers and freeze_layers at 0.")
    return cast(nn.ModuleList, encoder.get_submodule(path))


def reset_top_layers(encoder: PreTrainedModel, number: int, seed: int) -> None:
    """Give the top `number` layers the random weights of a new encoder, the same for the same seed."""
    if number == 0:
        return
    layers = layers_of(encoder)
    _check("reset_layers", number, len(layers))
    with seeded(seed, encoder.device):
        fresh = layers_of(build_encoder(encoder.config))
    for layer, new in list(zip(layers, fresh, strict=True))[-number:]:
        layer.load_state_dict(new.state_dict())


def freeze_lower_layers(encoder: PreTrainedModel, number: int) -> None:
    """Take everything below layer `number`, the embeddings among it, out of training. Their dropout goes on."""
    if number == 0:
        return
    layers = layers_of(encoder)
    _check("freeze_layers", number, len(layers))
    above = {id(parameter) for layer in layers[number:] for parameter in layer.parameters()}
    for parameter in encoder.parameters():
        parameter.requires_grad_(id(parameter) in above)


def _check(name: str, number: int, layers: int) -> None:
    if number > layers:
        raise ValueError(f"{name} must be <= {layers}, the number of this encoder's layers, got {number}.")


def switch_off_dropout(encoder: PreTrainedModel) -> None:
    """No dropout in training either: two views of a sentence that no augmentation changes are then the same."""
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):  # ModernBERT's attention has no module for it
                setattr(module, name, 0.0)
