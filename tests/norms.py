"""Tiny encoders whose states differ in length, as those of trained ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hardkuma import HardKumaModel


def with_unequal_norms(model: HardKumaModel) -> HardKumaModel:
    """The model, changed: a layer norm of equal weights makes all states equally long, and `backoff` idle."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.encoder.named_parameters():
            if name.endswith("LayerNorm.weight"):
                parameter.copy_(torch.rand(parameter.shape, generator=generator) ** 3 * 4)
    return model
