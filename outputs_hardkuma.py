"""What goes into and comes out of a forward pass beside the tokens: the output, stored encoder states, training options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class HardKumaOutput(ModelOutput):
    """What a forward pass returns. With K > 1 selectors, shapes marked [K] gain a selector axis after the batch.

    Attributes:
        loss: () weighted sum of `losses`, with `return_loss=True`.
        losses: each unweighted term by name, () or (K,).
        last_hidden_state: (batch, length, hidden) the encoder's token states; the first tensor, as stock tools expect.
        gates: (batch, [K,] length) 0/1 in eval, relaxed in training; 0 on special and padding tokens.
        gate_probs: (batch, [K,] length) closed-form selection probability, same zeros.
        anchor_embedding: (batch, dim) the encoder's own sentence embedding, never filtered.
        rationale_embedding, complement_embedding: (batch, [K,] dim) of the selected and of the other tokens.
        alpha, beta: (batch, [K,] length) shapes of the gates; see `HardKumaModel.gate_distribution`.
        hidden_states: of every layer, the embeddings first, with `output_hidden_states=True`.
        attentions: (batch, heads, length, length) of every layer, with `output_attentions=True`.
    """

    loss: Tensor | None = None
    losses: dict[str, Tensor] | None = None
    last_hidden_state: Tensor | None = None
    gates: Tensor | None = None
    gate_probs: Tensor | None = None
    anchor_embedding: Tensor | None = None
    rationale_embedding: Tensor | None = None
    complement_embedding: Tensor | None = None
    alpha: Tensor | None = None
    beta: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class EncodedTokens(TypedDict, total=False):
    """One encoder pass over a batch: `HardKumaModel.encode_tokens` gives it, `forward` takes it back as `encoded`."""

    states: Tensor  # (batch, length, hidden) the last states
    layer_states: Tensor  # (batch, length, layers x hidden) of `config.inner_layers`, where selectors read any
    attention: Tensor  # (batch, length, 2) attention received and given, where the selector reads it
    anchor: Tensor  # (batch, dim) the sentence embedding; `forward` pools it again


class TrainingOptions(TypedDict, total=False):
    """What a training loop hands to `HardKumaModel.forward` beside the tokens."""

    noise: Tensor | None  # (batch, K, length) uniform noise for the training gates, drawn if not given
    encoded: EncodedTokens | None  # what `encode_tokens` gave for these inputs earlier, to save the encoder's pass
    return_rows: bool  # return `LossRows` instead, for a loss over several forward passes (see `losses_of`)
