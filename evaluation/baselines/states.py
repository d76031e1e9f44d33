"""Baselines that read the last layer's token states: their norm, and their cosine to the sentence embedding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...batch_hardkuma import TokenBatch
from ...pooling_hardkuma import normalize
from .encoder import SentenceEncoder, score_tokens
from .words import Span, WordScores


def norm_scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    aggregate: str = "max",
    progress: bool = False,
) -> list[WordScores]:
    """||h_i||: under mean pooling a longer state moves the sentence vector further.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> norm_scores(toy_encoder({"in": [1, 0], "paris": [3, 4]}), ["in Paris"])[0].scores
    [1.0, 5.0]
    """

    @torch.no_grad()
    def value(batch: TokenBatch) -> Tensor:
        return encoder.states(batch).float().norm(dim=-1)

    return score_tokens(encoder, texts, words, value, aggregate, progress, "norm")


def cosine_scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    aggregate: str = "max",
    progress: bool = False,
) -> list[WordScores]:
    """cos(Pool(h_i), Pool(H)): each token pooled by itself, so that projections after pooling apply to both.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> cosine_scores(toy_encoder({"in": [1, 0], "paris": [0, 3]}), ["in Paris"])[0].ranked()[0][0]
    'Paris'
    """

    @torch.no_grad()
    def value(batch: TokenBatch) -> Tensor:
        states = encoder.states(batch)
        length = states.shape[1]
        whole = normalize(encoder.pooled(states, batch.mask[:, None]))  # (batch, 1, dim)
        # One token at a time as a sentence of its own: (batch * length, 1, hidden).
        single = encoder.pooled(states.flatten(0, 1)[:, None], states.new_ones(len(states) * length, 1, 1))
        return (normalize(single).unflatten(0, (-1, length))[:, :, 0] * whole).sum(-1)

    return score_tokens(encoder, texts, words, value, aggregate, progress, "cosine")
