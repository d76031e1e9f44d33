"""Norm of the token state: under mean pooling a longer state moves the sentence vector further."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .encoder import PaddedTokens, SentenceEncoder, score_tokens
from .words import Span, WordScores


def scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    aggregate: str = "max",
    progress: bool = False,
) -> list[WordScores]:
    """||h_i|| of the last layer's states.

    >>> from hardkuma.evaluation.baselines.toy import toy_encoder
    >>> scores(toy_encoder({"in": [1, 0], "paris": [3, 4]}), ["in Paris"])[0].scores
    [1.0, 5.0]
    """

    @torch.no_grad()
    def value(batch: PaddedTokens) -> Tensor:
        return encoder.states(batch.ids, batch.mask, batch.types).float().norm(dim=-1)

    return score_tokens(encoder, texts, words, value, aggregate, progress, "norm")
