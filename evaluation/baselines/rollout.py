"""Attention rollout (Abnar and Zuidema, 2020): attention traced back through the layers to the input tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...configuration_hardkuma import check_choice
from .attention import layer_attentions
from .encoder import PaddedTokens, SentenceEncoder, score_tokens
from .words import Span, WordScores


@torch.no_grad()
def rolled(encoder: SentenceEncoder, batch: PaddedTokens, layers: str = "last", residual: bool = True) -> Tensor:
    """(batch, length): how much of all tokens' final states traces back to input token i.

    With A_l averaged over heads and B_l = (A_l + I) / 2 for the residual connection, R_l = B_l R_{l-1}, R_0 = I;
    the score of i is the sum over queries of R_{L, q i} ("last"), or of every R_l ("all", as in Attention-Driven
    Dropout).

    >>> from hardkuma.evaluation.baselines.toy import toy_transformer
    >>> encoder = toy_transformer(["in", "paris"])
    >>> batch = next(encoder.batches(encoder.tokenize(["in Paris"])))
    >>> rolled(encoder, batch).sum().round().item()  # every token's state traces back to 1 in all
    4.0
    """
    check_choice("layers", layers, ("last", "all"))
    attention, _ = layer_attentions(encoder, batch)
    identity = torch.eye(attention.shape[-1], device=attention.device)
    joint, total = identity.expand_as(attention[0]), torch.zeros_like(attention[0])
    for weights in attention:
        joint = ((weights + identity) / 2 if residual else weights) @ joint
        total = total + joint
    rows = (joint if layers == "last" else total) * batch.mask[:, :, None]
    return rows.sum(1)


def scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    layers: str = "last",
    residual: bool = True,
    aggregate: str = "max",
    progress: bool = False,
) -> list[WordScores]:
    """Rollout summed over the queries.

    Args:
        layers: "last" (Abnar and Zuidema) or "all" (summed over layers, as in Attention-Driven Dropout).
        residual: account for the residual connection.

    >>> from hardkuma.evaluation.baselines.toy import toy_transformer
    >>> scores(toy_transformer(["in", "paris"]), ["in Paris"])[0].words
    [(0, 2), (3, 8)]
    """
    return score_tokens(
        encoder, texts, words, lambda batch: rolled(encoder, batch, layers, residual), aggregate, progress, "rollout"
    )
