"""The gates of a HardKumaModel, as one more method: one forward pass, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..surface_hardkuma import surface_ids
from .encoder import SentenceEncoder, TokenBatch, Tokens
from .words import Span, WordScores, text_words, tokens_of_words
from .words import aggregate as to_words


def scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    surface: bool = False,
    aggregate: str = "max",
    progress: bool = False,
) -> list[WordScores]:
    """Selection probability of each word; `selected` is the model's own decision.

    Args:
        encoder: made with `SentenceEncoder.from_model`. Several selectors count as one that selects what any selects.
        surface: give the model the shape of the words (the surface view).

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    >>> result = scores(SentenceEncoder.from_model(model), ["Marie Curie moved to Paris."])[0]
    >>> len(result.scores), len(result.selected)
    (5, 5)
    """
    if encoder.model is None:
        raise ValueError("gates need a HardKuma model, and this is a bare encoder; use SentenceEncoder.from_model(model).")
    spans, tokens = text_words(texts, words), encoder.tokenize(texts)
    probabilities: list[list[float]] = [[0.0] * len(item) for item in tokens]
    decisions: list[list[bool]] = [[False] * len(item) for item in tokens]
    for batch in encoder.batches(tokens, progress, "gates"):
        probs, gates = _run(encoder, batch, [tokens[i] for i in batch.index] if surface else None)
        for row, i in enumerate(batch.index):
            probabilities[i] = probs[row, : len(tokens[i])].tolist()
            decisions[i] = (gates[row, : len(tokens[i])] > 0).tolist()
    results = []
    for i, item in enumerate(tokens):
        members = tokens_of_words(item.text, item.offsets, item.content, spans[i])
        results.append(to_words(item.text, spans[i], members, probabilities[i], aggregate, decisions[i]))
    return results


@torch.no_grad()
def _run(encoder: SentenceEncoder, batch: TokenBatch, shapes: list[Tokens] | None) -> tuple[Tensor, Tensor]:
    """(batch, length) probabilities and decisions of the union of the selectors."""
    ids = None
    if shapes is not None:
        length = batch.ids.shape[1]
        rows = [surface_ids(item.text, item.offsets) + [0] * (length - len(item)) for item in shapes]
        ids = torch.tensor(rows, device=batch.ids.device)
    encoder.passes.forward += len(batch.ids)
    probs = encoder.model.gate_probabilities(batch.ids, batch.mask.long(), batch.types, surface_ids=ids)
    gates = (probs > encoder.model.config.decision_threshold).float()
    if probs.ndim == 3:
        probs, gates = 1 - (1 - probs).prod(1), gates.amax(1)
    return probs, gates
