"""Leave one out: how far the sentence embedding moves, or another value falls, when a token or a whole word is gone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...configuration_hardkuma import check_choice
from .encoder import SentenceEncoder, Tokens, Value, similarity
from .words import Span, WordScores, combine_tokens, fill_missing, text_words, tokens_of_words

UNITS = ("token", "word")


def leave_one_out_scores(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    reencode: bool = True,
    unit: str = "token",
    value: Value = similarity,
) -> list[WordScores]:
    """value(text) - value(text without the token or word); of the similarity, 1 - cos(embedding, embedding without it).

    Args:
        reencode: True runs the encoder again without the token (one pass per token or word); False pools the other states
            of the one pass over the whole sentence. Pooled by [CLS] alone, the latter is 0 everywhere.
        unit: "token" removes one token at a time (a word has the largest value of its tokens), "word" all of a word.
        value: what falls.
    """
    check_choice("unit", unit, UNITS)
    spans, tokens = text_words(texts, words), encoder.tokenize(texts)
    members = [tokens_of_words(item.offsets, item.content, spans[i]) for i, item in enumerate(tokens)]
    if unit == "word":
        groups = [[tuple(group) for group in row if group] for row in members]
    else:
        groups = [sorted({(token,) for group in row for token in group}) for row in members]
    moved = (_reencoded if reencode else _pooled)(encoder, tokens, groups, value)
    results = []
    for i, item in enumerate(tokens):
        distance = dict(zip(groups[i], moved[i], strict=True))
        if unit == "word":
            values = [distance[tuple(group)] if group else None for group in members[i]]
            results.append(fill_missing(item.text, spans[i], values))
        else:
            per_token = [distance.get((j,), 0.0) for j in range(len(item))]
            results.append(combine_tokens(item.text, spans[i], members[i], per_token))
    return results


Groups = list[tuple[int, ...]]


def _reencoded(encoder: SentenceEncoder, tokens: list[Tokens], groups: list[Groups], value: Value) -> list[list[float]]:
    whole = encoder.embed(tokens)
    rows, kept = [], []
    for item, row in zip(tokens, groups, strict=True):
        for group in row:
            rows.append(item)
            kept.append([j not in group for j in range(len(item))])
    without = encoder.embed(rows, kept)
    results, first = [], 0
    for i, row in enumerate(groups):
        part, first = without[first : first + len(row)], first + len(row)
        results.append(_falls(part, whole[i], value))
    return results


@torch.no_grad()
def _pooled(encoder: SentenceEncoder, tokens: list[Tokens], groups: list[Groups], value: Value) -> list[list[float]]:
    results: list[list[float]] = [[] for _ in tokens]
    for index, batch in encoder.batches(tokens):
        states = encoder.states(batch)
        for row, i in enumerate(index):
            results[i] = _without_groups(encoder, states[row], batch.mask[row], groups[i], value)
    return results


def _falls(without: Tensor, whole: Tensor, value: Value) -> list[float]:
    return (value(whole[None], whole[None]) - value(without, whole)).tolist()


def _without_groups(encoder: SentenceEncoder, states: Tensor, mask: Tensor, groups: Groups, value: Value) -> list[float]:
    weights = mask.float().repeat(1 + len(groups), 1)  # (sets, length); the first is the whole sentence
    for number, group in enumerate(groups):
        weights[1 + number, list(group)] = 0.0
    vectors = encoder.pooled(states[None], weights[None])[0]
    return _falls(vectors[1:], vectors[0], value)
