"""Views that keep all words: as they are (dropout alone), repeated, in another order, or with holes in their embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from .deletion import check_rate
from .sentence import LETTERS, Sentence


@dataclass(frozen=True)
class DropoutOnly:
    """The sentence itself: the encoder's own dropout makes the difference (SimCSE; Gao et al., 2021)."""

    measure: ClassVar[str] = LETTERS

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        return sentence


@dataclass(frozen=True)
class WordRepetition:
    """Random words stand twice: 0 to max(2, floor(rate x words)) of them (ESimCSE; Wu et al., 2022).

    >>> sentence = Sentence(np.array([2, 5, 6, 3]), np.array([-1, 0, 1, -1]))
    >>> WordRepetition()(sentence, np.random.default_rng(0)).ids.tolist()
    [2, 5, 5, 6, 6, 3]
    """

    rate: float = 0.32
    measure: ClassVar[str] = LETTERS

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        words = sentence.word_numbers
        most = min(max(2, int(self.rate * len(words))), len(words))
        doubled = random.choice(words, size=int(random.integers(0, most + 1)), replace=False)
        index: list[int] = []
        for start, end in _runs(sentence.words):
            index += [*range(start, end)] * (2 if sentence.words[start] in doubled else 1)
        return sentence.take(np.array(index, dtype=int))


def _runs(words: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of each run of tokens of one word; special tokens by themselves."""
    starts = [i for i in range(len(words)) if i == 0 or words[i] != words[i - 1] or words[i] < 0]
    return list(zip(starts, [*starts[1:], len(words)], strict=True))


@dataclass(frozen=True)
class TokenShuffling:
    """Random positions: the tokens stay, their position ids are dealt anew (ConSERT; Yan et al., 2021)."""

    measure: ClassVar[str] = LETTERS

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        positions = np.arange(len(sentence))
        inner = np.flatnonzero(sentence.content)
        positions[inner] = random.permutation(inner)
        return replace(sentence, positions=positions)


@dataclass(frozen=True)
class TokenCutoff:
    """The embeddings of floor(rate x tokens) random tokens are zero (ConSERT); special tokens are not counted."""

    rate: float = 0.15
    measure: ClassVar[str] = LETTERS

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        inner, cut = np.flatnonzero(sentence.content), np.zeros(len(sentence), dtype=bool)
        cut[random.permutation(inner)[: int(self.rate * len(inner))]] = True
        return replace(sentence, cut_tokens=sentence.spare(cut))


@dataclass(frozen=True)
class FeatureCutoff:
    """floor(rate x size) random dimensions of all embeddings are zero (ConSERT)."""

    size: int
    rate: float = 0.2
    measure: ClassVar[str] = LETTERS

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if self.rate == 1:
            raise ValueError("rate must be < 1, got 1: nothing would be left of the embeddings.")

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        cut = np.zeros(self.size, dtype=bool)
        cut[random.permutation(self.size)[: int(self.rate * self.size)]] = True
        return replace(sentence, cut_features=cut)
