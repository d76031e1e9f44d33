"""Faithfulness without labels: do the top words alone keep the embedding, and does it go when they go?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..common.text import keep_words, remove_words
from ..configuration_hardkuma import check_choice
from ..gate_head_hardkuma import count_at_rate
from .baselines.encoder import SentenceEncoder, Tokens, similarity
from .baselines.words import WordScores, tokens_of_words

RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
REMOVALS = ("mask", "text")


@dataclass
class Faithfulness:
    """Curves over selection rates; NaN rows for texts without words.

    Attributes:
        rates: fractions of the words that are selected (at least one word).
        sufficiency: (texts, rates) cos(embedding, embedding of the selected words alone); higher is better.
        comprehensiveness: (texts, rates) 1 - cos(embedding, embedding without them); higher is better.
        anchors: (texts, dim) embeddings of the texts.
        rationales, complements: (texts, rates, dim) embeddings of the selected words, and of the rest; zero for texts
            without words.
    """

    rates: list[float]
    sufficiency: np.ndarray
    comprehensiveness: np.ndarray
    anchors: Tensor
    rationales: Tensor
    complements: Tensor

    def areas(self, curve: np.ndarray) -> np.ndarray:
        """(texts,) area under each text's curve, divided by the range of rates: the mean height."""
        if len(self.rates) == 1:
            return curve[:, 0]
        return np.trapezoid(curve, self.rates, axis=1) / (self.rates[-1] - self.rates[0])


def faithfulness(
    encoder: SentenceEncoder,
    results: Sequence[WordScores],
    rates: Sequence[float] = RATES,
    removal: str = "mask",
) -> Faithfulness:
    """Select the top words of each text at each rate and run the encoder on them, and on the rest.

    Args:
        rates: ascending fractions; ceil(rate x words) words are selected, ties in a seeded random order.
        removal: "mask": removed tokens are masked out of attention and pooling and leave a gap in the positions;
            "text": the words are cut out of the text, which is tokenised anew.

    What is outside of every word (punctuation, if words came from `find_words`) is not selected: it is gone in
    sufficiency and stays in comprehensiveness.
    """
    check_choice("removal", removal, REMOVALS)
    rates = [float(rate) for rate in rates]
    if rates != sorted(rates) or not rates:
        raise ValueError(f"rates must be ascending fractions, got {rates}.")
    tokens = encoder.tokenize([result.text for result in results])
    selections: list[list[tuple[int, ...]]] = []
    for result in results:
        generator = np.random.default_rng([0, *result.text.encode()])
        selections.append([tuple(top_words(result.scores, rate, generator)) for rate in rates])
    wanted = [
        (i, words, alone)
        for i, row in enumerate(selections)
        for words in dict.fromkeys(row)  # short texts select the same words at several rates
        for alone in (True, False)
        if words
    ]
    if removal == "mask":
        members = [tokens_of_words(t.offsets, t.content, r.words) for t, r in zip(tokens, results, strict=True)]
        kept = [_kept_tokens(tokens[i], members[i], words, alone) for i, words, alone in wanted]
        vectors = encoder.embed([tokens[i] for i, _, _ in wanted], kept)
    else:
        spans = [[results[i].words[word] for word in words] for i, words, _ in wanted]
        texts = [
            (keep_words if alone else remove_words)(results[i].text, row)
            for (i, _, alone), row in zip(wanted, spans, strict=True)
        ]
        vectors = encoder.embed(encoder.tokenize(texts))
    whole = encoder.embed(tokens)
    cosines = similarity(vectors, whole[[i for i, _, _ in wanted]]).tolist()
    row_of = {key: row for row, key in enumerate(wanted)}
    shape = (len(results), len(rates))
    sufficiency, comprehensiveness = np.full(shape, np.nan), np.full(shape, np.nan)
    rationales, complements = torch.zeros(2, *shape, whole.shape[-1])
    for i, row in enumerate(selections):
        for j, words in enumerate(row):
            if words:
                sufficiency[i, j] = cosines[row_of[i, words, True]]
                comprehensiveness[i, j] = 1 - cosines[row_of[i, words, False]]
                rationales[i, j] = vectors[row_of[i, words, True]]
                complements[i, j] = vectors[row_of[i, words, False]]
    return Faithfulness(rates, sufficiency, comprehensiveness, whole, rationales, complements)


def _kept_tokens(item: Tokens, members: list[list[int]], words: tuple[int, ...], alone: bool) -> list[bool]:
    chosen = {token for word in words for token in members[word]}
    return [(token in chosen) == alone for token in range(len(item))]


def top_words(scores: Sequence[float], rate: float, generator: np.random.Generator) -> list[int]:
    """Indices of the ceil(rate x n) highest scores of one sentence, at least one; ties in random order.

    >>> top_words([0.1, 0.9, 0.5], 0.5, np.random.default_rng(0))
    [1, 2]
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be a fraction in (0, 1], got {rate}.")
    order = np.lexsort((generator.random(len(scores)), -np.asarray(scores, dtype=float)))
    return sorted(int(i) for i in order[: count_at_rate(len(scores), rate)])
