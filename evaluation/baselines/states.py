"""Baselines that read the last layer's token states: their norm, and their cosine to the sentence embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from ...batch_hardkuma import TokenBatch
from ...pooling_hardkuma import normalize
from .encoder import SentenceEncoder


@torch.no_grad()
def norms(encoder: SentenceEncoder, batch: TokenBatch) -> Tensor:
    """(batch, length): ||h_i||; under mean pooling a longer state moves the sentence vector further."""
    return encoder.states(batch).float().norm(dim=-1)


@torch.no_grad()
def cosines(encoder: SentenceEncoder, batch: TokenBatch) -> Tensor:
    """(batch, length): cos(Pool(h_i), Pool(H)), each token pooled by itself, so that projections after pooling apply to
    both."""
    states = encoder.states(batch)
    length = states.shape[1]
    whole = normalize(encoder.pooled(states, batch.mask[:, None]))  # (batch, 1, dim)
    # One token at a time as a sentence of its own: (batch * length, 1, hidden).
    single = encoder.pooled(states.flatten(0, 1)[:, None], states.new_ones(len(states) * length, 1, 1))
    return (normalize(single).unflatten(0, (-1, length))[:, :, 0] * whole).sum(-1)
