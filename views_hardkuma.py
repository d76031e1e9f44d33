"""The three views: where the embedding of a rationale, or of its complement, comes from.

    hidden      Pool(H, m g), over contextual states, as first written
    input       Pool(E - mean, c g), over the encoder's input embeddings
    reencode    the encoder's own embedding of the kept tokens, without the others

Pooling, projections, frequency filter and normalisation are the same for all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention_hardkuma import AttentionTap, run_encoder
from .inputs_hardkuma import TokenBatch, attendable
from .pooling_hardkuma import frequency_filter, normalize, pool

# A removed token's g in the attention of `reencode` while training. Attention logits of sharp encoders differ by 20 and
# more, so it must be small for the token to vanish; the gradient a / g of the weight a that is left stays of ordinary size.
GATE_FLOOR = 1e-15


def finish(model: Any, vectors: Tensor, project: bool = True) -> Tensor:
    """From pooled vectors (..., hidden) to embeddings (..., dim)."""
    for projection in model.projections if project else ():
        vectors = projection(vectors)
    config = model.config
    vectors = frequency_filter(vectors, config.frequency_filter, config.frequency_low, config.frequency_high)
    return normalize(vectors) if config.normalize else vectors


def both_sides(
    model: Any, batch: TokenBatch, states: Tensor, embeddings: Tensor, gates: Tensor, anchor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The anchor to compare with, (batch, dim), and rationale and complement, (batch, K, dim)."""
    count, sides = gates.shape[1], [gates, 1 - gates]
    if model.config.view != "input":
        vectors = through(model, batch, states, embeddings, torch.cat(sides, dim=1))
        return anchor, vectors[:, :count], vectors[:, count:]
    # Input embeddings live in a space of their own, so the anchor is pooled from them too.
    vectors = through(model, batch, states, embeddings, torch.cat([torch.ones_like(gates[:, :1]), *sides], dim=1))
    return vectors[:, 0], vectors[:, 1 : count + 1], vectors[:, count + 1 :]


def through(model: Any, batch: TokenBatch, states: Tensor, embeddings: Tensor, gates: Tensor) -> Tensor:
    """The sentences through gates (batch, sets, length), or through 1 - gates: (batch, sets, dim)."""
    modes = model.config.pooling_modes
    mask, content = batch.mask[:, None].float(), batch.content[:, None].float()
    if model.config.view == "hidden":
        # As written: special tokens have g = 0, so they are part of the complement.
        return finish(model, pool(states, mask * gates, modes))
    if model.config.view == "input":
        centred = embeddings.float() - model.gate_head.input_center.float()
        return finish(model, pool(centred, content * gates, modes), project=False)
    # Special tokens always stay, as they would around a shorter sentence.
    return reencode(model, batch, mask * (1 - content) + content * gates)


def reencode(model: Any, batch: TokenBatch, kept: Tensor) -> Tensor:
    """Run the encoder on gated inputs. kept: (batch, sets, length) in [0, 1] -> (batch, sets, dim)."""
    sets = kept.shape[1]
    rows = kept.flatten(0, 1)
    ids = batch.input_ids.repeat_interleave(sets, 0)
    types = None if batch.token_type_ids is None else batch.token_type_ids.repeat_interleave(sets, 0)
    if model.training:
        tap = AttentionTap(key_bias=torch.log(rows * (1 - GATE_FLOOR) + GATE_FLOOR))
        mask = attendable(batch.mask).repeat_interleave(sets, 0)
    else:
        tap, mask = None, attendable(rows > 0)  # hard gates: the removed tokens are simply not there
    with torch.autocast(device_type=ids.device.type, enabled=batch.autocast):
        states = run_encoder(model.encoder, ids, mask, types, tap).last_hidden_state
    vectors = pool(states, rows[:, None], model.config.pooling_modes)
    return finish(model, vectors[:, 0].unflatten(0, (-1, sets)))
