"""Word scores, and the way from sub-word tokens to words: by character offsets, for any fast tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...configuration_hardkuma import check_choice
from ...words_hardkuma import Span, WordIndex, check_words, find_words

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
}


@dataclass
class WordScores:
    """One score per word of a text; higher = more important.

    Attributes:
        text: the text as it was given.
        words: (start, end) character offsets, in order.
        scores: one per word.
        selected: one per word, for methods that decide by themselves (gates, capitals); None for the others.
        missing: indices of words without any token (cut off by the length limit, or characters that the tokenizer
            drops). They carry the lowest score of their sentence.

    >>> WordScores("Ada met Bob", [(0, 3), (4, 7), (8, 11)], [0.9, 0.1, 0.8]).ranked()
    [('Ada', 0.9), ('Bob', 0.8), ('met', 0.1)]
    """

    text: str
    words: list[Span]
    scores: list[float]
    selected: list[bool] | None = None
    missing: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("scores", self.scores), ("selected", self.selected)):
            if values is not None and len(values) != len(self.words):
                raise ValueError(f"{len(values)} {name} for {len(self.words)} words; give one per word.")

    def ranked(self) -> list[tuple[str, float]]:
        """Words with their scores, most important first; ties in reading order."""
        pairs = [(self.text[start:end], score) for (start, end), score in zip(self.words, self.scores, strict=True)]
        return sorted(pairs, key=lambda pair: -pair[1])


def text_words(texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None) -> list[list[Span]]:
    """The word offsets of each text: those given (checked), or the words that `find_words` sees.

    >>> text_words(["Hi, Bob!"]), text_words(["Hi , Bob"], [[(0, 2), (3, 4), (5, 8)]])
    ([[(0, 2), (4, 7)]], [[(0, 2), (3, 4), (5, 8)]])
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of texts, got the single text {texts[:40]!r}; put it in a list.")
    if words is None:
        return [find_words(text) for text in texts]
    if len(words) != len(texts):
        raise ValueError(f"word offsets for {len(words)} texts, but {len(texts)} texts; give one list per text.")
    for text, spans in zip(texts, words, strict=True):
        check_words(text, spans)
    return [[(int(start), int(end)) for start, end in spans] for spans in words]


def score_words(
    function: Callable[..., WordScores],
    encoder: object,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    **options: Any,
) -> list[WordScores]:
    """Word scores of a method that looks at one text after the other: function(text, words, **options)."""
    return [function(text, spans, **options) for text, spans in zip(texts, text_words(texts, words), strict=True)]


def tokens_of_words(offsets: Sequence[Span], content: Sequence[bool], words: Sequence[Span]) -> list[list[int]]:
    """Indices of the content tokens that share a character with each word. A token over two words belongs to both.

    >>> tokens_of_words([(0, 0), (0, 2), (2, 6), (6, 8)], [False, True, True, True], [(0, 2), (3, 8)])
    [[1], [2, 3]]
    """
    starts, ends = torch.tensor(offsets, dtype=torch.long).view(-1, 2).T
    # A special token may claim characters ("[SEP]" typed by somebody); without any it touches nothing.
    ends = torch.where(torch.tensor(content, dtype=torch.bool), ends, starts)
    length = max((end for _, end in words), default=0)
    first, count = WordIndex([words], [length]).touched(torch.tensor([0]), starts[None], ends[None])
    members: list[list[int]] = [[] for _ in words]
    for token, (word, number) in enumerate(zip(first[0].tolist(), count[0].tolist(), strict=True)):
        for touched in members[word : word + number]:
            touched.append(token)
    return members


def combine_tokens(
    text: str,
    words: Sequence[Span],
    members: Sequence[Sequence[int]],
    token_scores: Sequence[float],
    how: str = "max",
) -> WordScores:
    """Word scores from token scores.

    Args:
        members: token indices of each word, from `tokens_of_words`.
        how: "max", "sum" or "mean" over a word's tokens.

    >>> combine_tokens("Hi Bobby", [(0, 2), (3, 8)], [[1], [2, 3]], [0.0, 1.0, 2.0, 5.0], "sum").scores
    [1.0, 7.0]
    """
    check_choice("aggregate", how, AGGREGATES)
    combine = AGGREGATES[how]
    values = [float(combine([float(token_scores[i]) for i in tokens])) if tokens else None for tokens in members]
    return fill_missing(text, words, values)


def fill_missing(text: str, words: Sequence[Span], values: Sequence[float | None]) -> WordScores:
    """Word scores in which None (no token, not a candidate) becomes the lowest score of the sentence.

    >>> fill_missing("a b", [(0, 1), (2, 3)], [0.5, None]).scores
    [0.5, 0.5]
    """
    lowest = min((value for value in values if value is not None), default=0.0)
    missing = tuple(i for i, value in enumerate(values) if value is None)
    return WordScores(text, list(words), [lowest if v is None else float(v) for v in values], missing=missing)
