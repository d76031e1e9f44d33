"""How important the tokens of a sentence are, by the measures that augmentations go by: attention, rollout, gates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...batch_hardkuma import TokenBatch
from ...common.arguments import find_named
from ...configuration_hardkuma import MEANING
from ...evaluation.baselines.attention import received, rolled
from ...evaluation.baselines.encoder import SentenceEncoder
from .sentence import Sentence
from .views import GATE_SHAPES, GATES, NAIVE, ROLLOUT

Scores = dict[str, Tensor]  # (batch, length) or (batch, length, n), by name


def _gates(encoder: SentenceEncoder, batch: TokenBatch) -> Scores:
    """Selection probability and shapes of the gates of `meaning`."""
    model = encoder.model
    if model is None:
        raise ValueError("gates need a HardKuma model, and this is a bare encoder; name one, or leave `gates` out.")
    selector = model.config.names[model.config.find_selector(default=MEANING)]
    out = model(batch.input_ids, batch.mask.long(), batch.token_type_ids, selector=selector, return_embeddings=False)
    return {GATES: out.gate_probs, GATE_SHAPES: torch.stack([out.alpha, out.beta], -1)}


SCORERS: Mapping[str, Callable[[SentenceEncoder, TokenBatch], Scores]] = {
    NAIVE: lambda encoder, batch: {NAIVE: received(encoder, batch)},
    ROLLOUT: lambda encoder, batch: {ROLLOUT: rolled(encoder, batch, layers="all")},
    GATES: _gates,
}


@torch.no_grad()
def score_sentences(
    encoder: SentenceEncoder, texts: Sequence[str], sentences: Sequence[Sentence], measures: Iterable[str]
) -> list[Sentence]:
    """The same sentences with scores by these measures, in eval mode: one pass for each measure.

    Args:
        encoder: with the tokenizer that cut the sentences; for gates, made of a HardKuma model.
    """
    scored: list[dict[str, np.ndarray]] = [dict(sentence.scores) for sentence in sentences]
    for measure in measures:
        score, tokens = find_named("measure", measure, SCORERS), encoder.tokenize(texts)
        for item, sentence in zip(tokens, sentences, strict=True):
            if len(item) != len(sentence):
                raise ValueError(
                    f"{len(item)} tokens scored and {len(sentence)} in the sentence {item.text[:40]!r}; cut both alike."
                )
        for index, batch in encoder.batches(tokens):
            for name, values in score(encoder, batch).items():
                for row, number in enumerate(index):
                    scored[number][name] = values[row, : len(tokens[number])].float().cpu().numpy()
    return [replace(sentence, scores=scores) for sentence, scores in zip(sentences, scored, strict=True)]
