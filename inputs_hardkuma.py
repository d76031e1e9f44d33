"""Checking and aligning a tokenised batch, before the encoder sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration_hardkuma import HardKumaConfig
from .encoders_hardkuma import position_limit
from .surface_hardkuma import NUM_SURFACE_CLASSES


@dataclass
class TokenBatch:
    """Checked inputs, padded on the right. All (batch, length)."""

    input_ids: Tensor
    mask: Tensor  # bool
    content: Tensor  # bool
    token_type_ids: Tensor | None
    surface_ids: Tensor | None
    back: Tensor | None  # gather index that restores the caller's padding side
    autocast: bool  # whether the caller wants the encoder in mixed precision

    def restore(self, tensor: Tensor, dim: int) -> Tensor:
        """A tensor with the length at `dim`, (batch, ...), on the caller's padding side again."""
        if self.back is None:
            return tensor
        shape = [len(self.back), *[1] * (tensor.ndim - 1)]
        shape[dim] = self.back.shape[1]
        return tensor.gather(dim, self.back.view(shape).expand_as(tensor))


def tracing() -> bool:
    """Whether a tracer or compiler is watching, for which no decision may depend on values."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


def content_mask(config: HardKumaConfig, input_ids: Tensor, mask: Tensor | None, special: Tensor | None) -> Tensor:
    """c: the attention mask without special tokens, (batch, length) bool.

    >>> config = HardKumaConfig(special_token_ids=[0, 3])
    >>> content_mask(config, torch.tensor([[0, 7, 8, 3]]), torch.tensor([[1, 1, 1, 1]]), None)
    tensor([[False,  True,  True, False]])
    """
    mask = torch.ones_like(input_ids) if mask is None else mask
    if special is None:
        ids = torch.tensor(config.special_token_ids, dtype=input_ids.dtype, device=input_ids.device)
        special = torch.isin(input_ids, ids)
    return mask.bool() & ~special.bool()


def to_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch with every tensor on this device, those inside of nested dicts too.

    >>> to_device({"input_ids": torch.ones(1, 2), "encoded": {"states": torch.ones(1)}}, torch.device("meta"))["encoded"]
    {'states': tensor(..., device='meta', size=(1,))}
    """
    return {
        name: to_device(value, device) if isinstance(value, Mapping) else value.to(device, non_blocking=True)
        for name, value in batch.items()
    }


def attendable(mask: Tensor) -> Tensor:
    """The mask as the encoder gets it. A row without any token would make the attention's softmax NaN: it sees its first
    position instead, which pooling ignores.

    >>> attendable(torch.tensor([[True, False], [False, False]]))
    tensor([[1, 0],
            [1, 0]])
    """
    empty = ~mask.any(-1, keepdim=True)
    first = torch.arange(mask.shape[-1], device=mask.device) == 0
    return (mask | (empty & first)).long()


def prepare(
    config: HardKumaConfig,
    input_ids: Tensor,
    mask: Tensor | None,
    token_type_ids: Tensor | None,
    special: Tensor | None,
    surface_ids: Tensor | None,
) -> TokenBatch:
    """Check shapes, length and classes; move padding to the right."""
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        raise ValueError(
            f"input_ids must be (batch, length) with at least one of each, got {tuple(input_ids.shape)}; "
            "tokenise a non-empty list of texts with padding=True, return_tensors='pt'."
        )
    others = {
        "attention_mask": mask,
        "token_type_ids": token_type_ids,
        "special_tokens_mask": special,
        "surface_ids": surface_ids,
    }
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != input_ids.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} but input_ids has {tuple(input_ids.shape)}; "
                "pass both from the same tokenizer call."
            )
    limit = position_limit(config.encoder_config)
    if limit is not None and input_ids.shape[1] > limit:
        raise ValueError(
            f"input of {input_ids.shape[1]} tokens is longer than the {limit} that the encoder takes; "
            f"tokenise with truncation=True, max_length={config.max_seq_length or limit}, or split the text."
        )
    if surface_ids is not None and not _known(surface_ids):
        raise ValueError(f"surface_ids must lie in [0, {NUM_SURFACE_CLASSES - 1}]; make them with surface_batch.")
    content = content_mask(config, input_ids, mask, special)
    mask = torch.ones_like(content) if mask is None else mask.bool()
    tensors = [input_ids, mask, content, token_type_ids, surface_ids]
    # Absolute positions count from the left: padding there would change the encoder's result.
    lead = mask.int().argmax(1)
    back = None
    if not tracing() and bool(lead.any()):
        place = torch.arange(mask.shape[1], device=mask.device)
        ahead, back = (place + lead[:, None]) % mask.shape[1], (place - lead[:, None]) % mask.shape[1]
        tensors = [None if tensor is None else tensor.gather(1, ahead) for tensor in tensors]
    return TokenBatch(*tensors, back=back, autocast=torch.is_autocast_enabled(mask.device.type))


def _known(surface_ids: Tensor) -> bool:
    return tracing() or bool(((surface_ids >= 0) & (surface_ids < NUM_SURFACE_CLASSES)).all())
