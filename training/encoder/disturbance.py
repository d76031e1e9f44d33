"""Views of as many words: as they are (dropout alone), repeated, replaced, in another order, or with holes in their
embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...configuration_hardkuma import check_whole
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


@dataclass(frozen=True)
class WordReplacement:
    """floor(rate x words) random words give their places to tokens drawn from the vocabulary: words of any meaning.

    Args:
        size: of the vocabulary.
        rate: share of the words.
        special: how many ids at its beginning are no words (padding, [CLS], unused ones); 1,000 suits BERT.

    >>> sentence = Sentence(np.array([2, 5, 6, 7, 8, 3]), np.array([-1, 0, 0, 1, 2, -1]))
    >>> view = WordReplacement(50, rate=0.4, special=40)(sentence, np.random.default_rng(0))
    >>> len(view) in (5, 6), bool((view.ids[[0, -1]] == [2, 3]).all())
    (True, True)
    """

    size: int
    rate: float = 0.15
    special: int = 1000
    measure: ClassVar[str] = LETTERS

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_whole("special", self.special, minimum=0)
        if self.special >= self.size:
            raise ValueError(f"special must be less than the vocabulary's {self.size} tokens, got {self.special}.")

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        words = sentence.word_numbers
        chosen = random.permutation(words)[: int(self.rate * len(words))]
        replaced = np.isin(sentence.words, chosen)
        first = np.flatnonzero(replaced & (sentence.words != np.concatenate([[-2], sentence.words[:-1]])))
        ids = sentence.ids.copy()
        ids[first] = random.integers(self.special, self.size, len(first))
        kept = ~replaced
        kept[first] = True  # one token stands for the whole word
        return replace(sentence, ids=ids).take(np.flatnonzero(kept))


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
