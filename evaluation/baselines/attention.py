"""Attention baselines: attention received, and attention rollout. The encoder runs sdpa; a tap keeps the weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ...attention_hardkuma import AttentionTap, run_encoder
from ...batch_hardkuma import TokenBatch, attendable
from ...configuration_hardkuma import check_choice
from .encoder import SentenceEncoder


class HeadMeans(AttentionTap):
    """A tap that keeps each layer's attention averaged over heads, (batch, query, key), while the encoder runs sdpa."""

    def __init__(self, content: Tensor, layers: frozenset[int]):
        super().__init__(content=content, layers=layers)
        self.means: list[Tensor] = []
        self.heads = 0

    def keep(self, weights: Tensor) -> None:
        self.means.append(weights.mean(1))
        self.heads = weights.shape[1]


def layer_attentions(encoder: SentenceEncoder, batch: TokenBatch) -> tuple[Tensor, int]:
    """Attention of every layer averaged over heads, (layers, batch, query, key), fp32, and the number of heads.

    Rows of padding queries are zero.
    """
    number = encoder.encoder.config.num_hidden_layers
    if number == 0:
        raise ValueError(
            f"{type(encoder.encoder).__name__} has no attention; use a transformer encoder, or another method."
        )
    tap = HeadMeans(content=batch.content, layers=frozenset(range(number)))
    encoder.passes.forward += len(batch.mask)
    run_encoder(encoder.encoder, batch.input_ids, attendable(batch.mask), batch.token_type_ids, tap)
    return torch.stack(tap.means).float() * batch.mask[:, :, None], tap.heads


@torch.no_grad()
def received(encoder: SentenceEncoder, batch: TokenBatch) -> Tensor:
    """(batch, length): a_i = sum over layers, heads and queries of the attention that token i receives, the "naive"
    aggregation of Attention-Driven Dropout.
    """
    attention, heads = layer_attentions(encoder, batch)
    return attention.sum((0, 2)) * heads


@torch.no_grad()
def rolled(encoder: SentenceEncoder, batch: TokenBatch, layers: str = "last") -> Tensor:
    """(batch, length): how much of all tokens' final states traces back to input token i (Abnar and Zuidema, 2020).

    With A_l averaged over heads and B_l = (A_l + I) / 2 for the residual connection, R_l = B_l R_{l-1}, R_0 = I;
    the score of i is the sum over queries of R_{L, q i} ("last"), or of every R_l ("all", as in Attention-Driven
    Dropout).
    """
    check_choice("layers", layers, ("last", "all"))
    attention, _ = layer_attentions(encoder, batch)
    identity = torch.eye(attention.shape[-1], device=attention.device)
    joint, total = identity.expand_as(attention[0]), torch.zeros_like(attention[0])
    for weights in attention:
        joint = ((weights + identity) / 2) @ joint
        total = total + joint
    rows = (joint if layers == "last" else total) * batch.mask[:, :, None]
    return rows.sum(1)
